"""The row-wise arithmetic of the model. A stage brings its own (`operators` of its attention), so engines of different
stages can share one model: nothing is left behind on the weights, and nothing of torch is replaced."""

import platform
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from tinyengine.kernels import loops

Rope = tuple[torch.Tensor, torch.Tensor]  # cos and sin of each row's position, [R, 1, head_dim]: alike for every head


class Operators:
    """As torch does them, which is fastest. Every row is computed by itself, but in torch its last bits may
    depend on how many rows there are; `tinyengine.invariant` has operators where they do not."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [R, in], weight [out, in] -> [R, out]"""
        return F.linear(x, weight)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[R, 2 * intermediate], the gates first -> silu(gate) * up [R, intermediate]. Source: arXiv 2002.05202."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., size], weight [size] -> x / sqrt(mean(x^2) + eps) * weight [..., size]. Source: arXiv 1910.07467."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def heads(
        self, qkv: torch.Tensor, counts: list[int], norms: tuple[torch.nn.Module, torch.nn.Module], rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """qkv [R, heads + 2 * kv_heads, head_dim] -> q [R, heads, head_dim], k and v [R, kv_heads, head_dim]; every
        head of q and k has its RMSNorm (`norms`, one for q and one for k), and then its position."""
        q, k, v = qkv.split(counts, dim=1)
        q, k = (rotate(self.rms_norm(x, norm.weight, norm.eps), rope) for x, norm in zip((q, k), norms))
        return q, k, v


def rotate(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotary position embedding (RoFormer, arXiv 2104.09864), x [R, heads, head_dim]; pair i is (i, i + head_dim / 2),
    as Llama and Qwen store their weights."""
    cos, sin = rope
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Compiled(Operators):
    """float32 on a CPU: loops that numba compiles, one call where torch needs 3 to 20 (`kernels.cpu`)."""

    def __init__(self, model: torch.nn.Module):
        self._loops = _loops_for(model)

    @staticmethod
    def suits(model: torch.nn.Module) -> bool:
        return _loops_for(model) is not None

    def is_current(self, model: torch.nn.Module) -> bool:
        """Whether nothing was written to the model that it keeps a copy of."""
        return True

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._loops.swiglu(gate_up)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._loops.rms_norm(x, weight, eps)

    def heads(self, qkv: torch.Tensor, counts: list[int], norms, rope: Rope):
        return self._loops.heads(qkv, counts, norms, rope)


class Packed(Compiled):
    """And a second copy of the weights, in the order in which a product reads them: nothing is to be rearranged in a
    call. F.linear does without in float32, and was slower where this was tried (`bench profile`)."""

    def __init__(self, model: torch.nn.Module):
        super().__init__(model)
        weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
        # What was copied is kept (`detach`), or its place in memory could be given to what comes after it.
        self._copies = {weight: (state(weight), weight.detach(), self.pack(weight.detach())) for weight in weights}

    @staticmethod
    def suits(model: torch.nn.Module) -> bool:
        """An x86 CPU, and weights in float32 of which torch counts how often they are written to."""
        is_x86 = platform.machine().lower() in ("x86_64", "amd64")
        weights = list(model.parameters())
        are_counted = all(weight.dtype == torch.float32 and not weight.is_inference() for weight in weights)
        return Compiled.suits(model) and is_x86 and are_counted

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [out, in] -> the same numbers as `multiply` takes them"""
        raise NotImplementedError

    def multiply(self, x: torch.Tensor, packed: torch.Tensor, out: int) -> torch.Tensor:
        """x [R, in], a weight [out, in] as it was packed -> [R, out]"""
        raise NotImplementedError

    def is_current(self, model: torch.nn.Module) -> bool:
        linears = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
        return all(self.packed(linear.weight) is not None for linear in linears)

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        packed = self.packed(weight)
        return F.linear(x, weight) if packed is None else self.multiply(x, packed, len(weight))

    def packed(self, weight: torch.Tensor) -> torch.Tensor | None:
        """The copy of a weight; None for one that was written to, or put in another's place, since it was made."""
        then, _, packed = self._copies.get(weight, (None, None, None))
        return packed if then == state(weight) else None


class PackedForOneDNN(Packed):
    """With oneDNN's product. (torch.compile's own CPU backend calls the same two functions: they have no public name.)
    """

    @staticmethod
    def suits(model: torch.nn.Module) -> bool:
        has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        return has_onednn and Packed.suits(model)

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def multiply(self, x: torch.Tensor, packed: torch.Tensor, out: int) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


class PackedForOneThread(Packed):
    """With a product of our own (`kernels.linear`), faster than oneDNN's for few rows (`bench profile`). It has one
    thread. So where torch has several it serves models that are SMALL, and oneDNN takes over for more than FEW_ROWS,
    with a third copy of the weights."""

    SMALL = 64 << 20  # bytes of weights: one thread reads them about as fast as several, most of them from a cache
    FEW_ROWS = 16  # two threads of oneDNN's were faster from 24 on

    def __init__(self, model: torch.nn.Module):
        from tinyengine.kernels import linear  # imported here: it needs numba

        self._product = linear
        super().__init__(model)
        self._for_more_threads = PackedForOneDNN(model) if self._shares_with_onednn(model) else None

    @staticmethod
    def suits(model: torch.nn.Module) -> bool:
        is_small = sum(weight.nbytes for weight in model.parameters()) <= PackedForOneThread.SMALL
        if not Packed.suits(model) or not (is_small or torch.get_num_threads() == 1):
            return False
        from tinyengine.kernels import linear  # imported here: it needs numba

        return linear.suits()

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return self._product.pack(weight)

    def multiply(self, x: torch.Tensor, packed: torch.Tensor, out: int) -> torch.Tensor:
        return self._product.linear(x, packed, out)

    @staticmethod
    def _shares_with_onednn(model: torch.nn.Module) -> bool:
        return torch.get_num_threads() > 1 and PackedForOneDNN.suits(model)

    def is_current(self, model: torch.nn.Module) -> bool:
        return super().is_current(model) and self._shares_with_onednn(model) == bool(self._for_more_threads)

    def is_best_for(self, rows: int) -> bool:
        """Whether one thread is no slower than all of them for so many rows."""
        return rows <= self.FEW_ROWS or self._for_more_threads is None

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.is_best_for(len(x)):
            return self.by_one_thread(x, weight)
        return self._for_more_threads.linear(x, weight)

    def by_one_thread(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """`linear` by our own product, for any number of rows."""
        return super().linear(x, weight)


def state(weight: torch.Tensor) -> tuple[int, int]:
    """Changes with every write that torch knows of; one through `weight.data` leaves no mark."""
    return weight._version, weight.data_ptr()


def _loops_for(model: torch.nn.Module):
    weight = next(model.parameters())
    return loops(weight.device, weight.dtype)


PLAIN = Operators()
_fast: WeakKeyDictionary[torch.nn.Module, Compiled] = WeakKeyDictionary()  # one copy for all engines of a model


def plain(model: torch.nn.Module) -> Operators:
    """The fastest operators that the model's device and dtype, and this process' threads, allow."""
    kinds = PackedForOneThread, PackedForOneDNN, Compiled
    kind = next((kind for kind in kinds if kind.suits(model)), None)
    if kind is None:
        return PLAIN
    if type(_fast.get(model)) is not kind or not _fast[model].is_current(model):
        _fast[model] = kind(model)
    return _fast[model]
