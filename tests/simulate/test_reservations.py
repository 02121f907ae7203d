"""The buddy allocator: powers of two by hand, and any order of events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Orca
from tinyengine.simulate import Job, Unit, simulate
from tinyengine.simulate.executor import new_trace
from tinyengine.simulate.reservations import SIZES, Reserved


def request(name: str, prompt: int, output: int) -> Request:
    return Request(name, [1] * prompt, SamplingParams(max_tokens=output, ignore_eos=True))


def test_the_papers_arena_holds_seven_of_the_longest():
    memory = Reserved(15_728, "max", 2048)
    assert sorted(len(hole) for hole in memory.holes) == [16, 32, 64, 256, 1024, 2048, 4096, 8192]
    held = [memory.reserve(request(f"r{n}", 10, 10)) for n in range(8)]
    assert held == [True] * 7 + [False]
    assert 1 - memory.n_rsrv / memory.n_slots == pytest.approx(0.089, abs=0.0005)


@pytest.mark.parametrize(("size", "piece"), [("max", 2048), ("pow2", 256), ("oracle", 128)])
def test_pieces(size, piece):
    """100 + 25 tokens: the longest; 100 + 32 in 256; 125 in 128."""
    assert Reserved(4096, size, 2048).piece(request("r", 100, 25)) == piece


def test_nothing_is_set_aside_past_the_longest_sequence():
    """100 + 1,025 tokens, an output that rounds up to 2,048: at most 2,048 are ever needed, so 4,096 are waste."""
    assert Reserved(8192, "pow2", 2048).piece(request("r", 100, 1025)) == 2048
    assert Reserved(8192, "pow2", 4096).piece(request("r", 100, 1025)) == 4096


def test_halves_are_cut_and_joined():
    memory = Reserved(64, "oracle", 64)
    small, other = request("a", 3, 5), request("b", 7, 9)
    assert memory.reserve(small) and small.table == range(0, 8)
    assert memory.holes == [range(8, 16), range(16, 32), range(32, 64)]
    assert memory.reserve(other) and other.table == range(16, 32)
    memory.release(small)
    assert memory.holes == [range(0, 16), range(32, 64)]
    memory.release(other)
    assert memory.holes == [range(0, 64)]


@pytest.mark.parametrize("size", SIZES)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60), st.integers(100, 400))
@settings(max_examples=60, deadline=None)
def test_any_order_of_events_leaves_the_arena_whole(size, events, n):
    memory = Reserved(n, size, 100)
    held = []
    for number, (prompt, output) in enumerate(events):
        if (prompt + output) % 3 == 0 and held:
            memory.release(held.pop(prompt % len(held)))
        else:
            new = request(f"r{number}", prompt, output)
            if not memory.can_ever_hold(new):
                continue
            before = memory.holes
            if memory.reserve(new):
                held.append(new)
            else:
                assert memory.holes == before and not any(len(hole) >= memory.piece(new) for hole in before)
        memory.check()
    for one in held:
        memory.release(one)
    assert memory.holes == Reserved(n, size, 100).holes


def test_what_can_never_fit_is_refused_when_it_is_added():
    scheduler = Orca(Reserved(100, "oracle", 100), 4)
    scheduler.add(request("fits", 30, 30))
    with pytest.raises(ValueError, match="70"):
        scheduler.add(request("in none of 64, 32 and 4", 40, 30))
    with pytest.raises(ValueError, match="size is 'min'"):
        Reserved(100, "min")
    with pytest.raises(ValueError, match="longest is 2048"):
        Reserved(100, "max")


@pytest.mark.parametrize("size", SIZES)
def test_every_reservation_runs_to_its_end(size):
    memory = Reserved(300, size, 64)
    scheduler = Orca(memory, 8)
    trace = new_trace(size, scheduler)
    report = simulate([Job(0.0, 1 + n % 30, 1 + n % 17) for n in range(50)], scheduler, Unit(), trace=trace)
    assert report.finished == 50 and memory.n_rsrv == 0
    memory.check()
    held = [holding for iteration in trace.iterations for holding in iteration.memory.values()]
    assert {holding.reserved for holding in held} <= {1 << order for order in range(7)}
