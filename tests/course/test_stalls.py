"""What lesson 05 draws and measures: the longest gap, and four schedulers on the jobs of Sarathi-Serve's figure 7."""

import pytest

from tinyengine.course import stalls
from tinyengine.trace import Iteration, RequestRecord, Span, Trace

JOBS = {"A": (4, 14, 0), "B": (4, 11, 0), "C": (48, 4, 3), "D": (48, 4, 3)}


@pytest.fixture(scope="module")
def four():
    return stalls.four_schedulers(JOBS, rows=10, budget=10)


def test_a_gap_runs_over_iterations_without_a_token_of_the_request():
    trace = Trace("a", 2)
    trace.requests = {name: RequestRecord(name, 1, 9, arrival=2.0) for name in "ab"}
    spans = [(Span("a", 0, 1, (5,)),), (Span("a", 1, 3), Span("b", 0, 1, (5,))), (Span("a", 4, 1, (6,)),)]
    trace.iterations = [Iteration(2.0 + 3 * n, 3.0, own) for n, own in enumerate(spans)]
    assert stalls.gaps(trace) == {"a": [6.0], "b": []}
    assert stalls.longest_gap(trace) == 6.0
    assert (stalls.first_token(trace, "a"), stalls.first_token(trace, "b")) == (3.0, 6.0)


def test_an_undisturbed_run_takes_the_least_time_of_each_iteration():
    runs = []
    for durations in ((1.0, 9.0, 2.0), (1.5, 3.0, 2.5), (5.0, 4.0, 4.0)):
        trace, now = Trace("a", 1), 7.0
        trace.requests["a"] = RequestRecord("a", 1, 9, arrival=7.0)
        for n, duration in enumerate(durations):
            trace.iterations.append(Iteration(now, duration, (Span("a", n, 1, (5,)),)))
            now += duration
        runs.append(trace)
    made = stalls.undisturbed(runs)
    assert [(i.time, i.duration) for i in made.iterations] == [(7.0, 1.0), (8.0, 3.0), (11.0, 2.0)]
    assert stalls.longest_gap(made) == 3.0 and stalls.longest_gap(runs[0]) == 9.0


def test_an_undisturbed_run_moves_arrivals_with_their_iterations():
    arrivals = {"early": 6.5, "a": 7.0, "within": 8.5, "between": 12.5, "late": 99.0}
    runs = []
    for durations in ((1.0, 4.0, 2.0), (1.0, 2.0, 1.0)):
        trace, now = Trace("a", 1), 7.0
        trace.requests = {name: RequestRecord(name, 1, 9, arrival=arrival) for name, arrival in arrivals.items()}
        for n, duration in enumerate(durations):
            trace.iterations.append(Iteration(now, duration, (Span("a", n, 1, (5,)),)))
            now += duration
        runs.append(trace)
    moved = {name: record.arrival for name, record in stalls.undisturbed(runs).requests.items()}
    assert moved == {"early": 6.5, "a": 7.0, "within": 8.5, "between": 10.5, "late": 96.0}
    assert runs[0].requests["between"].arrival == 12.5


def test_no_request_with_two_tokens_has_no_gap():
    assert stalls.longest_gap(Trace("empty", 1)) == 0.0


def test_only_whole_prompts_stall_the_others(four):
    longest = {name: max(gap for r in "AB" for gap in stalls.gaps(trace)[r]) for name, trace in four.items()}
    assert longest["static"] == longest["chunked"] == 1.0
    assert longest["orca"] > 9 and longest["prefill_first"] > 9


def test_nobody_stalls_at_the_price_of_the_first_token(four):
    first = {name: stalls.first_token(trace, "C") for name, trace in four.items()}
    assert first["prefill_first"] < first["orca"] < first["static"] and first["chunked"] < first["static"]


def test_each_scheduler_gives_each_request_its_tokens_and_the_requests_have_their_names(four):
    for trace in four.values():
        assert {name: len(gaps) + 1 for name, gaps in stalls.gaps(trace).items()} == {
            name: output for name, (_, output, _) in JOBS.items()
        }


def test_an_iteration_takes_a_second_or_as_long_as_its_rows(four):
    for iteration in (iteration for trace in four.values() for iteration in trace.iterations):
        assert iteration.duration == pytest.approx(max(1.0, iteration.num_tokens / 10))
    assert max(i.num_tokens for i in four["chunked"].iterations) == 10
