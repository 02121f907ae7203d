"""A request's output is the same to the bit whatever runs beside it, wherever its blocks lie, however it is cut."""

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from helpers.kernels import build, rows_apart
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinyengine.fast.invariant import InvariantByTriton
from tinyengine.invariant import envelope
from tinyengine.invariant.envelope import same_bits

SHAPE = dict(heads=4, kv_heads=2, head_dim=32)
BATCH = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 140)), min_size=2, max_size=4)


def per_request(kernels, case, tile_rows, split_size=None, **options):
    options |= dict(max_seqlen_q=max(case.counts), tile_rows=tile_rows, split_size=split_size)
    out = kernels.paged_attention(*case.args, **options)
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
        solo = kernels.paged_attention(*alone(case, index), tile_rows=tile_rows, split_size=split_size)
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
            chunk = kernels.paged_attention(*alone(case, 0, first, end), tile_rows=tile_rows, split_size=split_size)
            assert torch.equal(whole[first:end], chunk), f"queries {first} .. {end - 1} differ"


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    count=st.integers(1, 40),
    context=st.integers(0, 140),
    back=st.integers(0, 60),
    cuts=st.sets(st.integers(1, 39), max_size=3),
    fill=st.sampled_from([math.nan, math.inf, -math.inf]),
    only=st.booleans(),
    tile_rows=st.sampled_from([16, 64]),
    split_size=st.sampled_from([None, 64]),
    head_dim=st.sampled_from([32, 80]),
    half=st.integers(0, 2),
)
@example(20, 70, 9, {11}, math.inf, True, 16, 64, 32, 1)
@example(12, 60, 40, {5}, -math.inf, True, 16, None, 80, 0)  # in an older tile than the last
def test_a_value_that_is_not_finite_is_for_those_that_see_it(
    kernels, count, context, back, cuts, fill, only, tile_rows, split_size, head_dim, half
):
    """The whole key and value of a token, or one number of its value: earlier queries have the bits that they have
    before an ordinary token, and queries that see it have NaN there, in one piece as in chunks."""
    shape = SHAPE | dict(head_dim=head_dim, block_size=16, dtype=kernels.dtypes[half % len(kernels.dtypes)])
    options = dict(tile_rows=tile_rows, split_size=split_size, prefix_pure=True)
    case = build([count], [context], device=kernels.device, **shape)
    _, keys, values, _, _, table = case.args
    place = max(0, context + count - 1 - back)
    block, offset = table[0, place // 16], place % 16
    with rows_apart() if kernels.device == "cpu" else nullcontext():
        (wanted,) = per_request(kernels, case, **options)
        torch.testing.assert_close(wanted, *per_request(kernels, case, **options | dict(prefix_pure=False)))
        if only:
            values[block, offset, 0, 3] = fill
            wanted[max(0, place - context) :, :2, 3] = math.nan  # the two heads that share a key head
        else:
            keys[block, offset], values[block, offset] = fill, fill
            wanted[max(0, place - context) :] = math.nan
        (whole,) = per_request(kernels, case, **options)
        assert same_bits(*(torch.where(x.isnan(), 0, x) for x in (whole, wanted)))
        assert torch.equal(whole.isnan(), wanted.isnan())
        for first, end in pairwise([0, *sorted(cut for cut in cuts if cut < count), count]):
            chunk = kernels.paged_attention(*alone(case, 0, first, end), **options)
            assert same_bits(chunk, whole[first:end]), f"queries {first} .. {end - 1} differ"


@pytest.mark.slow
@pytest.mark.parametrize("pure", [True, False])
def test_the_self_test_sees_later_tokens_where_their_values_are_not_looked_at(kernels, tiny, monkeypatch, pure):
    from tinyengine.fast.kernels.cuda import paged

    def attention(*args, prefix_pure, **options):
        return kernels.paged_attention(*args, prefix_pure=prefix_pure and pure, **options)

    monkeypatch.setattr(paged, "paged_attention", attention)
    monkeypatch.setattr(paged, "write_kv", kernels.write_kv)
    monkeypatch.setattr(paged, "check_arena", kernels.check_arena)
    config = replace(tiny.config, num_attention_heads=1, num_key_value_heads=1)
    for dtype in kernels.dtypes:
        pairs = envelope.beside_later_tokens(InvariantByTriton, config, torch.device(kernels.device), dtype)
        with torch.inference_mode(), rows_apart() if kernels.device == "cpu" else nullcontext():
            assert same_bits(*next(pairs)) is pure
            assert not pure or all(same_bits(*pair) for pair in pairs)


def test_the_key_tile_depends_on_the_model_alone(kernels):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for head_dim in (16, 80, 128, 256):
            configs = [kernels.tile_config(rows, head_dim, dtype) for rows in (1, 16, 17, 64, 65, 128, 10_000)]
            assert len({config["TILE_KEYS"] for config in configs}) == 1
            assert [config["TILE_ROWS"] for config in configs] == sorted(config["TILE_ROWS"] for config in configs)
            assert len({tuple(kernels.tile_config(n, head_dim, dtype, 16).items()) for n in (1, 64, 9999)}) == 1
