"""Static and Orca, run by a driver loop without a model: published counts, and what must hold in every run."""

import json
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinyengine.clock import IterationClock
from tinyengine.memory import Blocks, Slots
from tinyengine.metrics import measure
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Chunked, Orca, Paged, Scheduler, Static
from tinyengine.trace import Trace
from tinyengine.workload import workload

DUMMY = 7
FOUR = [(128, 500), (64, 50), (256, 200), (32, 30)]


def make(number: int, prompt: int, output: int) -> Request:
    return Request(f"r{number}", [1] * prompt, SamplingParams(max_tokens=output, ignore_eos=True))


def from_workload(name: str) -> list[Request]:
    return [Request(f"r{n}", item.prompt, item.params, item.arrival) for n, item in enumerate(workload(name).items)]


def run(scheduler: Scheduler, requests: list[Request]) -> Trace:
    """The engine's loop with a dummy for a model: every request that is due gets the same token."""
    clock, trace = IterationClock(), Trace.of("test", scheduler)
    for request in requests:
        scheduler.add(request)
        trace.arrive(request)
    while plan := scheduler.schedule():
        tokens = [DUMMY if n_tokens == request.gap else None for request, n_tokens in plan]
        started = clock.now()
        clock.iteration_done()
        trace.record(plan, tokens, scheduler.memory, time=started, duration=clock.now() - started)
        for request, _, reason in scheduler.commit(plan, tokens):
            if reason:
                trace.event("finish", request.request_id, reason)
    assert not scheduler.has_unfinished()
    return trace


# published counts


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(("name", "static", "orca"), [("short_long_mix", 1024, 672), ("equal_size", 1024, 1024)])
def test_iteration_counts_as_tinyorca_publishes_them(name, static, orca, contiguous):
    load = workload(name)
    assert load.max_num_seqs == 2 and len(load.items) == 16
    for make_scheduler, expected in ((Static, static), (Orca, orca)):
        scheduler = make_scheduler(Slots(load.num_slots, contiguous), load.max_num_seqs)
        trace = run(scheduler, from_workload(name))
        numbers = measure(trace)
        assert len(trace.iterations) == numbers.iterations == expected
        assert numbers.output_tokens == sum(item.params.max_tokens for item in load.items)


def test_a_tight_arena_costs_orca_iterations_by_fragmentation_alone():
    counts = {}
    for contiguous in (True, False):
        scheduler = Orca(Slots(1280, contiguous), 2)  # room for two of the largest, but not always in one piece
        counts[contiguous] = len(run(scheduler, from_workload("short_long_mix")).iterations)
    assert counts == {True: 736, False: 672}


def test_the_static_batch_of_four_takes_500_iterations_at_39_percent():
    requests = [make(n, *size) for n, size in enumerate(FOUR)]
    numbers = measure(run(Static(Slots(4096), 4), requests))
    assert numbers.iterations == 500
    assert numbers.slot_occupancy == pytest.approx(0.39) and f"{numbers.slot_occupancy:.1%}" == "39.0%"
    assert numbers.idle_slot_steps == 4 * 500 - 780
    assert numbers.ttft.p50 == numbers.ttft.p99 == 1  # the prefill of every prompt is the first iteration


def test_static_does_not_admit_before_its_longest_request_has_ended_and_orca_does():
    sizes = [(2, 9), (2, 2), (2, 1)]
    admitted = {}
    for make_scheduler in (Static, Orca):
        trace = run(make_scheduler(Slots(100), 2), [make(n, *size) for n, size in enumerate(sizes)])
        admitted[make_scheduler] = {e.request_id: e.iteration for e in trace.events if e.kind == "admit"}
    assert admitted[Static] == {"r0": 0, "r1": 0, "r2": 9}
    assert admitted[Orca] == {"r0": 0, "r1": 0, "r2": 2}


def test_the_static_rectangle_keeps_the_rows_of_requests_that_have_ended():
    scheduler = Static(Slots(100), 3)
    for number, output in enumerate((1, 3)):
        scheduler.add(make(number, 2, output))
    rows = []
    while plan := scheduler.schedule():
        rows.append((len(plan), scheduler.height(plan)))
        scheduler.commit(plan, [DUMMY] * len(plan))
    assert rows == [(2, 2), (1, 2), (1, 2)]


