"""What `accelerate` puts in place of the sixth stage's attention and operators.

`InvariantByTorch` has the bits of the definition, `invariant.attention.one_query`. Loops and Triton's kernels have not,
since each sums up in an order of its own: they are held to the definition within rounding, and bit by bit to what the
stage promises, that a query's bits are the same in any batch.
"""

import torch

from tinyengine.attention import KVCache
from tinyengine.batch import Batch
from tinyengine.fast.attention import ByLoops, ByTriton
from tinyengine.fast.batch import flat
from tinyengine.fast.operators import LoopOperators, PackedForOneThread, fastest
from tinyengine.fast.splits import InSplits
from tinyengine.invariant.envelope import TILES, SameThreads, check_attention, first_that_holds, tested_operators
from tinyengine.invariant.operators import InvariantOperators, pad_rows
from tinyengine.operators import Operators, Rope


class PaddedLoops(InvariantOperators):
    """float32 on a CPU: loops, which take one row after the other and never see how many there are, and products of a
    multiple of tile_rows rows. loops: the operators whose loops and products these are."""

    def __init__(self, tile_rows: int, loops: LoopOperators):
        super().__init__(tile_rows)
        self.loops = loops

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.loops.linear(pad_rows(x, self.tile_rows), weight)[: len(x)]

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self.loops.rms_norm(x, weight, eps)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self.loops.swiglu(gate_up)

    def split_normalise_rotate(self, qkv: torch.Tensor, heads: list[int], norms, rope: Rope):
        return self.loops.split_normalise_rotate(qkv, heads, norms, rope)


class OneProduct(PaddedLoops):
    """Where the product is ours as well, it needs no care: it sums up each row in one order, whatever the others are.
    Another one would do it in another, so many rows are not left to oneDNN."""

    def __init__(self, loops: PackedForOneThread):
        super().__init__(1, loops)
        self.packed = loops.packed

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.by_one_thread(x, weight)

    def by_one_thread(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.loops.by_one_thread(x, weight)

    def one_thread_is_best(self, rows: int) -> bool:
        return True


class OnGPU(InvariantOperators):
    """Triton kernels with one order of summation. Not yet measured on CUDA.

    tile_rows: the one height of all tiles; None lets it follow the number of rows, by a fixed table. Elementwise
    arithmetic is the same for every element on a GPU, so swiglu is as on a CPU.
    """

    def __init__(self, tile_rows: int | None = None):
        from tinyengine.fast.kernels.cuda import matmul, rmsnorm  # need Triton

        super().__init__(tile_rows)
        self.matmul, self.rmsnorm = matmul, rmsnorm

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.matmul.linear(x, weight, self.tile_rows)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self.rmsnorm.rms_norm(x, weight, eps)


class InvariantByTorch(SameThreads, InSplits):
    """On any device, many queries in a call: the definition's bits, with the definition's operators."""

    backend = "torch"
    layout = staticmethod(flat)

    def __init__(self, cache: KVCache, split_kv: bool = True):
        super().__init__(cache)

    @staticmethod
    def why_not(arena: torch.Tensor) -> str | None:
        return None

    @staticmethod
    def operators(model: torch.nn.Module) -> Operators:
        check_attention(model, InvariantByTorch)
        return tested_operators(model)


class InvariantByLoops(SameThreads, ByLoops):
    """In float32 on a CPU: each query by itself, key after key where they lie, of a prompt as of a decode. There are no
    splits, and need be none."""

    most_queries = 2**31 - 1

    @staticmethod
    def operators(model: torch.nn.Module) -> Operators:
        check_attention(model, InvariantByLoops)
        loops = fastest(model)
        if isinstance(loops, PackedForOneThread):
            return first_that_holds(model, [OneProduct(loops)])
        return first_that_holds(model, [PaddedLoops(rows, loops) for rows in TILES])


class InvariantByTriton(SameThreads, ByTriton):
    """On a GPU. The kernel's key tiles begin at absolute positions, so they need no splits of ours. A later token in a
    query's tile leaves no trace, finite or not."""

    def options(self, batch: Batch) -> dict:
        """One height of tiles, and a request's keys never shared out, since both would follow the batch."""
        return {"tile_rows": 16, "prefix_pure": True}

    @staticmethod
    def operators(model: torch.nn.Module) -> Operators:
        check_attention(model, InvariantByTriton)
        # tiles of several heights where they give the same bits, else one height for all
        return first_that_holds(model, [OnGPU(rows) for rows in (None, 64, 16)])


# In accelerate's table of candidates, by the stage's attention `Invariant`:
INVARIANT = InvariantByTriton, InvariantByLoops, InvariantByTorch
