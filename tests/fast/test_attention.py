"""Every fast attention gives what the textbook's gives, out of the same arena, on batches of any shape."""

import random
from types import SimpleNamespace

import pytest
import torch
from helpers.batches import placed
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.attention import KVCache, Padded, PagedAttention, PerRequest
from tinyengine.batch import Batch
from tinyengine.batch import flat as textbook_flat
from tinyengine.fast.attention import ByLoops, ByTorch, ByTriton, FastPadded, side_by_side
from tinyengine.fast.batch import as_bytes, flat, flat_with_tables, from_bytes
from tinyengine.memory import Blocks, Slots

CPU = torch.device("cpu")
CONTEXTS = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 200, 300]))
REQUESTS = st.lists(st.tuples(CONTEXTS, st.one_of(st.just(1), st.integers(1, 12))), min_size=1, max_size=6)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([8, 16, 20]))  # kv_heads, group, head_dim


def plan_in_blocks(requests, block_size: int, seed: int):
    """Requests of (older context, new tokens), in scattered blocks; in a row where the seed is even."""
    rng, sizes = random.Random(seed), [-(-sum(one) // block_size) for one in requests]
    blocks = rng.sample(range(sum(sizes) + 3), sum(sizes) + 3) if seed % 2 else list(range(sum(sizes) + 3))
    plan = []
    for index, ((context, new), size) in enumerate(zip(requests, sizes)):
        table, blocks = blocks[:size], blocks[size:]
        plan.append((placed(f"r{index}", [7] * (context + new), table, context), new))
    return plan, Blocks(sum(sizes) + 3, block_size)


def plan_in_slots(requests, contiguous: bool):
    memory, plan = Slots(sum(map(sum, requests)) + 60 * len(requests), contiguous), []
    for index, (context, new) in enumerate(requests):
        request = placed(f"r{index}", [7] * (context + new), [], context)
        assert memory.reserve(request)
        plan.append((request, new))
    return plan, memory


def attend(kind, plan, memory, shape, dtype=torch.float32, seed=0):
    """One layer's attention of the plan's real rows, and the arena: NaN where no request has anything."""
    kv_heads, group, head_dim = shape
    config = SimpleNamespace(num_hidden_layers=2, num_key_value_heads=kv_heads, head_dim=head_dim)
    cache = KVCache(config, memory.n_slots // memory.block_size, memory.block_size, CPU, dtype)
    cache.keys[:], cache.values[:] = torch.nan, torch.nan
    chance = torch.Generator().manual_seed(seed)

    def rows(n: int, heads: int) -> torch.Tensor:
        return torch.randn(n, heads, head_dim, generator=chance).to(dtype)

    for request, _ in plan:
        older = torch.tensor(list(memory.slots(request, 0, request.computed)), dtype=torch.long)
        cache.write(1, older, rows(len(older), kv_heads), rows(len(older), kv_heads))
    attention = kind(cache)
    batch = attention.layout(plan, memory, len(plan), CPU)
    n = sum(batch.counts)
    real = torch.arange(n) if batch.real is None else batch.real
    q, k, v = (
        torch.zeros(len(batch.tokens), heads, head_dim, dtype=dtype) for heads in (kv_heads * group, *[kv_heads] * 2)
    )
    for x in (q, k, v):
        x[real] = rows(n, x.shape[1])
    return attention(batch)(1, q, k, v)[real], cache


def compare(kind, textbook, plan, memory, shape, tolerance=1e-5, **options):
    got, cache = attend(kind, plan, memory, shape, **options)
    wanted, right = attend(textbook, plan, memory, shape, **options)
    torch.testing.assert_close(got.double(), wanted.double(), atol=tolerance, rtol=tolerance)
    for mine, other in ((cache.keys, right.keys), (cache.values, right.values)):
        assert torch.equal(mine.isnan(), other.isnan()) and torch.equal(mine.nan_to_num(), other.nan_to_num())


@pytest.fixture(scope="module", params=[ByLoops, ByTorch])
def kind(request):
    if reason := request.param.why_not(torch.empty(1, 1, 1, 1, 8)):
        pytest.skip(reason)
    return request.param


@settings(deadline=None, max_examples=60)
@given(REQUESTS, SHAPES, st.sampled_from([1, 4, 16, 64, 256]), st.integers(0, 99))
def test_over_blocks_it_is_paged_attention(kind, requests, shape, block_size, seed):
    compare(kind, PagedAttention, *plan_in_blocks(requests, block_size, seed), shape, seed=seed)


@settings(deadline=None, max_examples=40)
@given(REQUESTS, SHAPES, st.booleans(), st.integers(0, 99))
def test_over_slots_it_is_request_by_request(kind, requests, shape, contiguous, seed):
    compare(kind, PerRequest, *plan_in_slots(requests, contiguous), shape, seed=seed)


@settings(deadline=None, max_examples=20)
@given(REQUESTS, SHAPES, st.integers(0, 99))
def test_in_bfloat16_as_well(requests, shape, seed):
    compare(ByTorch, PagedAttention, *plan_in_blocks(requests, 16, seed), shape, 0.05, dtype=torch.bfloat16, seed=seed)


@settings(deadline=None, max_examples=15)
@given(REQUESTS, SHAPES, st.integers(0, 99))
def test_over_a_rectangle_it_is_padded_attention(requests, shape, seed):
    compare(FastPadded, Padded, *plan_in_slots(requests, True), shape, seed=seed)


def test_the_triton_kernel_in_its_class(interpreted, monkeypatch):
    from tinyengine.fast.kernels.cuda import paged

    for name in ("paged_attention", "write_kv", "check_arena"):
        monkeypatch.setattr(paged, name, getattr(interpreted, name))
    monkeypatch.setattr("tinyengine.fast.attention._multiprocessors", lambda device: 132)
    for requests in ([(9, 1), (0, 5), (40, 3)], [(300, 1), (17, 1)]):  # the second one is split
        compare(ByTriton, PagedAttention, *plan_in_blocks(requests, 16, 1), (2, 2, 16))


@settings(deadline=None, max_examples=40)
@given(REQUESTS, st.sampled_from([1, 4, 16]), st.integers(0, 99))
def test_a_batch_is_laid_out_as_in_the_textbook(requests, block_size, seed):
    for plan, memory in (
        plan_in_blocks(requests, block_size, seed),
        plan_in_slots(requests, True),
        plan_in_slots(requests, False),
    ):
        if seed % 3 and plan[0][1] > 1:  # some of its newest tokens are guesses
            plan[0][0].guesses = plan[0][1] - 1
        if len(plan) > 1 and plan[1][1] > 1:  # a chunk that leaves a rest
            plan[1] = plan[1][0], plan[1][1] - 1
        right = textbook_flat(plan, memory, 0, CPU)
        for layout in (flat, flat_with_tables):
            same(layout(plan, memory, 0, CPU), right)


def same(batch: Batch, right: Batch):
    for name in ("tokens", "positions", "slot_mapping", "last", "cu_seqlens_q", "seqused_k"):
        mine, other = getattr(batch, name), getattr(right, name)
        assert mine.dtype == other.dtype and torch.equal(mine, other), name
    assert batch.block_table.shape == right.block_table.shape and batch.block_table.dtype == torch.int32
    for row, other, table in zip(batch.block_table, right.block_table, right.tables):
        assert torch.equal(row[: len(table)], other[: len(table)])
    for name in ("plan", "real", "counts", "lengths", "block_size", "wanted", "padding", "starts"):
        assert getattr(batch, name) == getattr(right, name), name


def test_numbers_of_two_sizes_travel_as_one_piece():
    tensors = [torch.tensor([1, -2, 2**62]), torch.tensor([7], dtype=torch.int32), torch.ones(3, 2, dtype=torch.int32)]
    whole = as_bytes(tensors)
    assert whole.dtype == torch.uint8 and whole.ndim == 1
    for mine, other in zip(from_bytes(whole, tensors), tensors, strict=True):
        assert mine.dtype == other.dtype and torch.equal(mine, other)


def test_decodes_of_nearly_one_length_share_a_call():
    assert side_by_side([1, 1, 1], [16, 17, 32], 16) == [[0, 1, 2]]  # 1, 2 and 2 blocks
    assert side_by_side([1, 5, 1, 1], [160, 9, 161, 500], 16) == [[1], [0, 2], [3]]
    assert side_by_side([1] * 3, [800, 900, 1000], 1) == [[0, 1], [2]]  # within an eighth