def test_a_static_batch_whose_requests_are_all_aborted_is_refilled():
    scheduler = Static(Slots(100), 2)
    first = [make(n, 2, 9) for n in range(2)]
    for request in (*first, make(2, 2, 1)):
        scheduler.add(request)
    scheduler.schedule()
    for request in first:
        scheduler.abort(request)
    plan = scheduler.schedule()
    assert [request.request_id for request, _ in plan] == ["r2"] and scheduler.height(plan) == 1


# Orca's Algorithm 1


def test_prefill_is_one_iteration_and_yields_the_first_token():
    scheduler = Orca(Slots(100), 1)
    scheduler.add(request := make(0, 20, 3))
    seen = []
    while plan := scheduler.schedule():
        seen.append((request.computed, plan[0][1]))
        scheduler.commit(plan, [DUMMY])
    assert seen == [(0, 20), (20, 1), (21, 1)]
    assert request.finished and request.finish_reason == "length"
    assert request.computed == 22  # nothing attends to the last token


def test_prefill_and_decode_run_in_one_iteration():
    scheduler = Orca(Slots(100), 2)
    scheduler.add(make(0, 4, 5))
    scheduler.commit(scheduler.schedule(), [DUMMY])
    scheduler.add(make(1, 6, 5))
    assert [(request.request_id, n) for request, n in scheduler.schedule()] == [("r0", 1), ("r1", 6)]


@pytest.mark.parametrize("make_scheduler", [Static, Orca])
def test_a_large_head_blocks_a_small_one_behind_it_that_would_fit(make_scheduler):
    scheduler = make_scheduler(Slots(20), 4)
    for number, size in enumerate([(4, 6), (9, 6), (1, 1)]):  # 10 + 15 do not fit into 20, 10 + 2 would
        scheduler.add(make(number, *size))
    plan = scheduler.schedule()
    assert [request.request_id for request, _ in plan] == ["r0"]
    assert [request.request_id for request in scheduler.waiting] == ["r1", "r2"]
    assert scheduler.memory.n_slots - scheduler.memory.n_rsrv >= scheduler.waiting[1].max_slots


@pytest.mark.parametrize(("contiguous", "running"), [(True, ["r1"]), (False, ["r1", "r3"])])
def test_a_hole_too_small_blocks_the_head_where_a_bare_counter_would_not(contiguous, running):
    scheduler = Orca(Slots(12, contiguous), 4)
    for number, size in enumerate([(3, 1), (3, 1), (3, 1)]):
        scheduler.add(make(number, *size))
    scheduler.schedule()
    first, _, third = list(scheduler.running)
    scheduler.abort(first)
    scheduler.abort(third)  # 4 free, 4 held, 4 free
    scheduler.add(make(3, 5, 1))
    assert [request.request_id for request, _ in scheduler.schedule()] == running
    assert scheduler.memory.n_slots - scheduler.memory.n_rsrv == (8 if contiguous else 2)


@pytest.mark.parametrize("make_scheduler", [Static, Orca])
def test_an_oversized_request_is_refused_at_add_and_the_others_are_served(make_scheduler):
    scheduler = make_scheduler(Slots(16), 2)
    scheduler.add(make(0, 4, 3))
    with pytest.raises(ValueError) as caught:
        scheduler.add(make(1, 10, 7))
    sentence = str(caught.value)
    assert all(part in sentence for part in ("'r1'", "17", "10", "7", "16", "max_tokens")) and "\n" not in sentence
    scheduler.add(make(2, 10, 6))  # exactly the arena
    trace = run(scheduler, [])
    assert Counter(span.request_id for step in trace.iterations for span in step.spans) == {"r0": 3, "r2": 6}


def test_a_second_request_of_the_same_id_is_refused_while_the_first_is_unfinished():
    scheduler = Orca(Slots(100), 1)
    first = make(0, 2, 2)
    scheduler.add(first)
    for again in (first, make(0, 3, 3)):
        with pytest.raises(ValueError, match="'r0' is taken"):
            scheduler.add(again)
    plan = scheduler.schedule()
    with pytest.raises(ValueError, match="'r0' is taken"):
        scheduler.add(make(0, 3, 3))
    scheduler.commit(plan, [DUMMY])
    scheduler.commit(scheduler.schedule(), [DUMMY])
    assert first.finished and not scheduler.has_unfinished()
    scheduler.add(make(0, 3, 3))


