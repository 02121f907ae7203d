"""The invariant operators on a GPU: Triton kernels with one order of summation. Not yet measured on CUDA."""

import torch

from tinyengine.invariant.operators import InvariantOperators
from tinyengine.kernels import matmul, rmsnorm


class CudaOperators(InvariantOperators):
    """tile_rows: the one height of all tiles; None lets it follow the number of rows, by a fixed table. Elementwise
    arithmetic is the same for every element on a GPU, so swiglu is as on a CPU."""

    def __init__(self, tile_rows: int | None = None):
        super().__init__(tile_rows)

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return matmul.linear(x, weight, self.tile_rows)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rmsnorm.rms_norm(x, weight, eps)
