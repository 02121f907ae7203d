"""The row-wise arithmetic of the model. A stage brings its own (`operators` of its attention), so engines of different
stages can share one model: nothing is left behind on the weights, and nothing of torch is replaced."""

import platform
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F


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


class Packed(Operators):
    """The same, with a second copy of the weights in the order in which oneDNN's kernels read them: nothing is to be
    rearranged in a call. In float32 on a CPU, F.linear does without, and was slower where this was tried."""

    def __init__(self, model: torch.nn.Module):
        weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
        self._packs = {weight: torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None) for weight in weights}
        self._versions = {weight: weight._version for weight in weights}

    @staticmethod
    def suits(model: torch.nn.Module) -> bool:
        """float32 on an x86 CPU, with a torch that has oneDNN. (torch.compile's own CPU backend calls the same two
        functions; they have no public name.)"""
        weight = next(model.parameters())
        has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        is_x86 = platform.machine().lower() in ("x86_64", "amd64")
        return weight.device.type == "cpu" and weight.dtype == torch.float32 and is_x86 and has_onednn

    def is_current(self) -> bool:
        """Whether no weight was written since it was packed."""
        return all(weight._version == version for weight, version in self._versions.items())

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packs[weight], None, "none", [], "")


PLAIN = Operators()
_packed: WeakKeyDictionary[torch.nn.Module, Packed] = WeakKeyDictionary()  # one copy for all engines of a model


def plain(model: torch.nn.Module) -> Operators:
    """The fastest operators that the model's device and dtype allow."""
    if not Packed.suits(model):
        return PLAIN
    if model not in _packed or not _packed[model].is_current():
        _packed[model] = Packed(model)
    return _packed[model]
