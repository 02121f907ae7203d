"""Metrics: a small trace worked by hand, and the traps (means of means, aborted requests, nothing at all)."""

import random
from dataclasses import fields, replace

import numpy as np
import pytest

from tinyengine.clock import IterationClock, WallClock
from tinyengine.memory import Holding
from tinyengine.metrics import Metrics, Percentiles, fragmented_slots, measure, percentile, token_times
from tinyengine.trace import Event, Iteration, RequestRecord, Span, Trace

# Two batch slots, ten K/V slots. "a" has its tokens at 2, 3, 7; "b" at 3, 7, 8; "c" arrives, gets one at 8, is aborted.
TRACE = Trace(
    stage="by hand",
    max_num_seqs=2,
    num_slots=10,
    requests={
        "a": RequestRecord("a", 3, 3, 1.0),
        "b": RequestRecord("b", 2, 3, 1.5),
        "c": RequestRecord("c", 1, 9, 6.0),
        "d": RequestRecord("d", 1, 9, 7.0),  # aborted before it ran
    },
    iterations=[
        Iteration(1.0, 1.0, (Span("a", 0, 3, (5,)),), 0, None, {"a": Holding(((0, 6),), 3)}),
        Iteration(
            2.0,
            1.0,
            (Span("a", 3, 1, (5,)), Span("b", 0, 2, (5,))),
            1,  # a rectangle of 2 x 2
            None,
            {"a": Holding(((0, 6),), 4), "b": Holding(((7, 9),), 2)},  # free: 6 and 9, no hole of two
        ),
        Iteration(
            4.0,
            3.0,
            (Span("a", 4, 1, (5,)), Span("b", 2, 1, (5,))),
            0,
            None,
            {"a": Holding(((0, 6),), 5), "b": Holding(((7, 9),), 2)},
        ),
        Iteration(7.0, 1.0, (Span("b", 3, 1, (5,)), Span("c", 0, 1, (5,))), 0, None, {"c": Holding(((0, 5),), 1)}),
        Iteration(8.0, 1.0, (), 0, None, {}),
    ],
    events=[
        Event(2, "finish", "a", "length"),
        Event(3, "finish", "b", "length"),
        Event(3, "abort", "c"),
        Event(3, "abort", "d"),
    ],
)


def summary(values) -> Percentiles:
    return Percentiles(
        *(pytest.approx(x) for x in (np.mean(values), *(np.percentile(values, share) for share in (50, 95, 99))))
    )


def test_tokens_come_at_the_end_of_their_iteration():
    assert token_times(TRACE) == {"a": [2.0, 3.0, 7.0], "b": [3.0, 7.0, 8.0], "c": [8.0], "d": []}


def test_a_small_trace_measured_by_hand():
    numbers = measure(TRACE)
    assert numbers.iterations == 5 and numbers.output_tokens == 7
    assert numbers.ttft == summary([1.0, 1.5, 2.0])  # arrival to first token; "d" never had one
    assert numbers.tbt == summary([1.0, 4.0, 4.0, 1.0])
    assert numbers.tpot == summary([2.5, 2.5])
    assert numbers.e2e == summary([6.0, 6.5])  # "c" was aborted: it has no end
    assert numbers.tokens_per_s == pytest.approx(7 / (8.0 - 1.0))
    assert numbers.slot_occupancy == pytest.approx(7 / 10) and numbers.idle_slot_steps == 3
    assert numbers.padded_rows == 1 and numbers.padding_share == pytest.approx(1 / (1 + 3 + 3 + 2 + 2))
    reserved, used = 6 + 8 + 8 + 5 + 0, 3 + 6 + 7 + 1 + 0
    assert numbers.kv_reserved == pytest.approx(reserved / 50) and numbers.kv_used == pytest.approx(used / 50)
    assert numbers.kv_waste == pytest.approx(1 - used / reserved)
    assert numbers.kv_fragmented == pytest.approx((0 + 1 + 1 + 0 + 0) / 50)
    assert numbers.kv_waste_past_last_block == numbers.kv_waste  # a slot is a block of one, and has no rest
    assert numbers.goodput == pytest.approx(2 / 7.0)  # no request had a promise: all that finished count
    assert numbers.tokens_per_step == 1.0
    assert numbers.cached_tokens == numbers.recomputed_tokens == numbers.preemptions == 0
    assert numbers.draft_tokens == numbers.accepted_tokens == 0


