"""The paged kernel against the definition of attention, over an arena whose free slots are poisoned."""

import math

import pytest
import torch
from helpers.kernels import build, definition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Measured in the interpreter: 6e-7 in float32, 9e-4 in float16; bfloat16 has 8 times the steps of float16.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}
SHAPE = dict(heads=4, kv_heads=2, head_dim=16, block_size=16)


def check(kernels, counts, contexts, dtype=torch.float32, tile_rows=None, split_size=None, **shape):
    case = build(counts, contexts, dtype=dtype, device=kernels.device, **{**SHAPE, **shape})
    out = kernels.paged_attention(*case.args, max_seqlen_q=max(counts), tile_rows=tile_rows, split_size=split_size)
    assert out.shape == case.args[0].shape and out.dtype == dtype
    worst = (out.cpu().double() - definition(case)).abs().max().item()
    assert worst <= TOLERANCE[dtype], f"off by {worst}"  # NaN compares as False


# Lengths around the borders of blocks and of key tiles (16, 32 or 64 keys).
LENGTHS = st.one_of(st.integers(0, 20), st.sampled_from([31, 32, 33, 63, 64, 65, 79, 80, 127, 128, 129]))
REQUESTS = st.lists(
    st.tuples(st.one_of(st.just(1), st.integers(1, 40)), LENGTHS), min_size=1, max_size=4
)  # (new tokens, tokens before them)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=REQUESTS,
    group=st.sampled_from([1, 2, 4, 7, 8]),
    kv_heads=st.sampled_from([1, 2, 3]),
    head_dim=st.sampled_from([16, 20, 32, 64, 80, 96]),
    block_size=st.sampled_from([1, 4, 16, 32, 256]),
    half=st.integers(0, 2),
    seed=st.integers(0, 99),
    poison=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_attention_is_its_definition(kernels, requests, group, kv_heads, head_dim, block_size, half, seed, poison):
    counts, contexts = zip(*requests)
    check(
        kernels,
        list(counts),
        list(contexts),
        dtype=kernels.dtypes[half % len(kernels.dtypes)],
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        seed=seed,
        poison=poison,
    )


@pytest.mark.parametrize(
    "counts, contexts",
    [
        pytest.param([1, 1, 1], [0, 16, 130], id="decode"),
        pytest.param([7, 33], [64, 5], id="chunk"),
        pytest.param([1, 70], [0, 0], id="prefill"),
        pytest.param([1, 40, 5, 1], [99, 0, 63, 0], id="mixed"),
        pytest.param([0, 3, 0], [4, 0, 0], id="requests-without-queries"),
    ],
)
@pytest.mark.parametrize("tile_rows", [16, 64, 128, None])
def test_every_tile_height_takes_every_kind_of_batch(kernels, counts, contexts, tile_rows):
    check(kernels, counts, contexts, tile_rows=tile_rows)


@settings(max_examples=30, deadline=None)
@given(
    requests=REQUESTS,
    split_size=st.sampled_from([64, 128]),
    group=st.sampled_from([1, 2, 3]),
    head_dim=st.sampled_from([16, 80]),
    half=st.integers(0, 2),
)
def test_splits_add_up(kernels, requests, split_size, group, head_dim, half):
    counts, contexts = zip(*requests)
    dtype = kernels.dtypes[half % len(kernels.dtypes)]
    shape = dict(dtype=dtype, heads=group * 2, kv_heads=2, head_dim=head_dim)
    check(kernels, list(counts), list(contexts), split_size=split_size, **shape)


@pytest.mark.parametrize("head_dim", [16, 17, 72, 80, 96, 112, 128, 192, 256])
def test_head_dims(kernels, head_dim):
    for dtype in kernels.dtypes:
        check(kernels, [1, 9], [40, 3], dtype=dtype, head_dim=head_dim, kv_heads=1, heads=2)


def test_a_group_may_be_larger_than_a_tile(kernels):
    check(kernels, [3, 1], [20, 7], heads=40, kv_heads=1, tile_rows=16)


def test_rows_of_q_may_be_views_of_a_fused_projection(kernels):
    case = build([5, 1], [9, 30], dtype=torch.float32, device=kernels.device, **SHAPE)
    q, *rest = case.args
    fused = torch.cat([torch.full_like(q, math.nan), q, torch.full_like(q, math.nan)], dim=1)[:, 4:8]
    assert not fused.is_contiguous()
    assert torch.equal(kernels.paged_attention(fused, *rest), kernels.paged_attention(q, *rest))


def test_large_scores_do_not_overflow(kernels):
    case = build([4], [60], dtype=torch.float32, device=kernels.device, **SHAPE)
    case.args[0].mul_(300.0)
    out = kernels.paged_attention(*case.args)
    assert (out.cpu().double() - definition(case)).abs().max() < 1e-3


def test_no_tokens_are_no_work(kernels):
    case = build([1], [3], dtype=torch.float32, device=kernels.device, **SHAPE)
    q, keys, values, _, _, table = case.args
    none = torch.zeros(0, dtype=torch.int32, device=kernels.device)
    out = kernels.paged_attention(q[:0], keys, values, none.new_zeros(1), none, table[:0])
    assert out.shape == (0, 4, 16)


