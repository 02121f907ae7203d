"""A request's output is the same to the bit whoever runs beside it, wherever its blocks lie, however it is cut."""

from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import build, rows_apart

SHAPE = dict(heads=4, kv_heads=2, head_dim=32)
BATCH = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 140)), min_size=2, max_size=4)


def per_request(kernels, case, tile_rows, split_size=None):
    out = kernels.paged_attention(*case.args, max(case.counts), tile_rows=tile_rows, split_size=split_size)
    return out.split(case.counts)


def alone(case, index, first=0, end=None):
    """The case of one request of the batch, with its queries first .. end - 1 only, out of the same arena."""
    q, keys, values, starts, lengths, table = case.args
    rows = q[starts[index] : starts[index + 1]]
    end = len(rows) if end is None else end
    return (
        rows[first:end],
        keys,
        values,
        starts.new_tensor([0, end - first]),
        lengths[index : index + 1] - (len(rows) - end),
        table[index : index + 1],
    )


@pytest.mark.parametrize("tile_rows", [16, 64])
@settings(max_examples=10, deadline=None)
@given(batch=BATCH, half=st.integers(0, 2), split_size=st.sampled_from([None, 64, 128]))
def test_neighbours_leave_no_trace(kernels, tile_rows, batch, half, split_size):
    counts, contexts = map(list, zip(*batch))
    dtype = kernels.dtypes[half % len(kernels.dtypes)]
    case = build(counts, contexts, block_size=16, dtype=dtype, device=kernels.device, **SHAPE)
    for index, together in enumerate(per_request(kernels, case, tile_rows, split_size)):
        solo = kernels.paged_attention(*alone(case, index), counts[index], tile_rows=tile_rows, split_size=split_size)
        assert torch.equal(together, solo), f"request {index} differs"


@settings(max_examples=15, deadline=None)
@given(batch=BATCH, seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)), sizes=st.permutations([1, 4, 16, 64, 256]))
def test_where_the_blocks_lie_leaves_no_trace(kernels, batch, seeds, sizes):
    counts, contexts = map(list, zip(*batch))
    one, other = (
        build(
            counts,
            contexts,
            block_size=size,
            seed=seed,
            poison=poison,
            dtype=torch.float32,
            device=kernels.device,
            **SHAPE,
        )
        for size, seed, poison in zip(sizes, seeds, (float("nan"), 7.0))
    )
    for index, (left, right) in enumerate(zip(per_request(kernels, one, 16), per_request(kernels, other, 16))):
        assert torch.equal(left, right), f"request {index} differs"


@settings(max_examples=15, deadline=None)
@given(
    count=st.integers(1, 40),
    context=st.integers(0, 140),
    cuts=st.sets(st.integers(1, 39), max_size=5),
    tile_rows=st.sampled_from([16, 64]),
    split_size=st.sampled_from([None, 64]),
)
def test_chunks_leave_no_trace(kernels, count, context, cuts, tile_rows, split_size):
    case = build([count], [context], block_size=16, dtype=torch.float32, device=kernels.device, **SHAPE)
    with rows_apart() if kernels.device == "cpu" else nullcontext():
        (whole,) = per_request(kernels, case, tile_rows, split_size)
        for first, end in pairwise([0, *sorted(cut for cut in cuts if cut < count), count]):
            chunk = kernels.paged_attention(
                *alone(case, 0, first, end), end - first, tile_rows=tile_rows, split_size=split_size
            )
            assert torch.equal(whole[first:end], chunk), f"queries {first} .. {end - 1} differ"


def test_the_key_tile_depends_on_the_model_alone(kernels):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for head_dim in (16, 80, 128, 256):
            configs = [kernels.tile_config(rows, head_dim, dtype) for rows in (1, 16, 17, 64, 65, 128, 10_000)]
            assert len({config["TILE_KEYS"] for config in configs}) == 1
            assert [config["TILE_ROWS"] for config in configs] == sorted(config["TILE_ROWS"] for config in configs)
            assert len({tuple(kernels.tile_config(n, head_dim, dtype, 16).items()) for n in (1, 64, 9999)}) == 1
