"""The event loop by hand, what it refuses, and what a report says."""

from copy import deepcopy
from dataclasses import replace

import pytest
from helpers.simulate import SCHEDULERS, roofline

from tinyengine.budget import Adaptive, AdaptiveBudget, Line
from tinyengine.extras import compose
from tinyengine.memory import Blocks, Slots
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.request import Slo
from tinyengine.scheduler import Chunked, Orca, Paged
from tinyengine.simulate import GPUS, MODELS, Job, Roofline, Simulator, Unit, simulate
from tinyengine.simulate.cost import chunk
from tinyengine.simulate.report import Histogram
from tinyengine.simulate.schedulers import PrefillFirst
from tinyengine.speculate import Speculative
from tinyengine.workload import stream


def test_three_requests_by_hand():
    """Two batch slots: r0 runs 0-3, r1 0-2, r2 begins at 2 and ends at 4; TTFT 1, 1 and 2.5; each gap is 1."""
    report = simulate([Job(0, 4, 3), Job(0, 2, 2), Job(0.5, 3, 2)], Orca(Slots(64), 2), Unit())
    assert (report.iterations, report.elapsed, report.output_tokens, report.tokens) == (4, 4.0, 7, 4 + 2 + 3 + 4)
    assert report.ttft.mean == pytest.approx((1 + 1 + 2.5) / 3) and report.ttft.percentile(1.0) == 2.5
    assert report.tbt.count == 4 and report.tbt.mean == 1.0
    assert report.delay.percentile(1.0) == 1.5 and report.delay.percentile(0.5) == 0.0
    assert report.e2e.percentile(1.0) == 3.5
    assert report.mean_batch == pytest.approx((2 + 2 + 2 + 1) / 4)
    assert simulate([Job(0, 4, 3), Job(90, 4, 3)], Orca(Slots(64), 2), Unit()).mean_batch == 1.0  # a lull is no batch


def test_goodput_counts_those_who_got_what_they_were_promised():
    promise = Slo(ttft=1.5, tbt=1.0)
    jobs = [Job(0, 4, 3, slo=promise), Job(0, 2, 2), Job(0.5, 3, 2, slo=promise)]
    report = simulate(jobs, Orca(Slots(64), 2), Unit())
    assert report.good == 2 and report.goodput == pytest.approx(2 / 4)
    late = simulate([Job(0, 4, 3, slo=Slo(tbt=0.99))], Orca(Slots(64), 2), Unit())
    assert late.good == 0


def test_prefill_first_stalls_decodes_and_chunked_does_not():
    jobs = [Job(0.0, 4, 30), *[Job(5.0 + n, 16, 1) for n in range(8)]]
    worst = {}
    for scheduler in (PrefillFirst(Blocks(40, 4), 4), Chunked(Blocks(40, 4), 4, 8)):
        worst[type(scheduler)] = simulate(jobs, scheduler, Unit()).worst_gap.percentile(1.0)
    assert worst == {PrefillFirst: 9.0, Chunked: 1.0}


def test_prefill_first_takes_prompts_up_to_its_budget_and_leaves_the_watermark():
    scheduler = PrefillFirst(Blocks(20, 4), 8, 16, watermark=0.25)
    simulator = Simulator(scheduler, Unit(), jump=False)
    plans = []
    schedule = scheduler.schedule
    scheduler.schedule = lambda: plans.append(schedule()) or plans[-1]
    simulator.run([Job(0, prompt, 2) for prompt in (8, 8, 4, 20, 30)])
    sizes = [[n_tokens for _, n_tokens in plan] for plan in plans]
    # 16 tokens; 4, and 20 more would pass the budget; 20 alone may; 30 wait for blocks: 15 but for the watermark
    assert sizes == [[8, 8], [4], [20], [1, 1, 1, 1], [30], [1], []]


def test_prefill_first_refuses_what_only_fits_without_the_watermark():
    with pytest.raises(ValueError, match="watermark leaves 72"):
        simulate([Job(0, 70, 10)], PrefillFirst(Blocks(20, 4), 8, watermark=0.1), Unit())
    with pytest.raises(ValueError, match=r"watermark is 1\.0"):
        PrefillFirst(Blocks(20, 4), 8, watermark=1.0)


