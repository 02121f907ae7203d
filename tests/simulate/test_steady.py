"""What is set aside and taken back is as if it had been stepped."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.extras import compose
from tinyengine.memory import Blocks
from tinyengine.priority import Prioritised
from tinyengine.scheduler import Chunked
from tinyengine.simulate.executor import SimulatedRequest
from tinyengine.simulate.steady import Steady
from tinyengine.simulate.stretch import repeats
from tinyengine.workload import Job


def decoding(policy: str, blocks: int = 60) -> Chunked:
    """Five requests with their first token, got at time 1; the first in the batch came last, where priority counts."""
    kind = compose(Prioritised, Chunked)
    scheduler = kind(Blocks(blocks, 4), max_num_seqs=5, max_num_batched_tokens=40, policy=policy)
    for index in range(5):
        scheduler.add(SimulatedRequest(f"r{index}", Job(0.0, 3 + index, 9 + 5 * index, priority=-index), index))
    step(scheduler, 1.0)
    return scheduler


def step(scheduler: Chunked, now: float):
    plan = scheduler.schedule()
    for request, _, _ in scheduler.commit(plan, [0] * len(plan)):
        request.worst_gap = max(request.worst_gap, now - request.last) if request.first is not None else 0.0
        request.first, request.last = request.first or now, now


def state(scheduler: Chunked) -> list:
    return [
        (request.request_id, len(request.tokens), request.computed, len(request.table), request.last, request.worst_gap)
        for request in scheduler.running
    ]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@given(gaps=st.lists(st.integers(1, 9), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_who_is_taken_back_is_as_if_it_had_been_stepped(policy, gaps):
    stepped, lazy = decoding(policy), decoding(policy)
    steady = Steady(lazy, enabled=True)
    for request in lazy.running:
        steady.meet(request)
    now = 1.0
    for gap in gaps:
        steady.exchange(now)
        needed = {request.request_id: lazy.memory.blocks(len(request.tokens)) for request in stepped.running}
        batch = {request.request_id for request in lazy.running}
        aside = [request for key, request in lazy.memory.holders.items() if key not in batch]
        assert len(aside) == steady.size
        assert sum(needed[request.request_id] - len(request.table) for request in aside) <= steady.owed
        assert steady.contexts == sum(len(r.tokens) for r in stepped.running if r.request_id not in batch)
        now += gap
        step(stepped, now)
        step(lazy, now)  # those of the batch
        steady.advance(1, float(gap))
    assert steady.size + len(lazy.running) == len(stepped.running)
    thief = SimulatedRequest("thief", Job(0.0, 4 * (len(lazy.memory.free) - steady.owed), 1))
    assert lazy.memory.admit(thief) and lazy.memory.grow(thief, thief.num_prompt_tokens)
    steady.exchange(now)  # blocks are short, so everybody is back
    assert steady.size == steady.contexts == steady.owed == 0
    assert state(lazy) == state(stepped)


@pytest.mark.parametrize(("left", "aside"), [(10 + 5 + 9, 5), (10 + 5 + 8, 0)])
def test_what_an_iteration_can_ask_for_stays_free(left, aside):
    """A budget of 40 tokens in blocks of 4, and one that each of 5 requests begins; the largest request takes 9."""
    scheduler = decoding("fcfs", blocks=8 + left)
    assert len(scheduler.memory.free) == left
    steady = Steady(scheduler, enabled=True)
    for request in scheduler.running:
        steady.meet(request)
    steady.exchange(1.0)
    assert steady.size == aside


def test_blocks_that_are_owed_are_not_free():
    scheduler = decoding("fcfs", blocks=8 + 10 + 5 + 9 + 7)
    steady = Steady(scheduler, enabled=True)
    for request in scheduler.running:
        steady.meet(request)
    for moment, aside in [(1.0, 5), (2.0, 5), (3.0, 5), (4.0, 0)]:  # by then they may lack 8: 3 * 5 / 4, and 5 begun
        steady.exchange(moment)
        assert steady.size == aside
        steady.advance(1, 1.0)


def test_a_stretch_leaves_what_is_owed():
    scheduler = decoding("fcfs", blocks=8 + 40)
    steady = Steady(scheduler, enabled=True)
    steady.exchange(1.0)
    assert (steady.size, steady.owed) == (5, 5)
    for times, most in [(20, 20), (40, 20), (28, 28), (29, 14)]:  # 35 blocks of 4 for 5 tokens an iteration
        assert repeats(scheduler, [], times, 0, steady) == most
