"""Attention over K/V in blocks against the formula."""

import random
from types import SimpleNamespace

import torch
from helpers.batches import placed
from helpers.formula import naive
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.attention import KVCache, Padded, PagedAttention, PerRequest, paged_attention
from tinyengine.batch import flat
from tinyengine.memory import Blocks

CPU = torch.device("cpu")
HEAD_DIM = 8


@st.composite
def layouts(draw):
    """(block size, kv heads, heads per kv head, [(older context, new tokens), ...], seed)"""
    shapes = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=5))
    block_size = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]))
    return block_size, draw(st.integers(1, 3)), draw(st.integers(1, 4)), shapes, draw(st.integers(0, 10**6))


def scattered(layout):
    """A plan whose tables are shuffled over an arena with blocks that no request holds."""
    block_size, _, _, shapes, seed = layout
    rng = random.Random(seed)
    sizes = [-(-(past + new) // block_size) for past, new in shapes]
    blocks = rng.sample(range(sum(sizes) + 3), sum(sizes) + 3)
    plan = []
    for index, ((past, new), size) in enumerate(zip(shapes, sizes)):
        table, blocks = blocks[:size], blocks[size:]
        plan.append((placed(f"r{index}", [0] * (past + new), table, past), new))
    return plan, Blocks(sum(sizes) + 3, block_size)


def compare(kind, layout, extra_rows: int = 0):
    """Every request's rows against the formula, in an arena that is NaN wherever no request has K/V."""
    _, kv_heads, group, _, seed = layout
    plan, memory = scattered(layout)
    generator = torch.Generator().manual_seed(seed)
    config = SimpleNamespace(num_hidden_layers=2, num_key_value_heads=kv_heads, head_dim=HEAD_DIM)
    cache = KVCache(config, memory.n_blocks, memory.block_size, CPU, torch.float32)
    cache.keys[:], cache.values[:] = torch.nan, torch.nan
    attention = kind(cache)
    batch = attention.layout(plan, memory, len(plan) + extra_rows, CPU)
    real = torch.arange(len(batch.tokens)) if batch.real is None else batch.real
    q, k, v = (
        torch.full((len(batch.tokens), heads, HEAD_DIM), 9.0) for heads in (kv_heads * group, kv_heads, kv_heads)
    )
    expected, offset = [], 0
    for request, count in plan:
        length, rows = request.computed + count, real[offset : offset + count]
        queries = torch.randn(count, kv_heads * group, HEAD_DIM, generator=generator)
        keys, values = (torch.randn(length, kv_heads, HEAD_DIM, generator=generator) for _ in range(2))
        q[rows], k[rows], v[rows] = queries, keys[request.computed :], values[request.computed :]
        past = torch.tensor(memory.slots(request, 0, request.computed), dtype=torch.long)
        cache.write(1, past, keys[: request.computed], values[: request.computed])
        expected.append(naive(queries, keys, values))
        offset += count
    attend = attention(batch)
    out = attend(1, q, k, v)[real]
    torch.testing.assert_close(out.double(), torch.cat(expected), atol=1e-5, rtol=1e-5)
    filled = sorted(slot for request, count in plan for slot in memory.slots(request, 0, request.computed + count))
    written = (~cache.keys[1].isnan()).flatten(0, 1).flatten(1).all(-1).nonzero().flatten().tolist()
    assert written == filled and cache.keys[0].isnan().all(), "K/V were written where they do not belong"
    return batch, cache, q, out


@given(layouts())
@settings(deadline=None, max_examples=80)
def test_paged_attention_is_the_formula_in_any_layout(layout):
    batch, cache, q, out = compare(PagedAttention, layout)
    keys, values = cache.keys[1], cache.values[1]
    assert keys.shape[1] == batch.block_size
    assert paged_attention(q, keys, values, batch.cu_seqlens_q, batch.seqused_k, batch.block_table).equal(out)


@given(layouts())
@settings(deadline=None, max_examples=40)
def test_attention_request_by_request_runs_over_blocks_as_well(layout):
    compare(PerRequest, layout)


@given(layouts(), st.integers(0, 2))
@settings(deadline=None, max_examples=40)
def test_attention_over_a_rectangle_runs_over_blocks_as_well(layout, extra_rows):
    compare(Padded, layout, extra_rows)


def test_two_requests_may_read_the_same_blocks():
    """The same older context, in the same two blocks: each sees it, and its own tokens behind it."""
    generator = torch.Generator().manual_seed(0)
    config = SimpleNamespace(num_hidden_layers=1, num_key_value_heads=2, head_dim=HEAD_DIM)
    cache = KVCache(config, 6, 4, CPU, torch.float32)
    cache.keys[:], cache.values[:] = torch.nan, torch.nan
    plan = [(placed("a", [0] * 9, [4, 1, 5], 8), 1), (placed("b", [0] * 11, [4, 1, 0], 8), 3)]
    old = [torch.randn(8, 2, HEAD_DIM, generator=generator) for _ in range(2)]
    cache.write(0, torch.tensor([*range(16, 20), *range(4, 8)]), *old)
    q = torch.randn(4, 4, HEAD_DIM, generator=generator)
    k, v = (torch.randn(4, 2, HEAD_DIM, generator=generator) for _ in range(2))
    batch = flat(plan, Blocks(6, 4), 2, CPU)
    out = PagedAttention(cache)(batch)(0, q, k, v)
    for rows in (slice(0, 1), slice(1, 4)):
        right = naive(q[rows], torch.cat([old[0], k[rows]]), torch.cat([old[1], v[rows]]))
        torch.testing.assert_close(out[rows].double(), right, atol=1e-5, rtol=1e-5)
