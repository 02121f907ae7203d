"""Slots: nothing leaks, nothing is shared, and external fragmentation is real."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinyengine.memory import Holding, Slots
from tinyengine.request import Request, SamplingParams

STEPS = settings(deadline=None, max_examples=60, stateful_step_count=30)


def request(name: str, size: int) -> Request:
    """A request that wants `size` slots."""
    return Request(name, [1] * (size - 1), SamplingParams(max_tokens=1))


def filled(n_slots: int, *sizes: int, contiguous: bool = True) -> tuple[Slots, list[Request]]:
    memory, requests = Slots(n_slots, contiguous), [request(f"r{n}", size) for n, size in enumerate(sizes)]
    assert all(memory.reserve(each) for each in requests)
    return memory, requests


class SlotsMachine(RuleBasedStateMachine):
    """Reserves and releases at random, beside a model that is nothing but a list of who owns each slot."""

    @initialize(n_slots=st.integers(2, 40), contiguous=st.booleans())
    def build(self, n_slots, contiguous):
        self.memory = Slots(n_slots, contiguous)
        self.owner: list[str | None] = [None] * n_slots
        self.held: list[Request] = []
        self.gone: list[Request] = []
        self.made = 0

    def first_fit(self, size: int) -> list[int] | None:
        free = [slot for slot, owner in enumerate(self.owner) if owner is None]
        if not self.memory.contiguous:
            return free[:size] if len(free) >= size else None
        for first in free:
            if all(slot < len(self.owner) and self.owner[slot] is None for slot in range(first, first + size)):
                return list(range(first, first + size))
        return None

    @rule(size=st.integers(2, 20))
    def reserve(self, size):
        one = request(f"r{self.made}", size)
        self.made += 1
        expected = self.first_fit(size)
        holes, holders = list(self.memory.holes), dict(self.memory.holders)
        assert self.memory.reserve(one) == (expected is not None)
        if expected is None:
            assert (self.memory.holes, self.memory.holders) == (holes, holders), "a refusal changed something"
            assert not one.table
            return
        assert list(one.table) == expected
        assert isinstance(one.table, range) == self.memory.contiguous
        for slot in expected:
            self.owner[slot] = one.request_id
        self.held.append(one)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        one = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.memory.release(one)
        self.owner = [None if owner == one.request_id else owner for owner in self.owner]
        self.gone.append(one)
        assert not one.table

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def release_again(self, data):
        self.memory.release(data.draw(st.sampled_from(self.gone)))

    @invariant()
    def nothing_leaked_or_shared(self):
        memory = self.memory
        memory.check()
        free = [slot for slot, owner in enumerate(self.owner) if owner is None]
        assert [slot for hole in memory.holes for slot in hole] == free
        assert all(left.stop < right.start for left, right in zip(memory.holes, memory.holes[1:], strict=False))
        assert memory.n_rsrv == sum(len(one.table) for one in self.held)
        assert list(memory.holders) == [one.request_id for one in self.held]
        assert {key: held.reserved for key, held in memory.holdings().items()} == {
            one.request_id: one.max_slots for one in self.held
        }


TestSlotsMachine = SlotsMachine.TestCase
TestSlotsMachine.settings = STEPS


@given(st.lists(st.integers(2, 12), min_size=1, max_size=30), st.booleans(), st.integers(0, 999))
@settings(deadline=None, max_examples=60)
def test_when_all_have_left_the_arena_is_one_hole_again(sizes, contiguous, seed):
    memory, held = Slots(60, contiguous), []
    for number, size in enumerate(sizes):
        one = request(f"r{number}", size)
        if memory.reserve(one):
            held.append(one)
    random.Random(seed).shuffle(held)
    for one in held:
        memory.release(one)
    assert memory.holes == [range(60)] and memory.n_rsrv == 0 and memory.holdings() == {}


def test_first_fit_takes_the_lowest_hole_that_is_large_enough():
    memory, (_, a, _, b, _) = filled(30, 4, 6, 2, 3, 5)
    memory.release(a)  # 4..10
    memory.release(b)  # 12..15
    small, large = request("small", 3), request("large", 7)
    assert memory.reserve(small) and small.table == range(4, 7)  # not the hole of 3 that it would fill exactly
    assert memory.reserve(large) and large.table == range(20, 27)
    memory.check()


def test_external_fragmentation_refuses_what_a_bare_counter_grants():
    for contiguous in (True, False):
        memory, requests = filled(12, 4, 4, 4, contiguous=contiguous)
        memory.release(requests[0])
        memory.release(requests[2])
        wanted = request("wanted", 6)
        assert memory.n_slots - memory.n_rsrv == 8, "enough are free in all"
        assert memory.reserve(wanted) == (not contiguous)
        if contiguous:
            assert not wanted.table and memory.holes == [range(0, 4), range(8, 12)]
        else:
            assert wanted.table == [0, 1, 2, 3, 8, 9]
            assert memory.holdings()["wanted"].ranges == ((0, 4), (8, 10))
        memory.check()


def test_holes_merge_with_both_neighbours():
    memory, (a, b, c) = filled(12, 4, 4, 4)
    memory.release(a)
    memory.release(c)
    assert memory.holes == [range(0, 4), range(8, 12)]
    memory.release(b)
    assert memory.holes == [range(12)]
    assert memory.reserve(request("whole", 12))


def test_an_arena_can_be_filled_to_the_last_slot_and_not_further():
    memory, (one,) = filled(5, 5)
    assert memory.n_rsrv == 5 and memory.holes == []
    assert not memory.reserve(request("late", 2))
    memory.release(one)
    assert memory.holes == [range(5)]


def test_release_is_idempotent():
    memory, (a, b) = filled(10, 4, 4)
    memory.release(a)
    memory.release(a)
    memory.release(request("never seen", 4))
    memory.check()
    assert memory.n_rsrv == 4 and list(memory.holders) == ["r1"] and b.table == range(4, 8)


def test_a_late_release_takes_nothing_from_the_next_holder():
    memory, (a,) = filled(4, 4)
    memory.release(a)
    following = request("r1", 4)
    assert memory.reserve(following)
    memory.release(a)
    memory.check()
    assert following.table == range(4) and memory.n_rsrv == 4


def test_releasing_a_namesake_takes_nothing_from_the_holder():
    memory, (held,) = filled(8, 4)
    memory.release(request("r0", 3))
    memory.check()
    assert held.table == range(4) and list(memory.holders) == ["r0"]


def test_can_ever_hold_speaks_of_the_arena_and_not_of_the_moment():
    memory, _ = filled(10, 10)
    assert memory.can_ever_hold(request("equal", 10)) and not memory.can_ever_hold(request("more", 11))


def test_slots_of_positions_are_looked_up_in_the_table():
    memory, (a, b, c) = filled(12, 4, 4, 4, contiguous=False)
    memory.release(a)
    memory.release(c)
    assert memory.reserve(wanted := request("wanted", 6))
    assert memory.slots(wanted, 3, 6) == [3, 8, 9]
    assert list(memory.slots(b, 1, 3)) == [5, 6]


def test_holdings_say_where_and_how_much_is_filled():
    memory, (a, _) = filled(12, 4, 5)
    a.computed = 3
    assert memory.holdings() == {"r0": Holding(((0, 4),), 3), "r1": Holding(((4, 9),), 0)}
    assert memory.holdings()["r1"].reserved == 5


@pytest.mark.parametrize("n_slots", [0, -1])
def test_an_arena_has_at_least_one_slot(n_slots):
    with pytest.raises(ValueError, match=f"n_slots is {n_slots}, but .* at least 1"):
        Slots(n_slots)


def leak_a_hole(memory, a, b):
    memory.holes.pop()


def leak_a_request(memory, a, b):
    del memory.holders["r0"]


def hold_twice(memory, a, b):
    b.table = range(3, 7)


def free_what_is_held(memory, a, b):
    memory.holes.insert(0, range(0, 2))


def give_a_table_away(memory, a, b):
    a.table = []


def run_past_the_end(memory, a, b):
    memory.holes[-1] = range(8, 13)


def compute_past_the_table(memory, a, b):
    a.computed = 5


def swap_a_slot_between_sizes(memory, a, b):
    a.table, b.table = range(0, 3), range(3, 8)


@pytest.mark.parametrize(
    "corrupt",
    [
        leak_a_hole,
        leak_a_request,
        hold_twice,
        free_what_is_held,
        give_a_table_away,
        run_past_the_end,
        compute_past_the_table,
        swap_a_slot_between_sizes,
    ],
)
def test_check_sees(corrupt):
    memory, (a, b) = filled(12, 4, 4)
    memory.check()
    corrupt(memory, a, b)
    with pytest.raises(AssertionError):
        memory.check()
