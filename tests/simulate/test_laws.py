"""Laws of the simulator, for every scheduler and any jobs."""

import time
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.simulate import GPU, ROOMY, SCHEDULERS, SLOTS, jobs, roofline, told
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.scheduler import Chunked
from tinyengine.simulate import Job, Simulator, Unit, simulate
from tinyengine.simulate.cost import chunk, together
from tinyengine.simulate.executor import new_trace
from tinyengine.trace import Trace

every_scheduler = pytest.mark.parametrize("name", SCHEDULERS)
any_scheduler = st.sampled_from(sorted(SCHEDULERS))
any_memory = st.sampled_from([SLOTS, ROOMY, 1000])
drawn = settings(max_examples=60, deadline=None)


def traced(name, work, cost) -> Trace:
    scheduler = SCHEDULERS[name](SLOTS, 5)
    trace = new_trace(name, scheduler)
    simulate(work, scheduler, cost, trace=trace)
    return trace


@every_scheduler
@given(work=jobs(), slots=any_memory)
@settings(max_examples=40, deadline=None)
def test_jumping_gives_exactly_what_stepping_gives(name, work, slots):
    for cost in (roofline(), Unit(0.25)):
        jumped, jumped_story = told(work, SCHEDULERS[name](slots, 5), cost)
        stepped, stepped_story = told(work, SCHEDULERS[name](slots, 5), cost, jump=False)
        assert stepped.jumped == 0 and len(stepped_story) == len(work)
        assert jumped_story == stepped_story
        assert replace(jumped, jumped=0) == stepped


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("prompt", [1, 2, 9])
def test_a_stretch_ends_where_an_arrival_would_get_its_turn(first, prompt):
    work = [Job(0.0, 1, 20)] * first + [Job(5.0, prompt, 3)]
    for name in SCHEDULERS:
        stepped = told(work, SCHEDULERS[name](SLOTS, 5), Unit(), jump=False)[1]
        assert told(work, SCHEDULERS[name](SLOTS, 5), Unit())[1] == stepped, name


@every_scheduler
def test_long_outputs_are_jumped(name):
    work = [Job(0.0, 3, 30), Job(0.0, 5, 30), Job(1e9, 2, 2)]
    report = simulate(work, SCHEDULERS[name](80, 2), Unit())
    assert report.jumped > 20


def test_a_scheduler_of_ones_own_is_stepped():
    class Mine(Chunked):
        pass

    from tinyengine.memory import Blocks

    assert simulate([Job(0.0, 3, 30)], Mine(Blocks(20, 4), 2, 8), Unit()).jumped == 0


@pytest.mark.parametrize("name", ["chunked", "wide", "priority", "first chunk", "hybrid only"])
@given(work=jobs(longest=60), blocks=st.integers(23, 120))
@drawn
def test_decodes_are_set_aside_only_while_memory_is_plenty(name, work, blocks):
    jumped = told(work, SCHEDULERS[name](4 * blocks, 5), roofline())
    stepped = told(work, SCHEDULERS[name](4 * blocks, 5), roofline(), jump=False)
    assert jumped[1] == stepped[1] and replace(jumped[0], jumped=0) == stepped[0]


@given(work=jobs(), slots=any_memory, pp=st.integers(2, 3))
@drawn
def test_setting_decodes_aside_changes_nothing_in_a_pipeline(work, slots, pp):
    lanes, others = ([SCHEDULERS["chunked"](slots, 5) for _ in range(pp)] for _ in range(2))
    assert told(work, lanes, roofline(pp=pp)) == told(work, others, roofline(pp=pp), jump=False)


@pytest.mark.parametrize("name", ["chunked", "wide", "priority", "first chunk"])
def test_the_scheduler_is_asked_only_about_what_changes(name):
    """Five decode while a sixth is prefilled: that one is planned alone. At the end the scheduler is as it was."""
    scheduler = SCHEDULERS[name](1000, 6)
    before = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    planned, schedule = [], scheduler.schedule

    def spied():
        plan = schedule()
        planned.append([request.request_id for request, _ in plan])
        return plan

    scheduler.schedule = spied
    simulate([Job(0.0, 1, 60)] * 5 + [Job(9.5, 30, 5)], scheduler, Unit())
    assert planned.count(["r5"]) >= 2 and not any("r5" in plan and len(plan) > 1 for plan in planned)
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == before


@given(name=any_scheduler, work=jobs(), slots=any_memory)
@drawn
def test_doubling_every_rate_halves_every_time_exactly(name, work, slots):
    fast = replace(GPU, flops=2 * GPU.flops, bandwidth=2 * GPU.bandwidth, link=2 * GPU.link)
    slow_report, slow = told(work, SCHEDULERS[name](slots, 5), roofline())
    sooner = [job._replace(arrival=job.arrival / 2) for job in work]
    fast_report, faster = told(sooner, SCHEDULERS[name](slots, 5), roofline(fast))
    assert faster == {key: tuple(moment / 2 for moment in moments) for key, moments in slow.items()}
    assert fast_report.iterations == slow_report.iterations and fast_report.busy == slow_report.busy / 2


@given(name=any_scheduler, work=jobs(most=12))
@drawn
def test_the_same_jobs_give_the_same_trace(name, work):
    assert traced(name, work, roofline()) == traced(name, work, roofline())


