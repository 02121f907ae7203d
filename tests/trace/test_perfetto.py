"""The Chrome trace JSON of a run: what the format asks for, and questions to it in SQL, as Perfetto would be asked."""

import json
import random
import sqlite3
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.memory import Blocks
from tinyengine.metrics import measure, token_times
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Chunked
from tinyengine.trace import Trace


def busy(seed: int, count: int = 7) -> Trace:
    """Chunks over few blocks, so that some are preempted; arrivals spread over the run; names of every kind."""
    chance, memory = random.Random(seed), Blocks(12, 4)
    scheduler = Chunked(memory, 3, 16)
    trace = Trace("chunked", 3, memory.n_slots, 4, False)
    names = random.Random(seed).sample(["a", "é\n", "</b>", "7", "猫", "x y", '"', "r9"], count)
    later = [
        Request(name, [1] * chance.randint(1, 24), SamplingParams(max_tokens=chance.randint(1, 16)), n * 0.002)
        for n, name in enumerate(names)
    ]
    time = 0.0
    while later or scheduler.has_unfinished():
        while later and later[0].arrival <= time:
            scheduler.add(later[0])
            trace.arrive(later.pop(0))
        trace.hold(memory.holders)
        plan = scheduler.schedule()
        duration = 0.001 + 1e-5 * sum(n for _, n in plan) if plan else 0.0
        if plan:
            tokens = [9 if n == request.gap else None for request, n in plan]
            trace.record(plan, tokens, memory, time=time, duration=duration, budget=16)
            for token in scheduler.commit(plan, tokens):
                if token.finish_reason:
                    trace.event("finish", token.request.request_id, token.finish_reason)
        time += duration or 0.0003
    return trace


def written(trace: Trace, tmp_path) -> list[dict]:
    return json.loads(trace.to_perfetto(tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_every_event_has_what_its_kind_must_have(tmp_path_factory, seed):
    for event in written(busy(seed), tmp_path_factory.mktemp("perfetto")):
        assert isinstance(event["name"], str) and type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and list(event["args"]) == ["name"]
            continue
        assert event["ts"] >= 0 and event["ph"] in "XCi"
        if event["ph"] == "X":
            assert event["dur"] > 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        if event["ph"] == "i":
            assert event["s"] == "t"


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_slices_of_a_thread_do_not_overlap(tmp_path_factory, seed):
    """Chrome and Perfetto nest slices of a thread; those that overlap otherwise are dropped."""
    threads: dict[tuple, list] = {}
    for event in written(busy(seed), tmp_path_factory.mktemp("perfetto")):
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            threads.setdefault((event["pid"], event["tid"]), []).append((start, start + round(event["dur"] * 1000)))
    for slices in threads.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(slices)))


def test_sql_gives_the_numbers_of_the_metrics(tmp_path):
    """The tables that Perfetto makes of such a file (process, thread, slice), rebuilt in SQLite."""
    trace = busy(3)
    measured, times = measure(trace), token_times(trace)
    ask = database(written(trace, tmp_path)).execute
    engine = "FROM slice WHERE pid = 1"
    assert ask(f"SELECT COUNT(*), SUM(args ->> 'tokens') {engine}").fetchone() == (
        len(trace.iterations),
        sum(iteration.num_tokens for iteration in trace.iterations),
    )
    tokens = "SELECT SUM(json_array_length(args, '$.tokens')) FROM slice WHERE pid = 2 AND name != 'wait'"
    assert ask(tokens).fetchone() == (measured.output_tokens,)
    recomputed = "SELECT SUM(args ->> 'recomputed') FROM slice WHERE pid = 2 AND name != 'wait'"
    assert ask(recomputed).fetchone() == (measured.recomputed_tokens,)
    assert measured.preemptions > 0
    assert ask("SELECT COUNT(*) FROM instant WHERE name = 'preempt'").fetchone() == (measured.preemptions,)
    rows = ask(
        "SELECT thread.name, MIN(slice.ts + slice.dur) FROM slice JOIN thread USING (pid, tid) "
        "WHERE pid = 2 AND json_array_length(args, '$.tokens') > 0 GROUP BY tid"
    )
    first = {name: moment / 1e6 for name, moment in rows}
    expected = {name: moments[0] for name, moments in times.items()}
    assert first == pytest.approx(expected, abs=2e-9)  # since the first arrival, which is at 0
    waits = ask("SELECT SUM(dur) FROM slice WHERE name = 'wait'").fetchone()[0] / 1e6
    running = ask("SELECT SUM(dur) FROM slice WHERE pid = 2 AND name != 'wait'").fetchone()[0] / 1e6
    lives = sum(own[-1] - trace.requests[name].arrival for name, own in times.items())
    assert waits + running == pytest.approx(lives, abs=1e-6)


def database(events: list[dict]) -> sqlite3.Connection:
    tables = sqlite3.connect(":memory:")
    tables.execute("CREATE TABLE thread (pid, tid, name)")
    for kind in ("slice", "instant"):
        tables.execute(f"CREATE TABLE {kind} (pid, tid, name, ts, dur, args)")
    for event in events:
        where = (event["pid"], event["tid"])
        if event["ph"] == "M" and event["name"] == "thread_name":
            tables.execute("INSERT INTO thread VALUES (?, ?, ?)", (*where, event["args"]["name"]))
        if event["ph"] in "Xi":
            row = (*where, event["name"], event["ts"], event.get("dur"), json.dumps(event["args"]))
            tables.execute(f"INSERT INTO {'slice' if event['ph'] == 'X' else 'instant'} VALUES (?, ?, ?, ?, ?, ?)", row)
    return tables


@pytest.mark.parametrize("trace", [Trace(), Trace("", 3)])
def test_a_trace_without_iterations(trace, tmp_path):
    assert {event["ph"] for event in written(trace, tmp_path)} == {"M"}
