"""What a trace costs: the queue is derived from events, and a trace that forgets is one like any other."""

import gc
import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest
from helpers.traces import Stepper, busy, wander, wild
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.memory import Blocks
from tinyengine.metrics import measure, token_times
from tinyengine.perfetto import chrome_events
from tinyengine.request import Request, SamplingParams, Slo
from tinyengine.scheduler import Chunked
from tinyengine.trace import Event, Iteration, RequestRecord, Span, Trace

SEEDS = st.integers(0, 10**6)


# The queue


@given(SEEDS, st.sampled_from([None, 1, 3, 10]))
@settings(max_examples=120, deadline=None)
def test_the_derived_queue_is_the_schedulers_queue_in_every_iteration(seed, keep):
    engine = wild(seed, keep)
    trace = engine.trace
    assert list(trace.queues()) == engine.queues[trace.forgotten :]
    assert list(trace.queue_lengths()) == [len(queue) for queue in engine.queues[trace.forgotten :]]


def test_the_runs_have_all_that_can_happen_to_a_queue():
    kinds = [event.kind for seed in range(20) for event in wild(seed).trace.events]
    assert kinds.count("preempt") > 20 and kinds.count("abort") > 10
    assert any(len(queue) > 5 for seed in range(20) for queue in wild(seed).queues)


def test_a_request_aborted_between_two_iterations_is_in_no_queue():
    trace = Trace(events=[Event(0, "arrive", "a"), Event(-1, "abort", "a"), Event(0, "arrive", "b")])
    trace.iterations += [Iteration(0.0, 1.0, ()), Iteration(1.0, 1.0, ())]
    assert list(trace.queues()) == [("b",), ("b",)]


def test_the_same_tuple_stands_for_a_queue_that_has_not_changed():
    trace = Trace(events=[Event(0, "arrive", "a"), Event(2, "admit", "a")])
    trace.iterations += [Iteration(float(n), 1.0, ()) for n in range(3)]
    first, second, third = trace.queues()
    assert first is second and third == ()


def grown_by(iterations: int, queued: int, keep: int | None = None, warm: int = 50) -> float:
    """Bytes that a trace grows by in each of its iterations, with 8 requests that decode and `queued` that wait."""
    engine = Stepper(Chunked, [], 8, Blocks(8 * 400, 16), keep=keep, max_num_batched_tokens=512)
    for number in range(8 + queued):
        engine.add(Request(f"r{number}", [1] * 20, SamplingParams(max_tokens=6000, ignore_eos=True)))
    engine.queues = Forgets()  # the test's own memory, which is the square
    engine.trace.pieces.clear()
    tracemalloc.start()
    sizes = []
    for count in (warm, iterations):
        for _ in range(count):
            engine.step()
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return (sizes[1] - sizes[0]) / iterations


class Forgets(list):
    def append(self, _):
        pass


def test_an_iteration_costs_the_same_whatever_waits_and_however_long_the_run_is():
    alone = grown_by(300, 0)
    assert alone < 4000  # 8 requests: their share, their tokens, what they hold
    assert grown_by(300, 2000) < 1.1 * alone
    assert grown_by(900, 0) < 1.3 * alone


def test_a_bounded_trace_does_not_grow():
    requests = grown_by(1000, 500, keep=0, warm=200)  # what these themselves take, with every token
    assert grown_by(1000, 500, keep=20, warm=200) - requests < 0.1 * (grown_by(1000, 500, warm=200) - requests)


# A trace that forgets