@given(name=any_scheduler, work=jobs(most=12), number=st.integers(0, 10**6), slots=any_memory)
@drawn
def test_ids_are_only_names(name, work, number, slots):
    _, story = told(work, SCHEDULERS[name](slots, 5), roofline())
    simulator = Simulator(SCHEDULERS[name](slots, 5), roofline())
    simulator.name = lambda index: f"{(index * 7919 + number) % 10007:05d}"  # neither their order nor their length
    other = {}
    simulator.on_finish = lambda r: other.update({r.request_id: (r.began, r.first, r.last, r.worst_gap, r.arrival)})
    simulator.run(work)
    assert sorted(other.values()) == sorted(story.values()) and set(other).isdisjoint(story)


@given(name=any_scheduler, work=jobs())
@drawn
def test_work_is_conserved(name, work):
    """The GPU never waits while a request is unfinished; every token comes once; no stage of one is ever a bubble."""
    trace = traced(name, work, roofline())
    busy_until = 0.0
    arrivals = {request.arrival for request in trace.requests.values()}
    for iteration in trace.iterations:
        assert iteration.time == busy_until or (iteration.time > busy_until and iteration.time in arrivals)
        if iteration.time > busy_until:  # it waited: so there was no request
            ended = {event.request_id for event in trace.events if event.kind == "finish"}
            earlier = {key for key, request in trace.requests.items() if request.arrival < iteration.time}
            last = {
                span.request_id: past.end
                for past in trace.iterations
                for span in past.spans
                if past.end <= busy_until and span.tokens
            }
            assert earlier <= ended and all(last[key] <= busy_until for key in earlier)
        busy_until = iteration.end
    emitted = {key: 0 for key in trace.requests}
    for iteration in trace.iterations:
        for span in iteration.spans:
            emitted[span.request_id] += len(span.tokens)
    assert emitted == {key: request.max_tokens for key, request in trace.requests.items()}
    report, _ = told(work, SCHEDULERS[name](SLOTS, 5), roofline())
    assert report.bubbles == 0 and report.finished == len(work)


@every_scheduler
def test_no_clock_is_read_and_no_global_random_number_is_drawn(name, monkeypatch):
    import random

    def forbidden(*args):
        raise AssertionError("the simulator looked at the world")

    for function in ("time", "perf_counter", "monotonic", "process_time", "time_ns", "perf_counter_ns", "sleep"):
        monkeypatch.setattr(time, function, forbidden)
    for function in ("random", "randrange", "expovariate", "uniform", "seed"):
        monkeypatch.setattr(random, function, forbidden)
    report = simulate([Job(0.5 * n, 3 + n, 5) for n in range(9)], SCHEDULERS[name](SLOTS, 5), roofline())
    assert report.finished == 9


@given(name=any_scheduler, work=jobs(), slots=any_memory)
@drawn
def test_memory_is_whole_after_every_iteration_and_empty_at_the_end(name, work, slots):
    scheduler = SCHEDULERS[name](slots, 5)
    commit = scheduler.commit

    def checked(plan, tokens):
        events = commit(plan, tokens)
        scheduler.memory.check()
        return events

    scheduler.commit = checked
    simulate(work, scheduler, roofline())
    assert not scheduler.memory.holders and not scheduler.has_unfinished()


@given(work=jobs(), pp=st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_a_pipeline_ends_every_request_and_no_stage_has_two_batches(work, pp):
    lanes = [SCHEDULERS["chunked"](SLOTS, 5) for _ in range(pp)]
    trace = new_trace("pipeline", lanes)
    cost = roofline(pp=pp)
    report = simulate(work, lanes, cost, trace=trace)
    assert report.finished == len(work)
    free, running = 0.0, {}
    for iteration in trace.iterations:
        assert iteration.time >= free  # the first stage takes batches one after the other
        load = together(*(chunk(span.start, span.n_tokens) for span in iteration.spans))
        free = iteration.time + cost.seconds(load)
        assert iteration.end >= iteration.time + pp * cost.seconds(load) - 1e-9  # sums, rounded
        held = sorted(part for holding in iteration.memory.values() for part in holding.ranges)
        assert all(past <= first for (_, past), (first, _) in pairwise(held)), "two lanes share a slot in the trace"
        for span in iteration.spans:
            assert running.get(span.request_id, 0.0) <= iteration.time, "a request is in two batches at once"
            running[span.request_id] = iteration.end
    assert 0 <= report.bubble_share < 1
    assert report.stages == pp


def test_stages_work_on_different_batches_at_the_same_time():
    lanes = [SCHEDULERS["orca"](400, 1) for _ in range(2)]
    report = simulate([Job(0.0, 4, 50)] * 2, lanes, Unit(stages=2))
    assert report.iterations == 100 and report.elapsed == 101  # one stage later than 100: the pipeline fills once
    assert report.bubbles == 1 and report.tbt.percentile(1.0) == 2


def test_one_request_alone_leaves_the_other_stage_idle_half_of_the_time():
    lanes = [SCHEDULERS["orca"](400, 1) for _ in range(2)]
    report = simulate([Job(3.0, 4, 50)], lanes, Unit(stages=2))
    assert report.elapsed == 100 and report.bubble_share == pytest.approx(0.5, abs=0.01)
