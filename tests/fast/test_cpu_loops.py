"""The compiled loops against torch's operators and the definition of attention, over an arena whose free slots are
poisoned; and that no bit of a row depends on its neighbours, its place or the size of blocks."""

import math
import subprocess
import sys
from types import ModuleType

import numba
import numpy as np
import pytest
import torch
from helpers.kernels import build, definition
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine import Engine
from tinyengine.attention import PagedAttention
from tinyengine.fast import choose
from tinyengine.fast.attention import ByLoops, ByTorch
from tinyengine.fast.kernels import cpu
from tinyengine.fast.operators import LoopOperators
from tinyengine.operators import TORCH
from tinyengine.qwen3 import RMSNorm

loops = pytest.importorskip("tinyengine.fast.kernels.cpu.loops", reason="numba is not installed: pip install numba")

SHAPE = dict(heads=4, kv_heads=2, head_dim=16, block_size=16, device="cpu")


def attend(case, most_queries: int = loops.ALL, fill: float = 7.0) -> torch.Tensor:
    q, keys, values, *where = case.args
    out = torch.full_like(q, fill)
    keys, values = keys.contiguous(), values.contiguous()  # as a layer of an engine's arena is
    return loops.paged_attention(q, keys, values, *where, most_queries=most_queries, out=out)


