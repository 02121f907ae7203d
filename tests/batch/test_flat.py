"""The flat batch in the field's terms, worked by hand; and attention over K/V in blocks against the formula."""

import random
from types import SimpleNamespace

import pytest
import torch
from helpers.formula import naive
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.attention import KVCache, Padded, PagedAttention, PerRequest, in_blocks, paged_attention
from tinyengine.batch import flat, rectangle
from tinyengine.memory import Blocks, Slots
from tinyengine.request import Request, SamplingParams

CPU = torch.device("cpu")


def placed(name: str, tokens: list[int], table: list[int], computed: int, draft: list[int] | None = None) -> Request:
    request = Request(name, tokens, SamplingParams(max_tokens=50))
    request.table, request.computed, request.draft = table, computed, draft or []
    return request


def by_hand():
    """Blocks of 4: a whole prompt, a chunk behind older context, a decode step, a chunk that leaves a rest, and two
    guesses behind the newest token."""
    return [
        (placed("whole", [10, 11, 12, 13, 14], [7, 2], 0), 5),
        (placed("last chunk", [20, 21, 22, 23, 24, 25], [0, 9], 3), 3),
        (placed("decode", [30, 31, 32, 33], [5], 3), 1),
        (placed("first chunk", [40, 41, 42, 43, 44, 45, 46], [8, 1], 0), 2),
        (placed("guesses", [50, 51, 52], [3, 6], 2, [53, 54]), 3),
    ]


def test_a_flat_batch_by_hand():
    batch = flat(by_hand(), Blocks(10, 4), 99, CPU)
    assert batch.tokens.tolist() == [10, 11, 12, 13, 14, 23, 24, 25, 33, 40, 41, 52, 53, 54]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 3, 0, 1, 2, 3, 4]
    assert batch.slot_mapping.tolist() == [28, 29, 30, 31, 8, 3, 36, 37, 23, 32, 33, 14, 15, 24]
    assert batch.cu_seqlens_q.tolist() == [0, 5, 8, 9, 11, 14] and batch.counts == [5, 3, 1, 2, 3]
    assert batch.seqused_k.tolist() == batch.lengths == [5, 6, 4, 2, 5]
    # only as many blocks as the keys take: "first chunk" has two, and fills but one
    assert batch.block_table.tolist() == [[7, 2], [0, 9], [5, 0], [8, 0], [3, 6]]
    assert batch.last.tolist() == [4, 7, 8, 11, 12, 13]
    assert batch.due == [0, 1, 2, 4, 4, 4] and batch.guessed == [0, 0, 0, 0, 1, 2]
    assert [request.request_id for request in batch.due_requests] == ["whole", "last chunk", "decode", *["guesses"] * 3]
    assert batch.real is None and batch.padding == 0 and batch.block_size == 4
    for ints in (batch.cu_seqlens_q, batch.seqused_k, batch.block_table):
        assert ints.dtype == torch.int32
    for longs in (batch.tokens, batch.positions, batch.slot_mapping, batch.last):
        assert longs.dtype == torch.long


def test_a_rectangle_by_hand():
    batch = rectangle(by_hand()[1:], Blocks(10, 4), 5, CPU)
    assert batch.tokens.view(5, 3).tolist() == [[23, 24, 25], [33, 0, 0], [40, 41, 0], [52, 53, 54], [0, 0, 0]]
    assert batch.positions.view(5, 3).tolist() == [[3, 4, 5], [3, 0, 0], [0, 1, 0], [2, 3, 4], [0, 0, 0]]
    assert batch.real.tolist() == [0, 1, 2, 3, 6, 7, 9, 10, 11] and batch.padding == 6
    assert batch.slot_mapping.tolist() == [3, 36, 37, 23, 32, 33, 14, 15, 24]
    assert batch.last.tolist() == [2, 3, 9, 10, 11] and batch.due == [0, 1, 3, 3, 3]
    assert batch.guessed == [0, 0, 0, 1, 2]


def test_a_batch_of_first_chunks_owes_nobody_a_token():
    batch = flat(by_hand()[3:4], Blocks(10, 4), 1, CPU)
    assert batch.due == batch.guessed == batch.last.tolist() == [] and batch.per_plan([]) == [None]


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [([53, 54, 9], [53, 54, 9]), ([53, 8, 9], [53, 8]), ([7, 8, 9], [7])],
)
def test_chosen_tokens_go_back_to_their_requests(chosen, kept):
    batch = flat(by_hand(), Blocks(10, 4), 5, CPU)
    assert batch.per_plan([1, 2, 3, *chosen]) == [1, 2, 3, None, kept]