def test_a_request_that_has_ended_is_refused():
    scheduler = Orca(Slots(100), 1)
    request = make(0, 2, 2)
    scheduler.abort(request)
    with pytest.raises(ValueError, match=r"'r0' has ended \(abort\)"):
        scheduler.add(request)
    assert not scheduler.has_unfinished()


def test_aborting_a_stranger_of_the_same_id_leaves_the_holder_alone():
    scheduler = Orca(Slots(100), 1)
    scheduler.add(make(0, 2, 2))
    scheduler.schedule()
    scheduler.abort(make(0, 2, 2))
    scheduler.memory.check()
    assert scheduler.memory.n_rsrv == 4 and len(scheduler.schedule()) == 1


@pytest.mark.parametrize("max_num_seqs", [0, -3, 1.5, True, None])
def test_a_batch_has_room_for_at_least_one(max_num_seqs):
    with pytest.raises(ValueError, match=f"max_num_seqs is {max_num_seqs}, but .* at least 1"):
        Orca(Slots(10), max_num_seqs)
    assert Orca(Slots(10), np.int64(2)).max_num_seqs == 2


@pytest.mark.parametrize("kind", [Static, Orca, type("Mine", (Orca,), {}), Paged, Chunked])
def test_a_memory_of_the_other_kind_is_refused(kind):
    right, wrong = (Blocks(9), Slots(9)) if issubclass(kind, Paged) else (Slots(9), Blocks(9))
    kind(right)
    message = f"{kind.__name__} was given {type(wrong).__name__}, but its memory must be {type(right).__name__}"
    with pytest.raises(ValueError, match=message):
        kind(wrong)


def test_nothing_to_do_is_an_empty_plan():
    for scheduler in (Static(Slots(10), 2), Orca(Slots(10), 2)):
        assert scheduler.schedule() == [] and not scheduler.has_unfinished()
        assert scheduler.commit([], []) == []


# commit


def prepared() -> tuple[Orca, list]:
    """Two requests in one batch: one decodes, one computes its prompt."""
    scheduler = Orca(Slots(100), 2)
    scheduler.add(make(0, 3, 5))
    scheduler.commit(scheduler.schedule(), [DUMMY])
    scheduler.add(make(1, 4, 5))
    return scheduler, scheduler.schedule()


@pytest.mark.parametrize(
    ("change", "tokens", "message"),
    [
        (lambda plan: plan, [DUMMY, None], "'r1' computes 4 of its 4 open tokens, so its token is owed"),
        (lambda plan: plan, [None, DUMMY], "'r0' computes 1 of its 1 open tokens, so its token is owed"),
        (lambda plan: [plan[0], (plan[1][0], 2)], [DUMMY, DUMMY], "'r1' computes 2 of its 4 .* not due"),
        (lambda plan: [plan[0], (plan[1][0], 5)], [DUMMY, None], "'r1' is planned with 5 tokens"),
        (lambda plan: [plan[0], (plan[1][0], 0)], [DUMMY, None], "'r1' is planned with 0 tokens"),
        (lambda plan: [plan[0], (plan[1][0], -1)], [DUMMY, None], "'r1' is planned with -1 tokens"),
        (lambda plan: [(plan[0][0], True), plan[1]], [DUMMY, DUMMY], "'r0' is planned with True tokens"),
        (lambda plan: [plan[0], (plan[1][0], 4.0)], [DUMMY, DUMMY], "'r1' is planned with 4.0 tokens"),
        (lambda plan: plan, [DUMMY, -1], "'r1' was given -1, but a token is a whole number of at least 0"),
        (lambda plan: plan, [True, DUMMY], "'r0' was given True, but a token is a whole number"),
        (lambda plan: plan, [DUMMY], "tokens has 1 entries, but the plan has 2"),
        (lambda plan: plan, [DUMMY, DUMMY, DUMMY], "tokens has 3 entries, but the plan has 2"),
        (lambda plan: plan, [], "tokens has 0 entries"),
        (lambda plan: [plan[0], plan[0]], [DUMMY, DUMMY], "names a request twice"),
        (lambda plan: plan, [DUMMY, 1.0], "'r1' was given 1.0, but a token is a whole number"),
        (lambda plan: plan, [DUMMY, np.float32(1)], "'r1' was given .*1.0.*, but a token is a whole number"),
        (lambda plan: plan, [[DUMMY], DUMMY], r"'r0' was given \[7\], but a token is a whole number"),
        (lambda plan: plan, ["7", DUMMY], "'r0' was given '7', but a token is a whole number"),
    ],
)
def test_commit_refuses_what_does_not_match_before_it_changes_anything(change, tokens, message):
    scheduler, plan = prepared()
    before = [(list(request.tokens), request.computed, request.table) for request, _ in plan]
    with pytest.raises(ValueError, match=message):
        scheduler.commit(change(plan), tokens)
    assert [(request.tokens, request.computed, request.table) for request, _ in plan] == before
    assert [token.request.request_id for token in scheduler.commit(plan, [8, 9])] == ["r0", "r1"]  # and it goes on
    assert [request.output_token_ids for request, _ in plan] == [[DUMMY, 8], [9]]