LENGTHS = st.one_of(st.integers(0, 20), st.sampled_from([31, 32, 33, 63, 64, 65, 255, 256, 257, 700]))
REQUESTS = st.lists(st.tuples(st.one_of(st.just(1), st.integers(1, 40)), LENGTHS), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(
    requests=REQUESTS,
    group=st.sampled_from([1, 2, 4, 7]),
    kv_heads=st.sampled_from([1, 2, 3]),
    head_dim=st.sampled_from([1, 16, 20, 32, 64, 100, 128]),
    block_size=st.sampled_from([1, 4, 16, 32, 256]),
    seed=st.integers(0, 99),
    poison=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_attention_is_its_definition(requests, group, kv_heads, head_dim, block_size, seed, poison):
    counts, contexts = map(list, zip(*requests))
    shape = dict(heads=group * kv_heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, device="cpu")
    case = build(counts, contexts, dtype=torch.float32, seed=seed, poison=poison, **shape)
    assert (attend(case).double() - definition(case)).abs().max() <= 3e-6  # NaN compares as False


def test_requests_with_many_new_tokens_are_left_alone():
    case = build([3, 5, 1], [9, 0, 4], dtype=torch.float32, **SHAPE)
    out = attend(case, most_queries=4)
    assert (out[3:8] == 7).all() and not (out[:3] == 7).any() and not (out[8:] == 7).any()
    assert (attend(build([5], [0], dtype=torch.float32, **SHAPE), most_queries=4) == 7).all()


@pytest.mark.parametrize("block_size", [1, 4, 64, 256])
@pytest.mark.parametrize("order", ["in a row", "backwards"])
def test_no_bit_depends_on_blocks_neighbours_or_chunks(block_size, order):
    """The 40 queries of a prompt at once, between others, and the same positions one by one, alone."""
    text = build([40], [0], dtype=torch.float32, seed=3, **SHAPE)
    q, keys, values, _, _, table = text.args
    blocks = table[0, :3].long()
    k, v = (arena[blocks].flatten(0, 1)[:40] for arena in (keys, values))
    whole = attend(text)
    rng = torch.Generator().manual_seed(0)
    for position in (0, 1, 15, 16, 17, 31, 32, 39):
        others = torch.randn(2, 4, 16, generator=rng)
        n = -(-40 // block_size)
        own = torch.arange(n, 2 * n) if order == "in a row" else torch.arange(n, 2 * n).flip(0)
        arena = [torch.full((3 * n, block_size, 2, 16), math.nan) for _ in range(2)]
        slots = (own[:, None] * block_size + torch.arange(block_size)).flatten()[: position + 1]
        for target, source in zip(arena, (k, v)):
            target.view(-1, 2, 16)[slots] = source[: position + 1]
            target[0] = torch.randn(block_size, 2, 16, generator=rng)
        table = torch.zeros(3, n, dtype=torch.int32)
        table[1] = own
        starts, lengths = (torch.tensor(n, dtype=torch.int32) for n in ([0, 1, 2, 3], [1, position + 1, 1]))
        mixed = torch.stack([others[0], q[position], others[1]])
        assert torch.equal(loops.paged_attention(mixed, *arena, starts, lengths, table)[1], whole[position])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 3)]),
    head_dim=st.sampled_from([2, 8, 20, 64]),
    size=st.sampled_from([1, 7, 16, 100]),
    seed=st.integers(0, 99),
)
def test_row_wise_operators_are_those_of_torch(rows, heads, head_dim, size, seed):
    rng = torch.Generator().manual_seed(seed)
    x, gate_up = torch.randn(rows, size, generator=rng), 30 * torch.randn(rows, 2 * size, generator=rng)
    weight = torch.nn.Parameter(torch.randn(size, generator=rng))
    counts = [heads[0], heads[1], heads[1]]
    qkv = torch.randn(rows, sum(counts), head_dim, generator=rng)
    norms = RMSNorm(head_dim, 1e-6), RMSNorm(head_dim, 1e-6)
    angle = torch.randn(rows, 1, head_dim // 2, generator=rng).repeat(1, 1, 2)
    rope = angle.cos(), angle.sin()
    with torch.inference_mode():
        for norm in norms:
            norm.weight.normal_(generator=rng)
        compare = [
            (loops.rms_norm(x, weight, 1e-6), TORCH.rms_norm(x, weight, 1e-6)),
            (loops.swiglu(gate_up), TORCH.swiglu(gate_up)),
            *zip(*(each.split_normalise_rotate(qkv, counts, norms, rope) for each in (loops, TORCH))),
        ]
    for ours, theirs in compare:
        assert ours.shape == theirs.shape and ours.is_contiguous()
        torch.testing.assert_close(ours, theirs, atol=3e-6, rtol=3e-6)


def test_exp_is_right_to_the_last_bits_and_lets_nan_through():
    gates = torch.cat([torch.linspace(-80, 80, 20001), torch.tensor([math.nan, 200.0, -200.0, math.inf])])
    ours = loops.swiglu(torch.cat([gates, torch.ones_like(gates)])[None])[0].double()
    right = torch.nn.functional.silu(gates.double())
    assert ((ours / right - 1)[:20001].abs().nan_to_num() < 5e-7).all()
    assert ours[-4].isnan() and ours[-3] == 200 and abs(ours[-2]) < 1e-30 and ours[-1] == math.inf


def test_a_row_of_nan_stays_in_its_row():
    case = build([1, 1, 1], [5, 9, 40], dtype=torch.float32, **SHAPE)
    right = attend(case)
    case.args[0][1] = math.nan
    out = attend(case)
    assert out[1].isnan().all() and torch.equal(out[[0, 2]], right[[0, 2]])


def test_k_and_v_are_written_to_their_slots_and_nowhere_else():
    keys, values = torch.zeros(2, 3, 3, 2, 4)
    k, v = torch.randn(2, 3, 2, 4)
    slots = torch.tensor([7, 0, 3])
    loops.write_kv(keys, values, slots, k, v)
    for arena, new in ((keys.flatten(0, 1), k), (values.flatten(0, 1), v)):
        assert torch.equal(arena[slots], new) and not arena[[1, 2, 4, 5, 6, 8]].any()


@pytest.mark.parametrize("slot", [9, 10**9, -1, -10])
def test_no_slot_outside_of_the_arena_is_written(slot):
    keys, values = torch.zeros(2, 3, 3, 2, 4)
    with pytest.raises(IndexError, match=f"from slot {min(slot, 3)} to {max(slot, 3)}, but the arena has slots 0 to 8"):
        loops.write_kv(keys, values, torch.tensor([3, slot]), *torch.ones(2, 2, 2, 4))


@pytest.mark.parametrize("n", [1, 3])
def test_every_new_token_has_its_slot(n):
    keys, values = torch.zeros(2, 3, 3, 2, 4)
    with pytest.raises(IndexError, match=f"slot_mapping has {n} slots for 2 new tokens: look at `slots`"):
        loops.write_kv(keys, values, torch.arange(n), *torch.ones(2, 2, 2, 4))


@pytest.mark.parametrize("block", [4, 10**9, -1])
def test_no_block_outside_of_the_arena_is_read(block):
    q, (keys, values) = torch.zeros(1, 2, 4), torch.zeros(2, 4, 3, 2, 4)

    def attend_over(table, length):
        numbers = [0, 1], [length], [table]
        loops.paged_attention(q, keys, values, *(torch.tensor(own, dtype=torch.int32) for own in numbers))

    attend_over([3, block], 3)  # entries behind the context are not read
    places = f"in 2 blocks of 3 slots, of which a request's `table` names {min(block, 3)} to {max(block, 3)}, but"
    with pytest.raises(IndexError, match=f"contexts of up to 4 keys are looked for {places}"):
        attend_over([3, block], 4)
    with pytest.raises(IndexError, match=r"4 keys .* in 1 blocks of 3 slots, .*, but the arena has blocks 0 to 3"):
        attend_over([3], 4)


def test_queries_that_there_are_not_are_an_error():
    case = build([2, 1], [3, 5], dtype=torch.float32, **SHAPE)
    q, keys, values, *where = case.args
    for changed in ((q[:2], *where), (q, where[0][:2], *where[1:]), (q, *where[:2], where[2][:1])):
        with pytest.raises(IndexError):
            loops.paged_attention(changed[0], keys.contiguous(), values.contiguous(), *changed[1:])


@pytest.mark.parametrize("stage", ["selective", "paged", "chunked", "invariant"])
def test_a_memory_that_gives_foreign_slots_is_an_error_and_no_crash(random_model, stage):
    engine = Engine(random_model, stage, num_slots=64)
    right = engine.memory.slots
    engine.memory.slots = lambda *span: [slot + 64 for slot in right(*span)]
    with pytest.raises(IndexError, match="the arena has slots 0 to 63: look at `slots` of the scheduler's memory"):
        engine.generate([1, 2, 3])


def test_what_is_compiled_need_not_be_kept():
    """As in a folder that may not be written, for a user without a home: numba finds no place for its results."""
    code = (
        "from numba.core import caching; caching.CacheImpl._locator_classes = [];"
        "from tinyengine.fast.kernels.cpu import loops; import torch; x = torch.ones(2, 8);"
        "assert not loops._rms_norm.stats.cache_path; print(loops.rms_norm(x, x[0], 0.0).sum().item())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "16.0\n", run.stderr


def test_a_numba_that_cannot_be_used_is_done_without(random_model, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert Engine(random_model, num_slots=64).attention.backend == "torch"
    with pytest.raises(ValueError, match="numba compiles nothing while NUMBA_DISABLE_JIT is set: unset it"):
        Engine(random_model, num_slots=64, attention_backend="numba")
    broken = ModuleType("numba")  # nothing can be imported from it
    broken.__spec__ = numba.__spec__
    monkeypatch.setitem(sys.modules, "numba", broken)
    assert Engine(random_model, num_slots=64).attention.backend == "torch"
    with pytest.raises(ValueError, match=r"numba cannot be imported \(.*\): pip install --upgrade numba"):
        Engine(random_model, num_slots=64, attention_backend="numba")


def test_the_engine_uses_the_loops_where_it_can_and_does_without(random_model, monkeypatch):
    engine = Engine(random_model, num_slots=64)
    assert engine.attention.backend == "numba" and isinstance(engine.operators, LoopOperators)
    assert Engine(random_model, num_slots=64, attention_backend="torch").attention.backend == "torch"

    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    without = Engine(random_model, num_slots=64)
    assert without.attention.backend == "torch" and without.operators is TORCH
    prompts = [[1, 2, 3], [4] * 20]
    assert [o.token_ids for o in without.generate(prompts)] == [o.token_ids for o in engine.generate(prompts)]
    with pytest.raises(ValueError, match="attention_backend is 'numba', but numba is not installed: pip install numba"):
        Engine(random_model, num_slots=64, attention_backend="numba")


def test_bfloat16_is_left_to_torch():
    arena = torch.empty(1, 4, 1, 2, 16, dtype=torch.bfloat16)
    assert choose(PagedAttention, arena, "auto") is ByTorch
    assert choose(PagedAttention, arena.float(), "auto") is ByLoops
    with pytest.raises(ValueError, match=r"bfloat16, and the loops take float32: use attention_backend='torch'"):
        choose(PagedAttention, arena, "numba")


def test_the_pure_python_of_a_loop_says_the_same():
    """What a reader reads is what runs."""
    case = build([2, 1], [3, 5], dtype=torch.float32, **{**SHAPE, "head_dim": 4})
    q, keys, values, *where = (part.contiguous().numpy() for part in case.args)
    out = np.empty_like(q)
    loops._paged_attention.py_func(q, keys, values, *where, loops.ALL, out)
    assert np.abs(out - definition(case).numpy()).max() < 3e-6