@pytest.mark.parametrize("index", range(5))
def test_the_slots_of_a_request_are_those_of_its_positions(index):
    memory, plan = Blocks(10, 4), by_hand()
    batch = flat(plan, memory, 5, CPU)
    assert batch.slots(index).tolist() == memory.slots(plan[index][0], 0, batch.lengths[index])


def test_slots_in_one_piece_are_a_slice():
    memory, request = Slots(20), Request("r", [1, 2, 3], SamplingParams(max_tokens=2))
    memory.reserve(Request("before", [1], SamplingParams(max_tokens=3)))
    memory.reserve(request)
    batch = flat([(request, 3)], memory, 1, CPU)
    assert batch.slots(0) == slice(4, 7) and batch.slot_mapping.tolist() == [4, 5, 6]
    assert batch.block_table.tolist() == [[4, 5, 6]] and batch.block_size == 1


# attention over blocks

HEAD_DIM = 8


@st.composite
def layouts(draw):
    """(block size, kv heads, heads per kv head, [(older context, new tokens), ...], seed)"""
    shapes = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=5))
    block_size = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]))
    return block_size, draw(st.integers(1, 3)), draw(st.integers(1, 4)), shapes, draw(st.integers(0, 10**6))


def scattered(layout):
    """A plan whose tables are shuffled over an arena with blocks that nobody holds."""
    block_size, _, _, shapes, seed = layout
    rng = random.Random(seed)
    sizes = [-(-(past + new) // block_size) for past, new in shapes]
    blocks = rng.sample(range(sum(sizes) + 3), sum(sizes) + 3)
    plan = []
    for index, ((past, new), size) in enumerate(zip(shapes, sizes)):
        table, blocks = blocks[:size], blocks[size:]
        plan.append((placed(f"r{index}", [0] * (past + new), table, past), new))
    return plan, Blocks(sum(sizes) + 3, block_size)


def compare(backend, layout, extra_rows: int = 0):
    """Every request's rows against the formula, in an arena that is NaN wherever no request has K/V."""
    _, kv_heads, group, _, seed = layout
    plan, memory = scattered(layout)
    generator = torch.Generator().manual_seed(seed)
    config = SimpleNamespace(num_hidden_layers=2, num_key_value_heads=kv_heads, head_dim=HEAD_DIM)
    cache = KVCache(config, memory.n_slots, CPU, torch.float32)
    cache.keys[:], cache.values[:] = torch.nan, torch.nan
    attention = backend(cache)
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
        past = memory.slots(request, 0, request.computed)
        cache.keys[1, past], cache.values[1, past] = keys[: request.computed], values[: request.computed]
        expected.append(naive(queries, keys, values))
        offset += count
    attend = attention(batch)
    out = attend(1, q, k, v)[real]
    torch.testing.assert_close(out.double(), torch.cat(expected), atol=1e-5, rtol=1e-5)
    filled = sorted(slot for request, count in plan for slot in memory.slots(request, 0, request.computed + count))
    written = (~cache.keys[1].isnan()).flatten(1).all(-1).nonzero().flatten().tolist()
    assert written == filled and cache.keys[0].isnan().all(), "K/V were written where they do not belong"
    return batch, cache, q, out


@given(layouts())
@settings(deadline=None, max_examples=80)
def test_paged_attention_is_the_formula_in_any_layout(layout):
    batch, cache, q, out = compare(PagedAttention, layout)
    keys, values = (in_blocks(arena[1], batch.block_size) for arena in (cache.keys, cache.values))
    assert keys.shape[1] == batch.block_size and keys.data_ptr() == cache.keys[1].data_ptr()
    again = paged_attention(q, keys, values, batch.cu_seqlens_q, batch.seqused_k, batch.block_table)
    torch.testing.assert_close(again, out, atol=1e-5, rtol=1e-5)


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
    cache = KVCache(config, 24, CPU, torch.float32)
    cache.keys[:], cache.values[:] = torch.nan, torch.nan
    plan = [(placed("a", [0] * 9, [4, 1, 5], 8), 1), (placed("b", [0] * 11, [4, 1, 0], 8), 3)]
    old = [torch.randn(8, 2, HEAD_DIM, generator=generator) for _ in range(2)]
    slots = [*range(16, 20), *range(4, 8)]
    cache.keys[0, slots], cache.values[0, slots] = old
    q = torch.randn(4, 4, HEAD_DIM, generator=generator)
    k, v = (torch.randn(4, 2, HEAD_DIM, generator=generator) for _ in range(2))
    batch = flat(plan, Blocks(6, 4), 2, CPU)
    out = PagedAttention(cache)(batch)(0, q, k, v)
    for rows in (slice(0, 1), slice(1, 4)):
        right = naive(q[rows], torch.cat([old[0], k[rows]]), torch.cat([old[1], v[rows]]))
        torch.testing.assert_close(out[rows].double(), right, atol=1e-5, rtol=1e-5)