@pytest.mark.parametrize("number", [np.int32, np.int64, np.uint8], ids=lambda number: number.__name__)
def test_commit_takes_the_integers_of_numpy_and_keeps_plain_ones(number):
    scheduler, plan = prepared()
    events = scheduler.commit(plan, [number(8), number(9)])
    assert [event.token_id for event in events] == [8, 9]
    assert all(type(token) is int for request, _ in plan for token in request.tokens)
    assert all(type(event.token_id) is int for event in events)
    assert scheduler.commit([(plan[1][0], 1)], np.array([5]))[0].token_id == 5  # an array of tokens, too


def test_a_part_of_a_prompt_emits_nothing_and_the_last_part_does():
    scheduler, plan = prepared()
    request = plan[1][0]
    assert [event.token_id for event in scheduler.commit([(request, 3)], [None])] == []
    assert (request.computed, request.gap, request.output_token_ids) == (3, 1, [])
    assert [tuple(event) for event in scheduler.commit([(request, 1)], [5])] == [(request, 5, None)]
    assert (request.computed, request.gap, request.output_token_ids) == (4, 1, [5])


def test_commit_passes_over_a_request_aborted_since_schedule():
    for tokens in ([DUMMY, DUMMY], [None, DUMMY]):
        scheduler, plan = prepared()
        scheduler.abort(plan[0][0])
        assert scheduler.memory.n_rsrv == plan[1][0].max_slots  # at once, not at commit
        assert [event.request.request_id for event in scheduler.commit(plan, tokens)] == ["r1"]
        assert plan[0][0].output_token_ids == [DUMMY] and plan[0][0].finish_reason == "abort"
        scheduler.memory.check()


def test_several_requests_may_end_in_one_iteration():
    scheduler = Orca(Slots(100), 4)
    for number in range(4):
        scheduler.add(make(number, 2, 2 if number == 2 else 1))
    plan = scheduler.schedule()
    events = scheduler.commit(plan, [DUMMY] * 4)
    assert [event.finish_reason for event in events] == ["length", "length", None, "length"]
    assert [request.request_id for request in scheduler.running] == ["r2"]
    assert list(scheduler.memory.holders) == ["r2"]


def test_an_end_of_sequence_token_ends_a_request_at_once_and_frees_its_slots():
    scheduler = Orca(Slots(10), 2)
    scheduler.add(Request("r0", [1], SamplingParams(max_tokens=9), eos_token_ids=(5,)))
    assert scheduler.commit(scheduler.schedule(), [4])[0].finish_reason is None
    assert scheduler.commit(scheduler.schedule(), [5])[0].finish_reason == "stop"
    assert scheduler.memory.n_rsrv == 0 and not scheduler.has_unfinished()