def test_a_budget_that_follows_the_clock_keeps_its_promise():
    """It hears the simulated time of each iteration, so nothing is jumped; a fixed budget breaks the promise."""
    cost, promise = Roofline(GPUS["a100-pcie"], MODELS["mistral-7b"]), 0.03
    line = Line.fit([(size, cost.seconds(chunk(0, size))) for size in (16, 64, 256, 1024)])
    gaps = {}
    for budget in (None, AdaptiveBudget(line, promise)):
        reports = [
            simulate(
                stream(rate=1.0, requests=60),
                compose(Adaptive, Chunked)(Blocks.for_arena(400_000, 16), 64, 2048, budget=deepcopy(budget)),
                cost,
                jump=jump,
            )
            for jump in (True, False)
        ]
        assert reports[0].finished == 60 and (reports[0].jumped == 0) == (budget is not None)
        assert replace(reports[0], jumped=0) == reports[1]
        gaps[budget] = reports[0].tbt.percentile(0.99)
    assert gaps.pop(None) > 2 * promise and max(gaps.values()) < 1.1 * promise


def test_preemptions_are_counted():
    report = simulate([Job(0, 8, 20)] * 3, Paged(Blocks(12, 4), 3), Unit())
    assert report.preemptions > 0 and report.finished == 3


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([Job(1.0, 2, 2), Job(0.5, 2, 2)], "arrives at 0.5, after one at 1.0"),
        ([Job(0.0, 0, 2)], r"0 \+ 2 tokens"),
        ([Job(0.0, 900, 2)], "902 K/V slots"),
    ],
)
def test_jobs_that_cannot_be_are_refused(jobs, words):
    with pytest.raises(ValueError, match=words):
        simulate(jobs, Orca(Slots(64), 2), Unit())


def test_settings_that_cannot_be_simulated_are_refused():
    with pytest.raises(ValueError, match="2 schedulers, but the pipeline has 1"):
        Simulator([Orca(Slots(64))] * 2, Unit())
    with pytest.raises(ValueError, match="num_speculative_tokens"):
        Simulator(compose(Speculative, Paged)(Blocks(8), 2, num_speculative_tokens=2), Unit())
    with pytest.raises(ValueError, match="enable_prefix_caching"):
        Simulator(Paged(CachedBlocks(8), 2), Unit())


def test_a_scheduler_that_plans_nothing_for_ever_is_an_error():
    class Lazy(Orca):
        def schedule(self):
            return []

    with pytest.raises(RuntimeError, match=r"Lazy\.schedule\(\) planned nothing, with 1 requests waiting"):
        simulate([Job(0, 2, 2)], Lazy(Slots(64)), Unit())


def test_jobs_are_taken_one_by_one_as_time_passes():
    taken = []

    def arrivals():
        for n in range(5):
            taken.append(n)
            yield Job(100.0 * n, 2, 3)

    seen = []
    tell = lambda request: seen.append((request.request_id, len(taken)))  # noqa: E731
    simulate(arrivals(), Orca(Slots(64)), Unit(), on_finish=tell)
    assert seen == [("r0", 2), ("r1", 3), ("r2", 4), ("r3", 5), ("r4", 5)]


def test_no_jobs_are_a_run_of_nothing():
    report = simulate([], Orca(Slots(64)), Unit())
    numbers = report.to_json()
    assert numbers["iterations"] == 0 and numbers["tbt"]["p99"] is None and numbers["goodput"] == 0.0


def test_the_percentiles_of_a_histogram_are_those_of_the_list():
    import numpy as np

    values = np.random.default_rng(0).lognormal(size=5000)
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    histogram.add(0.0, 10)
    values = [0.0] * 10 + list(values)
    for share in (0.0, 0.001, 0.1, 0.5, 0.99, 1.0):
        assert histogram.percentile(share) == pytest.approx(np.quantile(values, share), rel=0.002)
    assert histogram.mean == pytest.approx(np.mean(values)) and histogram.count == 5010


def test_chunks_leave_smaller_bubbles_than_whole_prompts():
    jobs = [Job(0.0, 20, 8) if n % 3 else Job(0.0, 2, 8) for n in range(24)]
    bubbles = {}
    for name in ("hybrid only", "chunked"):
        lanes = [SCHEDULERS[name](400, 4) for _ in range(3)]
        bubbles[name] = simulate(jobs, lanes, roofline(pp=3)).bubble_share
    assert bubbles["chunked"] < bubbles["hybrid only"]