@given(SEEDS, st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_what_is_kept_is_the_end_of_the_whole_trace(seed, keep):
    whole, bounded = wild(seed).trace, wild(seed, keep).trace
    first = bounded.forgotten
    assert first + len(bounded.iterations) == len(whole.iterations)
    assert min(keep, len(whole.iterations)) <= len(bounded.iterations) <= 2 * keep
    assert bounded.iterations == whole.iterations[first:]
    gone = {event.request_id for event in whole.events if event.ends and event.before <= first} if first else set()
    assert bounded.requests == {key: record for key, record in whole.requests.items() if key not in gone}
    assert bounded.pieces == {key: pieces for key, pieces in whole.pieces.items() if key not in gone}
    later = [
        (event.iteration - first, event.kind, event.request_id, event.detail, event.cached)
        for event in whole.events
        if event.request_id not in gone and event.before >= first
    ]
    told = [(event.iteration, event.kind, event.request_id, event.detail, event.cached) for event in bounded.events]
    assert told[len(told) - len(later) :] == later
    assert all(number == 0 and kind in ("arrive", "admit") for number, kind, *_ in told[: len(told) - len(later)])
    assert sorted(event.request_id for event in bounded.events if event.kind == "arrive") == sorted(bounded.requests)


@given(SEEDS, st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_what_it_says_adds_up(seed, keep):
    trace = wild(seed, keep).trace
    running: set[str] = set()
    emitted = {key: trace.earlier[key].tokens if key in trace.earlier else 0 for key in trace.requests}
    for number, (iteration, queue) in enumerate(zip(trace.iterations, trace.queues(), strict=True)):
        for event in trace.events:
            if event.iteration == number and event.kind == "preempt":
                running.remove(event.request_id)
            elif event.iteration == number and event.kind == "admit":
                running.add(event.request_id)
        assert set(iteration.memory) == running >= {span.request_id for span in iteration.spans}
        assert not running & set(queue)
        for span in iteration.spans:
            emitted[span.request_id] += len(span.tokens)
        running -= {event.request_id for event in trace.events if event.ends and event.iteration == number}
    assert emitted == {request_id: len(pieces) for request_id, pieces in trace.pieces.items()}
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


@given(SEEDS, st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_its_metrics_are_those_of_the_time_that_it_has(seed, keep):
    whole, bounded = wild(seed).trace, wild(seed, keep).trace
    if not bounded.forgotten:
        assert measure(whole) == measure(bounded)
        return
    numbers, begin = measure(bounded), bounded.iterations[0].time
    times, arrival = token_times(whole), {key: record.arrival for key, record in whole.requests.items()}
    late = {key: [moment for moment in own if moment > begin] for key, own in times.items()}
    elapsed = max(own[-1] for own in late.values() if own) - begin
    assert numbers.output_tokens == sum(map(len, late.values()))
    assert numbers.tokens_per_s == pytest.approx(numbers.output_tokens / elapsed)
    firsts = [own[0] - arrival[key] for key, own in times.items() if own and own[0] > begin]
    assert numbers.ttft.mean == (pytest.approx(sum(firsts) / len(firsts)) if firsts else None)
    ended = [e.request_id for e in whole.events if e.kind == "finish" and e.iteration >= bounded.forgotten]
    wholes = [times[key][-1] - arrival[key] for key in ended]
    assert numbers.e2e.mean == (pytest.approx(sum(wholes) / len(wholes)) if wholes else None)
    kept = [key for key in ended if times[key][0] - arrival[key] <= (whole.requests[key].ttft_target or 1e9)]
    assert numbers.goodput == pytest.approx(len(kept) / elapsed)
    since = [event for event in whole.events if event.iteration >= bounded.forgotten]
    assert numbers.preemptions == sum(event.kind == "preempt" for event in since)
    assert numbers.cached_tokens == sum(event.cached for event in since)


@given(SEEDS, st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_perfetto_shows_only_its_own_time(seed, count):
    trace = busy(seed, 12)
    trace.forget(min(count, len(trace.iterations) - 1))
    events = chrome_events(trace)["traceEvents"]
    end = max(event["ts"] + event.get("dur", 0) for event in events if "ts" in event)
    assert all(event["ts"] >= 0 for event in events if "ts" in event)
    assert end == pytest.approx(1e6 * (trace.iterations[-1].end - trace.iterations[0].time), abs=0.01)


def test_earlier_tokens_are_counted_with_the_time_of_the_first_and_the_last():
    trace = Trace(
        requests={"a": RequestRecord("a", 1, 9, 0.0)}, events=[Event(0, "arrive", "a"), Event(0, "admit", "a")]
    )
    trace.iterations += [Iteration(float(n), 1.0, (Span("a", n, 1, (7,)),)) for n in range(6)]
    trace.forget(2)
    assert trace.earlier["a"] == (2, 1.0, 2.0)
    trace.forget(3)
    assert trace.earlier["a"] == (5, 1.0, 5.0) and trace.forgotten == 5
    assert measure(trace).tbt.mean == 1.0 and measure(trace).ttft.mean is None
    assert repr(trace) == "<Trace of no stage: 1 requests, 1 iterations after 5 forgotten>"


def test_a_long_queue_makes_the_cuts_rarer():
    """Each looks at every request that waits."""
    engine = Stepper(Chunked, [], 1, Blocks(100, 16), keep=2, max_num_batched_tokens=16)
    for number in range(3200):
        engine.add(Request(f"r{number}", [1], SamplingParams(max_tokens=300, ignore_eos=True)))
    sizes = []
    for _ in range(120):
        engine.step()
        sizes.append(len(engine.trace.iterations))
    assert max(sizes) == 3200 // 64 + 2 and min(sizes[60:]) == 3


def test_a_trace_that_keeps_nothing_has_nothing():
    engine = wild(3, keep=0)
    assert (engine.trace.requests, engine.trace.iterations, engine.trace.events) == ({}, [], [])
    engine.trace.hold({})
    assert engine.trace.pieces == {} and engine.trace.forgotten == len(engine.queues)
    assert engine.trace.append(Iteration(0.0, 1.0, ())) == len(engine.queues)
    engine.trace.landed(0, {"r0": 5}, 0.0, 1.0)
    engine.trace.withdraw("r0")
    assert measure(engine.trace).iterations == 0


def test_tokens_land_in_the_iteration_that_they_belong_to_after_a_cut():
    request, trace = Request("a", [1], SamplingParams(max_tokens=99)), Trace(keep=1)
    memory = Blocks(10, 16)
    trace.arrive(request)
    assert memory.admit(request) and memory.grow(request, 99)
    last = None
    for token in range(20):  # as OverlappedEngine does: the tokens of the one before land when the next is launched
        number = trace.record([(request, 1)], [None], memory, time=float(token), duration=0.0)
        request.computed += 1
        request.tokens.append(-1)
        if last is not None:
            trace.landed(last, {"a": token - 1}, token - 0.5, 0.25)
        last = number
    assert number == 19 and len(trace.iterations) == 2
    assert trace.iterations[0].spans[0].tokens == (18,) and trace.iterations[0].time == 18.5
    assert trace.earlier["a"].tokens == 18
    trace.landed(3, {"a": 5}, 0.0, 1.0)  # forgotten long ago
    assert trace.iterations[1].spans[0].tokens == ()


# Files


def test_an_existing_file_stays_where_a_trace_cannot_be_saved(tmp_path, monkeypatch):
    trace, path = busy(1), tmp_path / "run.json"
    trace.save(path)
    before = path.read_bytes()
    odd = Trace(iterations=[Iteration(0.0, 1.0, (Span("a", 0, 1, (object(),)),))])
    with pytest.raises(TypeError):
        odd.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.json"]

    def half(self, data):
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    for write in (trace.save, trace.to_perfetto):
        with pytest.raises(OSError, match="no space left"):
            write(path)
        assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.json"]


def test_a_request_id_that_no_encoding_has_survives_a_file(tmp_path):
    trace = wander(["\ud800", "\udfff x", "ok"], 2, 12, random.Random(1))
    trace.save(tmp_path / "run.json")
    assert Trace.load(tmp_path / "run.json") == trace


def test_a_link_and_a_device_stay_what_they_are(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "run.json")
    Trace("a").save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink() and Trace.load(tmp_path / "run.json").stage == "a"
    Trace("a").save("/dev/null")
    assert not Path("/dev/null").is_file()


def test_the_queue_by_priority_is_sorted_by_deadline_then_by_arrival():
    trace = Trace(by_priority=True)
    for name, arrival, priority, ttft in [
        ("a", 0.0, 1, 0.1),
        ("b", 1.0, 0, None),
        ("c", 2.0, 0, 3.0),
        ("d", 0.5, 0, None),
    ]:
        trace.arrive(Request(name, [1], SamplingParams(), arrival, priority, slo=Slo(ttft, None)))
    trace.iterations.append(Iteration(0.0, 1.0, ()))
    assert list(trace.queues()) == [("c", "d", "b", "a")]
