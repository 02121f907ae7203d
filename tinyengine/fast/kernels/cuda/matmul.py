"""A matrix product whose rows do not know how many they are: one order of summation for every shape.

Each output is summed over K in steps of BLOCK_K, from front to back, by one program: no split-K, which would add the
parts in another order, and no autotune, which would choose by the shape. A tile's height comes from a fixed table.
Sources: "Defeating Nondeterminism in LLM Inference" (He et al., 2025); the persistent loop is Triton's tutorial 09.
"""

import torch
import triton
import triton.language as tl

BUCKETS = ((16, 16), (128, 64), (None, 128))  # (up to so many rows, the height of a tile)
TILE_ROWS = tuple(height for _, height in BUCKETS)
BLOCK_N = 64
BLOCK_K = 32


def linear(x: torch.Tensor, weight: torch.Tensor, tile_rows: int | None = None) -> torch.Tensor:
    """x [M, K], weight [N, K] -> x @ weight.T [M, N], summed in float32, in x's dtype.

    tile_rows: the height of a tile, one of TILE_ROWS; None takes it from BUCKETS. A GPU may use other instructions for
    tiles of another height: only where those were seen to give the same bits may the height follow M.
    Raises ValueError for inputs of the wrong shape or kind.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
        raise ValueError(
            f"x is {x.dtype} {list(x.shape)} and weight {weight.dtype} {list(weight.shape)}, but they must be [M, K] "
            "and [N, K] of one dtype: cast or transpose one of them"
        )
    if tile_rows is not None and tile_rows not in TILE_ROWS:
        raise ValueError(f"tile_rows is {tile_rows}, but a tile has one of {TILE_ROWS} rows: pass one of them, or None")
    (m, k), n = x.shape, len(weight)
    out = torch.empty(m, n, dtype=x.dtype, device=x.device)
    if m == 0:
        return out
    tile_rows = tile_rows or next(height for most, height in BUCKETS if most is None or m <= most)
    tiles = triton.cdiv(m, tile_rows) * triton.cdiv(n, BLOCK_N)
    programs = min(tiles, torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2)
    _linear[(programs,)](
        out,
        x,
        weight,
        m,
        n,
        k,
        *out.stride(),
        *x.stride(),
        *weight.stride(),
        PROGRAMS=programs,
        BLOCK_M=tile_rows,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        num_warps=4 if tile_rows < 128 else 8,
        num_stages=3,
    )
    return out


@triton.jit
def _linear(
    out,
    x,
    weight,
    m,
    n,
    k,
    out_row,  # from here on: strides
    out_column,
    x_row,
    x_column,
    weight_row,
    weight_column,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Persistent: as many programs as the GPU has multiprocessors, each with every PROGRAMS-th tile."""
    columns = tl.cdiv(n, BLOCK_N)
    for tile in range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * columns, PROGRAMS):
        row = (tile // columns) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
        column = (tile % columns) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        row_start = row.to(tl.int64)[:, None]  # int64: M x N may pass 2**31
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for first in range(0, k, BLOCK_K):
            inner = first + tl.arange(0, BLOCK_K)  # [BLOCK_K]
            x_tile = tl.load(
                x + row_start * x_row + inner[None, :] * x_column,
                mask=(row < m)[:, None] & (inner < k)[None, :],
                other=0.0,
            )
            weight_tile = tl.load(
                weight + column.to(tl.int64)[None, :] * weight_row + inner[:, None] * weight_column,
                mask=(column < n)[None, :] & (inner < k)[:, None],
                other=0.0,
            )
            sums = tl.dot(x_tile, weight_tile, sums, input_precision="ieee")  # ieee: no TF32
        tl.store(
            out + row_start * out_row + column[None, :] * out_column,
            sums.to(out.dtype.element_ty),
            mask=(row < m)[:, None] & (column < n)[None, :],
        )