# Blocks of 4 slots, 6 of them. "a" and "b" share the first block; "b" loses its memory and comes back; "a" guesses.
PAGED = Trace(
    max_num_seqs=2,
    num_slots=24,
    block_size=4,
    contiguous=False,
    requests={"a": RequestRecord("a", 5, 9, 0.0), "b": RequestRecord("b", 6, 2, 0.0)},
    iterations=[
        Iteration(0.0, 1.0, (Span("a", 0, 5, (7,)),), memory={"a": Holding(((0, 8),), 5)}),
        Iteration(
            1.0,
            1.0,
            (Span("a", 5, 3, (7, 8), draft=2), Span("b", 4, 2, (9,))),
            memory={"a": Holding(((0, 8),), 7), "b": Holding(((0, 4), (16, 20)), 6)},
        ),
        Iteration(2.0, 1.0, (Span("a", 7, 2, (7, 8), draft=1),), memory={"a": Holding(((0, 8), (12, 16)), 9)}),
        Iteration(3.0, 1.0, (Span("b", 0, 7, (5,), recomputed=6),), memory={"b": Holding(((16, 24),), 7)}),
    ],
    events=[
        Event(0, "admit", "a"),
        Event(1, "admit", "b", cached=4),
        Event(2, "preempt", "b"),
        Event(2, "finish", "a", "stop"),
        Event(3, "admit", "b"),
        Event(3, "finish", "b", "length"),
    ],
)


def test_sharing_preemption_and_speculation_measured_by_hand():
    numbers = measure(PAGED)
    assert numbers.output_tokens == 7 and numbers.tokens_per_step == 7 / 5
    assert (numbers.draft_tokens, numbers.accepted_tokens) == (3, 2)
    assert (numbers.cached_tokens, numbers.recomputed_tokens, numbers.preemptions) == (4, 6, 1)
    reserved, used = 8 + (8 + 4) + 12 + 8, 5 + (7 + 6 - 4) + 9 + 7  # the block that both hold counts once
    assert numbers.kv_reserved == pytest.approx(reserved / 96) and numbers.kv_used == pytest.approx(used / 96)
    assert numbers.kv_waste == pytest.approx(1 - used / reserved)
    ends = 3 + (1 + 2) + 3 + 1  # what lies behind each newest token in its block
    assert numbers.kv_waste_past_last_block == pytest.approx((reserved - used - ends) / reserved)
    assert numbers.kv_fragmented == 0.0  # any block will do
    assert measure(replace(PAGED, contiguous=True)).kv_fragmented > 0
    assert numbers.tbt == summary([1.0, 0.0, 1.0, 0.0, 2.0])  # two tokens of one iteration come together


@pytest.mark.parametrize(
    ("ttft", "tbt", "kept"),
    [(None, None, 2), (1.0, None, 1), (2.0, None, 2), (0.9, None, 0), (None, 1.0, 1), (None, 2.0, 2), (1.5, 1.5, 1)],
)
def test_goodput_counts_who_got_first_token_and_every_gap_in_time(ttft, tbt, kept):
    promised = {key: replace(one, ttft_target=ttft, tbt_target=tbt) for key, one in PAGED.requests.items()}
    assert measure(replace(PAGED, requests=promised)).goodput == pytest.approx(kept / 4.0)


