"""The row-wise arithmetic of the model. A stage brings its own (`operators` of its attention), so engines of different
stages can share one model: nothing is left behind on the weights, and nothing of torch is replaced."""

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


PLAIN = Operators()


def plain(model) -> Operators:
    """What a stage names where torch's own operators will do, whatever the model."""
    return PLAIN