@pytest.mark.parametrize("wait", [True, False])
def test_abort_frees_at_once_and_twice_is_once(wait):
    scheduler = Orca(Slots(100), 1)
    requests = [make(n, 3, 3) for n in range(2)]
    for request in requests:
        scheduler.add(request)
    scheduler.schedule()
    victim, other = (requests[1], requests[0]) if wait else requests
    for _ in range(2):
        scheduler.abort(victim)
        assert victim.finished and victim.finish_reason == "abort" and not victim.table
        assert [*scheduler.running, *scheduler.waiting] == [other]
        assert scheduler.memory.n_rsrv == (6 if wait else 0)
    run(scheduler, [])
    scheduler.abort(other)
    assert other.finish_reason == "length"  # it had ended already


# any workload, with aborts at any moment


@dataclass(frozen=True)
class Case:
    """sizes, adds: request i of (prompt, output) is added before iteration adds[i]. aborts: (iteration, request,
    between schedule and commit?). stops: request i ends by itself after that many tokens."""

    scheduler: type[Scheduler]
    max_num_seqs: int
    n_slots: int
    contiguous: bool
    sizes: list[tuple[int, int]]
    adds: list[int]
    aborts: set[tuple[int, int, bool]]
    stops: list[int | None]


@st.composite
def cases(draw) -> Case:
    sizes = draw(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=10))
    count = len(sizes)
    return Case(
        draw(st.sampled_from([Static, Orca])),
        draw(st.integers(1, 5)),
        draw(st.integers(max(map(sum, sizes)), 45)),  # small, so that the memory is often what holds back
        draw(st.booleans()),
        sizes,
        sorted(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))),
        draw(st.sets(st.tuples(st.integers(0, 25), st.integers(0, count - 1), st.booleans()), max_size=6)),
        draw(st.lists(st.none() | st.integers(1, 9), min_size=count, max_size=count)),
    )