def test_goodput_leaves_out_who_was_aborted_or_failed():
    for event in (Event(3, "abort", "b"), Event(3, "finish", "b", "error")):
        assert measure(replace(PAGED, events=[*PAGED.events[:-1], event])).goodput == pytest.approx(1 / 4.0)


def test_tbt_percentiles_are_over_gaps_and_not_over_means_of_requests():
    spans = [Span("busy", n, 1, (1,)) for n in range(50)]
    iterations = [Iteration(float(n), 1.0, (span,)) for n, span in enumerate(spans)]
    iterations.append(Iteration(50.0, 20.0, (Span("busy", 50, 1, (1,)),)))  # one stall in 50 gaps
    numbers = measure(Trace(requests={"busy": RequestRecord("busy", 1, 51, 0.0)}, iterations=iterations))
    gaps = [1.0] * 49 + [20.0]
    assert numbers.tbt == summary(gaps) and numbers.tbt.p50 == 1.0
    assert numbers.tpot.p99 == pytest.approx(np.mean(gaps)) and numbers.tbt.p99 > 5 * numbers.tpot.p99


def test_a_request_of_one_token_has_no_gaps():
    trace = Trace(
        requests={"r": RequestRecord("r", 1, 1, 0.0)},
        iterations=[Iteration(0.0, 2.0, (Span("r", 0, 1, (1,)),))],
        events=[Event(0, "finish", "r", "length")],
    )
    numbers = measure(trace)
    assert numbers.tbt == numbers.tpot == Percentiles(None, None, None, None)
    assert numbers.ttft.p99 == numbers.e2e.mean == 2.0


def test_a_partial_chunk_emits_no_token():
    iterations = [Iteration(0.0, 1.0, (Span("r", 0, 2),)), Iteration(1.0, 1.0, (Span("r", 2, 2, (9,)),))]
    numbers = measure(Trace(requests={"r": RequestRecord("r", 4, 1, 0.0)}, iterations=iterations))
    assert numbers.output_tokens == 1 and numbers.ttft.p50 == 2.0


@pytest.mark.parametrize("trace", [Trace(), Trace(requests={"r": RequestRecord("r", 1, 1, 3.0)}, num_slots=10)])
def test_a_trace_without_iterations_has_no_times_and_zeros_for_the_rest(trace):
    none = Percentiles(None, None, None, None)
    times = {"ttft": none, "tbt": none, "tpot": none, "e2e": none}
    times |= dict.fromkeys(("tokens_per_s", "tokens_per_step", "goodput"))
    assert measure(trace) == Metrics(**{entry.name: times.get(entry.name, 0) for entry in fields(Metrics)})


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101])
def test_percentiles_are_numpys(count):
    rng = random.Random(count)
    values = [rng.expovariate(1) for _ in range(count)]
    for share in (0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0):
        assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))
    assert Percentiles.of(values) == summary(values)


@pytest.mark.parametrize(
    ("ranges", "fragmented"),
    [
        ([], 0),
        ([(0, 10)], 0),
        ([(0, 4)], 0),
        ([(3, 10)], 0),
        ([(4, 6)], 4),
        ([(6, 8), (1, 2)], 1 + 2),  # holes of 1, 4, 2, in any order
        ([(1, 2), (2, 9)], 1),
    ],
)
def test_fragmented_is_free_but_outside_the_largest_hole(ranges, fragmented):
    assert fragmented_slots(ranges, 10) == fragmented


def test_the_iteration_clock_counts_iterations_and_never_goes_back():
    clock = IterationClock(0.5)
    clock.iteration_done()
    clock.wait_until(0.2)
    assert clock.now() == 0.5
    clock.wait_until(3.0)
    clock.iteration_done()
    assert clock.now() == 3.5


def test_the_wall_clock_starts_at_zero_and_waits():
    clock = WallClock()
    assert 0 <= clock.now() < 1
    clock.wait_until(clock.now() - 5)
    clock.wait_until(moment := clock.now() + 0.01)
    assert clock.now() >= moment
