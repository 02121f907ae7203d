"""The row-wise arithmetic of the model in float32 on a CPU: loops, and products with packed copies of the weights.

A copy is made once for all engines of a model, and is right as long as the weights stay as they are: an engine's own
condition. Whether they did is looked at when the next engine is made.
"""

import platform
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from tinyengine.fast.kernels import cpu
from tinyengine.operators import TORCH, Operators, Rope


class LoopOperators(Operators):
    """Loops that numba compiles, one call where torch needs 3 to 20 (`kernels.cpu.loops`)."""

    def __init__(self, model: torch.nn.Module):
        from tinyengine.fast.kernels.cpu import loops  # needs numba

        self._loops = loops

    @staticmethod
    def why_not(model: torch.nn.Module) -> str | None:
        weight = next(model.parameters())
        return cpu.why_not(weight.device, weight.dtype)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._loops.swiglu(gate_up)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._loops.rms_norm(x, weight, eps)

    def split_normalise_rotate(self, qkv: torch.Tensor, heads: list[int], norms, rope: Rope):
        return self._loops.split_normalise_rotate(qkv, heads, norms, rope)


class Packed(LoopOperators):
    """And a second copy of the weights, in the order in which a product reads them, so that no call rearranges them.
    (F.linear keeps no such copy in float32, and was slower where it was measured: `bench profile`.)"""

    def __init__(self, model: torch.nn.Module):
        super().__init__(model)
        self._copies = {weight: self.pack(weight.detach()) for weight in _matrices(model)}

    @staticmethod
    def why_not(model: torch.nn.Module) -> str | None:
        if reason := LoopOperators.why_not(model):
            return reason
        if platform.machine().lower() not in ("x86_64", "amd64"):
            return f"the processor is {platform.machine()}, and packed products were tried on x86 alone"
        if any(weight.dtype != torch.float32 or weight.is_inference() for weight in model.parameters()):
            return "a weight is not in float32, or was made in inference mode, where torch counts no writes to it"
        return None

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """weight [out, in] -> the same numbers as `multiply` takes them"""
        raise NotImplementedError

    def multiply(self, x: torch.Tensor, packed: torch.Tensor, out: int) -> torch.Tensor:
        """x [R, in], a weight [out, in] as it was packed -> [R, out]"""
        raise NotImplementedError

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        packed = self.packed(weight)
        return F.linear(x, weight) if packed is None else self.multiply(x, packed, len(weight))

    def packed(self, weight: torch.Tensor) -> torch.Tensor | None:
        """The copy of a weight; None for one that the model did not have."""
        return self._copies.get(weight)


class PackedForOneDNN(Packed):
    """With oneDNN's product, by the two functions that torch.compile's CPU backend calls: they have no public name."""

    @staticmethod
    def why_not(model: torch.nn.Module) -> str | None:
        if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return "this torch has no packed product of oneDNN"
        return Packed.why_not(model)

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def multiply(self, x: torch.Tensor, packed: torch.Tensor, out: int) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


class PackedForOneThread(Packed):
    """With a product of our own (`kernels.cpu.linear`), faster than oneDNN's for few rows (`bench profile`). It has one
    thread. So where torch has several it serves models that are SMALL, and oneDNN takes over for more than FEW_ROWS,
    with a third copy of the weights."""

    SMALL = 64 << 20  # bytes of weights: one thread reads them about as fast as several, most of them from a cache
    FEW_ROWS = 16  # two threads of oneDNN's were faster from 24 on

    def __init__(self, model: torch.nn.Module):
        from tinyengine.fast.kernels.cpu import linear  # needs numba

        self._product = linear
        super().__init__(model)
        shares = torch.get_num_threads() > 1 and PackedForOneDNN.why_not(model) is None
        self._for_more_threads = PackedForOneDNN(model) if shares else None

    @staticmethod
    def why_not(model: torch.nn.Module) -> str | None:
        if reason := Packed.why_not(model):
            return reason
        is_small = sum(weight.nbytes for weight in model.parameters()) <= PackedForOneThread.SMALL
        if torch.get_num_threads() > 1 and not is_small:
            return "the model is large, and several threads read its weights faster than one"
        from tinyengine.fast.kernels.cpu import linear  # needs numba

        return linear.why_not()

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return self._product.pack(weight)

    def multiply(self, x: torch.Tensor, packed: torch.Tensor, out: int) -> torch.Tensor:
        return self._product.linear(x, packed, out)

    def one_thread_is_best(self, rows: int) -> bool:
        """Whether one thread is no slower than all of them for so many rows."""
        return rows <= self.FEW_ROWS or self._for_more_threads is None

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.one_thread_is_best(len(x)):
            return self.by_one_thread(x, weight)
        return self._for_more_threads.linear(x, weight)

    def by_one_thread(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """`linear` by our own product, for any number of rows."""
        return super().linear(x, weight)


SAMPLED = 4096  # numbers of a matrix that are compared when the next engine is made: reading all would take too long
_made: WeakKeyDictionary[torch.nn.Module, tuple] = WeakKeyDictionary()  # by model: (state, its weights then, operators)


def fastest(model: torch.nn.Module) -> Operators:
    """The fastest operators that the model's device and dtype, and this process' threads, allow."""
    kinds = PackedForOneThread, PackedForOneDNN, LoopOperators
    kind = next((kind for kind in kinds if kind.why_not(model) is None), None)
    if kind is None:
        return TORCH
    # The version changes with every write that torch counts; one through `weight.data` is seen in the numbers alone.
    weights = _matrices(model) if issubclass(kind, Packed) else []
    marks = [(weight._version, weight.data_ptr(), _some_numbers(weight)) for weight in weights]
    state = kind, torch.get_num_threads(), marks
    if model not in _made or _made[model][0] != state:
        # Keep the originals alive: state compares addresses, and a freed address may be reused.
        _made[model] = state, [weight.detach() for weight in weights], kind(model)
    return _made[model][2]


def _some_numbers(weight: torch.Tensor) -> bytes:
    """About SAMPLED of them, evenly spread over rows and columns."""
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, len(flat) // SAMPLED) | 1].numpy().tobytes()


def _matrices(model: torch.nn.Module) -> list[torch.Tensor]:
    return [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
