"""The definition of invariant attention is right, and what takes its place has its bits, or is near it."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinyengine.attention import KVCache, PagedAttention
from tinyengine.fast.invariant import InvariantByLoops, InvariantByTorch
from tinyengine.invariant.attention import InvariantAttention, one_query
from tinyengine.invariant.envelope import bits, random_rows
from tinyengine.memory import Blocks
from tinyengine.model.load import load_model
from tinyengine.qwen3 import Config
from tinyengine.request import Request
from tinyengine.verify.checks import cases
from tinyengine.verify.watch import Count, Scenario, Subject

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LOOPS = 2e-6  # how far the loops' outputs may be from the definition's, of values of size 1


def config(kv_heads: int, group: int, head_dim: int) -> Config:
    return Config(2, 2, 2, 1, kv_heads * group, kv_heads, head_dim, 1e-6, 1e4, 1024, True)


def serve(kind, shape, plans, block_size, dtype, spoil=()) -> tuple[list[torch.Tensor], KVCache]:
    """What an attention gives for each plan, a list with the new tokens of each request (0 leaves it out). spoil:
    (request, position, value) of keys and values that are filled with it. The arena is full of NaN before."""
    lengths = [sum(counts) for counts in zip(*plans)]
    rows = [random_rows(shape, n, seed, torch.device("cpu"), dtype) for seed, n in enumerate(lengths)]
    for index, place, value in spoil:
        for part in rows[index][1:]:
            part[place] = value
    memory = Blocks(sum(-(-n // block_size) for n in lengths) + 1, block_size)
    cache = KVCache(shape, memory.n_blocks, block_size, torch.device("cpu"), dtype)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    serving, requests = kind(cache), [Request(f"r{index}", [0] * n) for index, n in enumerate(lengths)]
    out = []
    for counts in plans:
        plan = [(request, n) for request, n in zip(requests, counts) if n]
        spans = [slice(request.computed, request.computed + n) for request, n in zip(requests, counts)]
        for request, n in plan:
            memory.grow(request, request.computed + n)
        batch = serving.layout(plan, memory, 0, torch.device("cpu"))
        q, k, v = (torch.cat([part[span] for part, span in zip(parts, spans)]) for parts in zip(*rows))
        out.append(serving(batch)(0, q, k, v))
        for request, n in plan:
            request.computed += n
    return out, cache


def plans(most: int):
    """Two to four iterations, each with the new tokens of one to four requests."""
    counts = st.one_of(st.integers(0, 9), st.integers(0, most), st.sampled_from([127, 128, 129]))
    return st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(counts, min_size=n, max_size=n).filter(any), min_size=2, max_size=4).filter(
            lambda plans: all(any(counts) for counts in zip(*plans))
        )
    )


@settings(max_examples=25, deadline=None)
@given(
    plans=plans(150),
    shape=st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([16, 32, 40, 128])),
    block_size=st.sampled_from([1, 4, 16, 128, 256]),
    dtype=st.sampled_from(DTYPES),
    spoil=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 200), st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e38])),
        max_size=2,
    ),
)
@example(plans=[[1, 256], [127, 3], [1, 1]], shape=(2, 2, 32), block_size=16, dtype=torch.float32, spoil=[])
@example(
    plans=[[140, 1], [1, 128], [1, 5]],
    shape=(2, 2, 32),
    block_size=16,
    dtype=torch.bfloat16,
    spoil=[(0, 128, -torch.inf)],
)
def test_many_queries_in_a_call_have_the_bits_of_the_definition(plans, shape, block_size, dtype, spoil):
    lengths = [sum(counts) for counts in zip(*plans)]
    spoil = [(index % len(lengths), place % lengths[index % len(lengths)], value) for index, place, value in spoil]
    with torch.inference_mode():
        (defined, one), (got, other) = (
            serve(kind, config(*shape), plans, block_size, dtype, spoil)
            for kind in (InvariantAttention, InvariantByTorch)
        )
    for number, (left, right) in enumerate(zip(defined, got)):
        assert torch.equal(bits(left), bits(right)), f"iteration {number}"
    written = ~one.keys.isnan()
    assert torch.equal(one.keys[written], other.keys[written])


@settings(max_examples=8, deadline=None)
@given(plans=plans(150), block_size=st.sampled_from([1, 16, 256]))
def test_loops_are_within_rounding_of_the_definition(plans, block_size):
    with torch.inference_mode():
        (defined, _), (got, _) = (
            serve(kind, config(2, 2, 32), plans, block_size, torch.float32)
            for kind in (InvariantAttention, InvariantByLoops)
        )
    for left, right in zip(defined, got):
        torch.testing.assert_close(right, left, atol=LOOPS, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_definition_is_attention(dtype):
    with torch.inference_mode():
        (got, _), (wanted, _) = (
            serve(kind, config(2, 2, 32), [[150, 3], [1, 130]], 16, dtype)
            for kind in (InvariantAttention, PagedAttention)
        )
    for left, right in zip(got, wanted):
        torch.testing.assert_close(left, right, atol=2e-6 if dtype == torch.float32 else 2e-2, rtol=1e-2)


def test_every_product_of_the_definition_has_one_shape(monkeypatch):
    shapes = set()

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function in (torch.Tensor.matmul, torch.Tensor.__matmul__, torch.matmul):
                shapes.add((tuple(args[0].shape), tuple(args[1].shape)))
            return function(*args, **(kwargs or {}))

    keys = torch.randn(2, 300, 2, 32)
    with Spy():
        for n in (1, 7, 128, 129, 300):
            one_query(torch.randn(4, 32), *keys[:, :n])
    assert shapes == {((2, 8, 32), (2, 32, 128)), ((2, 8, 128), (2, 128, 32))}


def test_a_key_behind_the_query_is_not_looked_at():
    q, (keys, values) = torch.randn(1, 4, 32), torch.randn(2, 9, 2, 32)
    wanted = one_query(q[0], keys[:5], values[:5])
    keys[5:], values[5:] = torch.nan, torch.inf
    assert torch.equal(one_query(q[0], keys[:5], values[:5]), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_whole_engine_has_the_same_bits_with_and_without_accelerations(dtype):
    """In float32 it has not: there the products are others as well."""
    model = load_model("tiny", device="cpu", dtype=dtype)
    fast, shown = (Subject(model, "invariant", fast=fast) for fast in (True, False))
    assert type(fast.engine(num_slots=64).attention) is InvariantByTorch
    own = cases(shown, (1, 17, 130, 5), arrivals=(0, 0, 1, 3))
    for options in ({}, {"max_num_batched_tokens": 37}, {"enable_prefix_caching": True, "num_speculative_tokens": 2}):
        scenario = Scenario(own, options)
        left, right, count = fast.run(scenario).seen, shown.run(scenario).seen, Count()
        for name in left:
            assert left[name].tokens == right[name].tokens
            for one, other in zip(left[name].logits + left[name].kv, right[name].logits + right[name].kv, strict=True):
                assert one[:-1] == other[:-1]
                count.compare(one[-1], other[-1])
        assert count.compared > 100_000 and count.holds


def test_float32_is_within_rounding_with_and_without_accelerations(tiny):
    scenario = Scenario(cases(Subject(tiny, "invariant"), (1, 17, 130, 5)), {"max_num_batched_tokens": 37})
    left, right = (Subject(tiny, "invariant", fast=fast).run(scenario) for fast in (True, False))
    for name in left.seen:
        assert left.seen[name].tokens == right.seen[name].tokens
        for (_, one), (_, other) in zip(left.seen[name].logits, right.seen[name].logits, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