def far_arena(kernels, block):
    """Two views of one 8 GiB buffer of float16, hardly a page of which is ever touched on a CPU: blocks 0 .. `block`
    begin in its middle, so that an address that wraps around at 2**31 falls into the buffer, on zeros."""
    memory = torch.empty(2**32 + 2**20, dtype=torch.float16, device=kernels.device)
    shape, strides = (block + 2, 16, 1, 64), (1024, 64, 64, 1)
    if kernels.device == "cuda":
        memory[: 2**20].zero_()
    return memory.as_strided(shape, strides, 2**31), memory.as_strided(shape, strides, 2**31 + 2**14)


@pytest.mark.slow
def test_addresses_pass_2_to_the_31(kernels):
    block = 2**21  # block * stride is 2**31 exactly: as an int32, -2**31
    keys, values = far_arena(kernels, block)
    near = build([3], [13], dtype=torch.float16, device=kernels.device, heads=2, kv_heads=1, head_dim=64, block_size=16)
    q, near_keys, near_values, starts, lengths, table = near.args
    keys[block], values[block] = near_keys[table[0, 0]], near_values[table[0, 0]]
    far = kernels.paged_attention(q, keys, values, starts, lengths, torch.full_like(table, block))
    assert torch.equal(far, kernels.paged_attention(*near.args)) and far.abs().max() > 0.1


@pytest.mark.slow
def test_slots_pass_2_to_the_31(kernels):
    block = 2**21
    keys, values = far_arena(kernels, block)
    k, v = torch.randn(2, 2, 1, 64, device=kernels.device).half()
    kernels.write_kv(keys, values, torch.tensor([block * 16 + 3, 5], device=kernels.device), k, v)
    assert torch.equal(keys[block, 3], k[0]) and torch.equal(values[block, 3], v[0])
    assert torch.equal(keys[0, 5], k[1]) and torch.equal(values[0, 5], v[1])


@settings(max_examples=30, deadline=None)
@given(
    n_tokens=st.integers(0, 9),
    kv_heads=st.sampled_from([1, 2, 3]),
    head_dim=st.sampled_from([16, 20, 80]),
    block_size=st.sampled_from([1, 4, 16, 256]),
    integers=st.sampled_from([torch.int32, torch.int64]),
    half=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_write_kv_is_an_index_assignment(kernels, n_tokens, kv_heads, head_dim, block_size, integers, half, seed):
    chance = torch.Generator().manual_seed(seed)
    dtype = kernels.dtypes[half % len(kernels.dtypes)]
    n_blocks = -(-n_tokens // block_size) + 2
    arena = torch.full((2, n_blocks, 3, block_size, kv_heads, head_dim), -1.0, dtype=dtype, device=kernels.device)
    fused = torch.randn(n_tokens, 2, kv_heads, head_dim, generator=chance).to(dtype).to(kernels.device)
    k, v = fused.unbind(1)  # rows that do not follow one another
    slots = torch.randperm(n_blocks * block_size, generator=chance)[:n_tokens].to(kernels.device)
    wanted = arena.clone()
    for which, new in enumerate((k, v)):
        wanted[which, slots // block_size, 1, slots % block_size] = new
    kernels.write_kv(arena[0, :, 1], arena[1, :, 1], slots.to(integers), k, v)
    assert torch.equal(arena, wanted)  # the other layers and slots too


def test_written_keys_are_read_back(kernels):
    """Token by token through both kernels, as the engine does: the last row of a prefill is the decode of it."""
    case = build([20], [0], dtype=torch.float32, device=kernels.device, **SHAPE)
    q, keys, values, _, _, table = case.args
    whole = kernels.paged_attention(*case.args, tile_rows=16)
    keys, values = torch.full_like(keys, math.nan), torch.full_like(values, math.nan)
    table = table[:, :2]
    for position in range(20):
        slot = table[0, position // 16].long() * 16 + position % 16
        new = [own[0][position : position + 1].to(kernels.device) for own in (case.own_keys, case.own_values)]
        kernels.write_kv(keys, values, slot[None], *new)
        one = kernels.paged_attention(
            q[position : position + 1],
            keys,
            values,
            torch.tensor([0, 1], dtype=torch.int32, device=kernels.device),
            torch.tensor([position + 1], dtype=torch.int32, device=kernels.device),
            table,
        )
        assert (one[0] - whole[position]).abs().max() < 3e-6


def test_the_engines_torch_attention_says_the_same(kernels):
    from tinyengine.attention import paged_attention as oracle

    case = build([1, 40, 5, 1], [99, 0, 63, 0], dtype=torch.float32, device=kernels.device, **SHAPE)
    assert (kernels.paged_attention(*case.args) - oracle(*case.args)).abs().max() < 1e-5


@pytest.mark.cuda
def test_varlen_attn_says_the_same():
    from tinyengine.fast.kernels.cuda import paged, varlen

    if reason := varlen.why_not(torch.empty(256, 2, 64, dtype=torch.float16)):
        pytest.skip(reason)
    for dtype in (torch.float16, torch.bfloat16):
        case = build(
            [1, 300, 5, 1],
            [99, 0, 630, 256],
            heads=8,
            kv_heads=2,
            head_dim=64,
            block_size=256,
            dtype=dtype,
            device="cuda",
        )
        ours, theirs = (kernel.paged_attention(*case.args).double().cpu() for kernel in (paged, varlen))
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype]
        assert (theirs - definition(case)).abs().max() <= TOLERANCE[dtype]
