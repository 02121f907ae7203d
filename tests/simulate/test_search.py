"""The capacity search on loads whose answer is known, and deployments by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyengine.memory import Blocks
from tinyengine.simulate import GPUS, MODELS, Unit, kv_slots
from tinyengine.simulate.deployment import SCHEDULERS, Deployment
from tinyengine.simulate.report import Report
from tinyengine.simulate.reservations import Reserved
from tinyengine.simulate.search import capacity, curve, holds
from tinyengine.workload import Job, stream


def report(tbt: float, delay: float = 0.0) -> Report:
    found = Report()
    found.tbt.add(tbt, 100)
    found.delay.add(delay, 100)
    return found


@given(true=st.floats(0.01, 500), start=st.floats(0.2, 10))
def test_the_search_finds_a_known_capacity_from_anywhere(true, start):
    tried = []

    def trial(rate):
        tried.append(rate)
        return report(0.05 if rate <= true else 0.2)

    found = capacity(trial, tbt=0.1, start=start, precision=0.02)
    assert found.rate <= true < 1.02 * found.rate
    assert [rate for rate, _ in found.trials] == tried and len(tried) < 25
    assert all(held == (rate <= true) for rate, held in found.trials)


def test_a_promise_that_no_load_keeps_has_no_capacity_and_one_that_all_keep_ends():
    none = capacity(lambda rate: report(0.2), tbt=0.1)
    assert none.rate == 0.0 and none.report is None and len(none.trials) == 13
    assert capacity(lambda rate: report(0.01), tbt=0.1).rate == pytest.approx(2**12)


def test_a_run_holds_within_both_limits_only():
    assert holds(report(0.1, 2.0), tbt=0.1, delay=2.0)
    assert not holds(report(0.11, 0.0), tbt=0.1) and not holds(report(0.01, 2.1), tbt=0.1)
    late = report(0.01)
    late.delay.add(60.0, 60)  # a growing queue shows in the median, not in a few
    assert holds(late, tbt=0.1)
    single = Report()
    single.delay.add(0.0)
    assert holds(single, tbt=0.1)  # no second token, no gap


def test_progress_is_told_after_each_trial():
    calls = []
    found = capacity(lambda rate: report(rate), tbt=3.0, progress=lambda: calls.append(1))
    assert len(calls) == len(found.trials)
    points = curve(lambda rate: report(rate), [1.0, 2.0], lambda: calls.append(2))
    assert [point["rate"] for point in points] == [1.0, 2.0] and calls.count(2) == 2
    assert points[1]["tbt"]["p99"] == 2.0


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_serves_a_deployment(name):
    deployment = Deployment("h100", "qwen3-8b", name, max_num_seqs=8)
    done = deployment.run(stream(rate=2.0, requests=20))
    assert done.finished == 20 and done.tbt.percentile(0.5) > 0.004


def test_a_deployment_shares_its_slots_among_its_stages():
    deployment = Deployment("a40", "llama2-70b", "vllm-v0", tp=4, pp=2)
    slots = kv_slots(GPUS["a40"], MODELS["llama2-70b"], 4, 2)
    assert deployment.limits().slots == slots // 2 and deployment.make_cost().stages == 2
    assert isinstance(deployment.limits().blocks(), Blocks) and isinstance(
        deployment.limits().reserved("max"), Reserved
    )
    assert Deployment("a40", "llama2-70b", slots=999, tp=4, pp=2).limits().slots == 499


def test_a_cost_model_takes_the_rooflines_place():
    assert Deployment("a40", "qwen3-8b", cost=Unit()).run([Job(0.0, 10, 7)]).elapsed == 7.0


def test_unknown_names_are_refused_when_it_is_made():
    for fault, words in (
        ({"gpu": "b200"}, "'b200'"),
        ({"model": "gpt"}, "'gpt'"),
        ({"scheduler": "x"}, "'x'.*chunked"),
    ):
        with pytest.raises(ValueError, match=words):
            Deployment(**{"gpu": "h100", "model": "qwen3-8b", **fault})


def test_a_request_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match="9000 K/V slots"):
        Deployment("h100", "qwen3-8b", "orca").run([Job(0.0, 8000, 1000)])