@dataclass
class Play:
    """A run of a case: every promise is asserted at every step."""

    case: Case
    plans: list[list[tuple[str, int]]] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)

    def __post_init__(self):
        case = self.case
        self.scheduler = case.scheduler(Slots(case.n_slots, case.contiguous), case.max_num_seqs)
        self.requests = [
            Request(f"r{n}", [1] * prompt, SamplingParams(max_tokens=output), eos_token_ids=(0,))
            for n, (prompt, output) in enumerate(case.sizes)
        ]
        work = sum(output for _, output in case.sizes)
        self.bound = max(case.adds) + work + 1  # one token an iteration is the least that anyone may do
        iteration = 0
        while iteration <= max(case.adds) or self.scheduler.has_unfinished():
            assert iteration <= self.bound, "it does not end"
            self.iterate(iteration)
            iteration += 1
        self.at_the_end()

    def iterate(self, iteration: int):
        scheduler, case = self.scheduler, self.case
        for number, when in enumerate(case.adds):
            if when == iteration and not self.requests[number].finished:
                scheduler.add(self.requests[number])
        self.abort(iteration, between=False)
        already, queue = list(scheduler.running), list(scheduler.waiting)
        plan = scheduler.schedule()
        scheduler.memory.check()
        self.check_plan(plan, already, queue)
        self.plans.append([(request.request_id, n_tokens) for request, n_tokens in plan])
        self.abort(iteration, between=True)
        before = {request: (request.computed, list(request.tokens)) for request, _ in plan}
        tokens = [self.token(request) for request, _ in plan]
        events = scheduler.commit(plan, tokens)
        scheduler.memory.check()
        alive = [request for request, _ in plan if request.finish_reason != "abort"]
        assert [event.request for event in events] == alive  # a whole prompt or one decode step: each yields a token
        for request, n_tokens in plan:
            computed, had = before[request]
            moved = request.request_id not in self.aborted
            assert request.computed == computed + n_tokens * moved and len(request.tokens) == len(had) + moved
        self.check_rest()

    def token(self, request: Request) -> int:
        stop = self.case.stops[self.requests.index(request)]
        return 0 if stop is not None and len(request.output_token_ids) + 1 >= stop else DUMMY

    def abort(self, iteration: int, between: bool):
        for when, number, is_between in sorted(self.case.aborts):
            request = self.requests[number]
            known = request in self.scheduler.running or request in self.scheduler.waiting
            if (when, is_between) == (iteration, between) and known:
                held, reserved = len(request.table), self.scheduler.memory.n_rsrv
                self.scheduler.abort(request)
                self.aborted.add(request.request_id)
                assert self.scheduler.memory.n_rsrv == reserved - held and not request.table
                assert request not in self.scheduler.running and request not in self.scheduler.waiting
                self.scheduler.memory.check()

    def check_plan(self, plan, already: list[Request], queue: list[Request]):
        scheduler, memory = self.scheduler, self.scheduler.memory
        batch = [request for request, _ in plan]
        assert len(batch) == len(set(batch)) <= scheduler.max_num_seqs
        assert len(batch) <= scheduler.height(plan) <= scheduler.max_num_seqs
        assert all(n_tokens == request.gap and request.table for request, n_tokens in plan)
        assert all(n_tokens in (1, request.num_prompt_tokens) for request, n_tokens in plan)
        # first come, first served: what was running stays, in its place; what joins is a beginning of the queue
        assert batch[: len(already)] == already
        joined = batch[len(already) :]
        assert joined == queue[: len(joined)] and list(scheduler.waiting) == queue[len(joined) :]
        self.admitted += [request.request_id for request in joined]
        # work conservation
        assert bool(batch) == bool(already or queue)
        if self.case.scheduler is Static:
            assert not (already and joined), "static batching admits into an empty batch only"
        if scheduler.waiting and (self.case.scheduler is Orca or not already):
            room = max(map(len, memory.holes), default=0) if memory.contiguous else memory.n_slots - memory.n_rsrv
            assert len(batch) == scheduler.max_num_seqs or room < scheduler.waiting[0].max_slots, "the head would fit"

    def check_rest(self):
        scheduler = self.scheduler
        assert list(scheduler.memory.holders.values()) == scheduler.running
        assert not any(request.finished for request in (*scheduler.running, *scheduler.waiting))
        assert all(not request.table for request in self.requests if request not in scheduler.running)

    def at_the_end(self):
        assert self.scheduler.memory.holes == [range(self.case.n_slots)]
        order = [int(name[1:]) for name in self.admitted]
        assert len(set(order)) == len(order)
        by_arrival = sorted(range(len(self.requests)), key=lambda number: (self.case.adds[number], number))
        assert order == [number for number in by_arrival if number in order]
        for request, (_, output), stop in zip(self.requests, self.case.sizes, self.case.stops, strict=True):
            owed = output if stop is None else min(output, stop)
            got = len(request.output_token_ids)
            if request.request_id in self.aborted:
                assert got < owed or got == 0
                assert request.finish_reason == "abort"
            else:
                assert got == owed
                assert request.finish_reason == ("stop" if stop is not None and stop <= output else "length")


@given(cases())
@example(Case(Orca, 2, 12, True, [(3, 1), (3, 4), (3, 1), (5, 1)], [0, 0, 0, 0], {(1, 0, True)}, [None] * 4))
@example(Case(Static, 3, 12, True, [(1, 1), (9, 3), (1, 9)], [0, 0, 0], {(0, 0, True), (0, 1, False)}, [None] * 3))
@settings(deadline=None, max_examples=250)
def test_every_promise_holds_for_any_workload_with_aborts_at_any_moment(case):
    assert Play(case).plans == Play(case).plans, "the same input gave two different runs"


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8), st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_orca_never_needs_more_iterations_than_static_where_memory_is_plenty(sizes, max_num_seqs):
    counts = [
        len(run(make_scheduler(Slots(1000), max_num_seqs), [make(n, *size) for n, size in enumerate(sizes)]).iterations)
        for make_scheduler in (Orca, Static)
    ]
    batches = [sizes[first : first + max_num_seqs] for first in range(0, len(sizes), max_num_seqs)]
    assert counts[0] <= counts[1] == sum(max(output for _, output in batch) for batch in batches)


def test_the_same_input_gives_the_same_trace_to_the_letter():
    traces = [
        json.dumps(run(Orca(Slots(900), 3), [make(n, *size) for n, size in enumerate(FOUR * 3)]).to_json())
        for _ in range(2)
    ]
    assert traces[0] == traces[1]
