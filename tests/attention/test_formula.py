"""Attention against the formula, written out in float64; and the two kinds against each other."""

import random
from types import SimpleNamespace

import pytest
import torch
from helpers.formula import naive

from tinyengine.attention import KVCache, Padded, PerRequest, one_request
from tinyengine.memory import Slots
from tinyengine.request import Request, SamplingParams

HEADS, HEAD_DIM, N_SLOTS = 8, 16, 400


def random_rows(n, heads, generator):
    return torch.randn(n, heads, HEAD_DIM, generator=generator)


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("n", "length"), [(1, 1), (1, 2), (1, 37), (2, 2), (37, 37), (2, 37), (5, 6), (36, 37), (16, 80)]
)
def test_one_request_is_the_formula(group, n, length):
    generator = torch.Generator().manual_seed(n * 100 + length)
    q = random_rows(n, HEADS, generator)
    keys, values = (random_rows(length, HEADS // group, generator) for _ in range(2))
    got = one_request(q, keys, values)
    assert got.shape == q.shape and got.dtype == q.dtype
    torch.testing.assert_close(got.double(), naive(q, keys, values), atol=1e-5, rtol=1e-5)


def test_a_top_left_mask_is_far_from_the_formula():
    """The fault that the mask's alignment avoids is large, so the comparison above would see it."""
    generator = torch.Generator().manual_seed(0)
    q, keys, values = random_rows(5, 8, generator), random_rows(20, 2, generator), random_rows(20, 2, generator)
    wrong = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )[0].transpose(0, 1)
    assert (wrong - naive(q, keys, values)).abs().max() > 0.5


def mixed_plan(seed: int, contiguous: bool = True):
    """Prompts, decode steps and chunks behind older context side by side, in an arena with holes."""
    rng = random.Random(seed)
    memory, plan = Slots(N_SLOTS, contiguous), []
    for index in range(rng.randint(2, 6)):
        tokens, spare = rng.randint(1, 30), Request(f"gap{index}", [0] * rng.randint(1, 9))
        request = Request(f"r{index}", [rng.randrange(300) for _ in range(tokens)], SamplingParams(max_tokens=3))
        assert memory.reserve(spare) and memory.reserve(request)
        memory.release(spare)
        request.computed = rng.choice([0, tokens - 1, rng.randrange(tokens)])
        plan.append((request, rng.randint(1, request.gap) if rng.random() < 0.3 else request.gap))
    return plan, memory


def run(kind, plan, memory, extra_rows=0, poison=None, seed=0, group=4):
    """One layer's attention of a plan: each request's rows, apart, and the arena. Rows and context depend on request
    and position only, so that every layout gets the same numbers."""
    config = SimpleNamespace(num_hidden_layers=1, num_key_value_heads=HEADS // group, head_dim=HEAD_DIM)
    cache = KVCache(config, N_SLOTS, 1, torch.device("cpu"), torch.float32)
    if poison is not None:
        cache.keys[:], cache.values[:] = poison, poison
    streams = [
        [random_rows(request.max_slots, heads, torch.Generator().manual_seed(seed * 99 + index * 3 + part))
         for part, heads in enumerate((HEADS, HEADS // group, HEADS // group))]
        for index, (request, _) in enumerate(plan)
    ]  # fmt: skip
    attention = kind(cache)
    batch = attention.layout(plan, memory, len(plan) + extra_rows, torch.device("cpu"))
    rows = len(batch.tokens)
    q, k, v = (torch.full((rows, heads, HEAD_DIM), 7.0) for heads in (HEADS, HEADS // group, HEADS // group))
    places, real = [], (batch.real if batch.real is not None else torch.arange(rows)).tolist()
    for (request, count), (queries, keys, values) in zip(plan, streams, strict=True):
        own, real = real[:count], real[count:]
        places.append(own)
        past, now = request.computed, slice(request.computed, request.computed + count)
        q[own], k[own], v[own] = queries[now], keys[now], values[now]
        slots = list(memory.slots(request, 0, past))
        cache.write(0, torch.tensor(slots, dtype=torch.long), keys[:past], values[:past])
    out = attention(batch)(0, q, k, v)
    expected = [
        naive(queries[r.computed : r.computed + n], keys[: r.computed + n], values[: r.computed + n])
        for (r, n), (queries, keys, values) in zip(plan, streams, strict=True)
    ]
    return [out[own] for own in places], expected, cache


@pytest.mark.parametrize("kind", [Padded, PerRequest])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_each_request_of_a_mixed_batch_gets_its_own_attention(kind, contiguous, seed):
    plan, memory = mixed_plan(seed, contiguous)
    got, expected, _ = run(kind, plan, memory, extra_rows=seed % 3 if kind is Padded else 0, seed=seed)
    for rows, right in zip(got, expected, strict=True):
        torch.testing.assert_close(rows.double(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_padded_and_per_request_agree(seed):
    plan, memory = mixed_plan(seed + 100)
    padded, *_ = run(Padded, plan, memory, extra_rows=1)
    alone, *_ = run(PerRequest, plan, memory)
    for one, other in zip(padded, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [Padded, PerRequest])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_lies_in_foreign_slots_never_reaches_a_request(kind, poison):
    for seed in range(4):
        plan, memory = mixed_plan(seed)
        got, expected, _ = run(kind, plan, memory, extra_rows=2 if kind is Padded else 0, poison=poison)
        for rows, right in zip(got, expected, strict=True):
            torch.testing.assert_close(rows.double(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Padded, PerRequest])
def test_only_the_planned_slots_are_written(kind):
    """Padding rows, and the rows of requests that have ended, leave nothing in the arena."""
    plan, memory = mixed_plan(1)
    _, _, cache = run(kind, plan, memory, extra_rows=2 if kind is Padded else 0, poison=-5.0)
    filled = {slot for request, n in plan for slot in memory.slots(request, 0, request.computed + n)}
    untouched = torch.tensor([slot for slot in range(N_SLOTS) if slot not in filled])
    assert len(untouched) > 50
    assert all((what == -5).all() for what in cache.read(0, untouched))
