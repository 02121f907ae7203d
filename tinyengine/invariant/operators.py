"""Row-wise operators whose bits for a row depend on that row alone.

A matrix product adds up each output in an order that its kernel chose, and libraries choose kernels by the shape: one
row goes to a GEMV, three rows to the edge case of a GEMM. So the shape must not tell. Source: "Defeating Nondeterminism
in LLM Inference" (He et al., Thinking Machines, 2025), which found this to be why an output varies with the load.
"""

import torch

from tinyengine.operators import Operators

TILE_ROWS = 8  # the least that is tried; some CPUs need more, and the envelope's self-test finds out


class InvariantOperators(Operators):
    """tile_rows: a matrix product always has a multiple of so many rows, so that none of them is in an edge case."""

    def __init__(self, tile_rows: int = TILE_ROWS):
        self.tile_rows = tile_rows

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return super().linear(pad_rows(x, self.tile_rows), weight)[: len(x)]

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """torch's own silu computes the end of a row, past its last whole vector, with another exp, and where two
        threads share the work such an end can be anywhere. exp alone is computed in one way, and all else is rounded
        exactly."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        weight = gate.neg().exp_().add_(1)
        return torch.div(gate, weight, out=weight).mul_(up).to(gate_up.dtype)


def pad_rows(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """x [..., R, size] with rows of zeros behind it, up to a multiple."""
    missing = -x.shape[-2] % multiple
    return torch.cat((x, x.new_zeros(*x.shape[:-2], missing, x.shape[-1])), dim=-2) if missing else x
