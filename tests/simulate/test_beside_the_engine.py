"""A simulated run is the engine's run: the same trace, record by record, for what the model's tokens do not decide."""

from dataclasses import replace

import pytest

from tinyengine import Engine, SamplingParams
from tinyengine.clock import IterationClock
from tinyengine.metrics import measure
from tinyengine.simulate import Job, Unit, simulate
from tinyengine.simulate.executor import new_trace
from tinyengine.stages import STAGES, build
from tinyengine.trace import Trace
from tinyengine.workload import WORKLOADS, workload

JOBS = [Job(n // 3 * 2.0, 3 + 7 * n % 40, 1 + 5 * n % 13) for n in range(14)]


def without_tokens(trace: Trace) -> Trace:
    """Token ids are the model's; padding is the attention's; texts are of no size."""
    for place, iteration in enumerate(trace.iterations):
        spans = tuple(span._replace(tokens=(0,) * len(span.tokens)) for span in iteration.spans)
        trace.iterations[place] = replace(iteration, spans=spans, padding=0)
    trace.requests = {key: replace(record, prompt=None) for key, record in trace.requests.items()}
    trace.pieces = {}
    return trace


@pytest.mark.parametrize("stage", STAGES)
def test_the_simulator_writes_the_engines_trace(stage, tiny):
    engine = Engine(tiny, stage, max_num_seqs=4, max_num_batched_tokens=24, num_slots=128, clock=IterationClock())
    for job in JOBS:
        params = SamplingParams(max_tokens=job.output, ignore_eos=True)
        engine.add_request([300 + job.prompt] * job.prompt, params, arrival=job.arrival)
    while engine.has_unfinished():
        engine.step()

    scheduler = build(stage, {}, num_slots=128, max_num_seqs=4, max_num_batched_tokens=24)
    trace = new_trace(stage, scheduler)
    report = simulate(JOBS, scheduler, Unit(), trace=trace)
    assert without_tokens(trace) == without_tokens(engine.trace)

    numbers = measure(trace)
    assert (report.iterations, report.output_tokens) == (numbers.iterations, numbers.output_tokens)
    for streamed, exact in ((report.ttft, numbers.ttft), (report.tbt, numbers.tbt), (report.e2e, numbers.e2e)):
        assert streamed.mean == pytest.approx(exact.mean)
        assert streamed.percentile(0.5) == pytest.approx(exact.p50, rel=0.002)
        assert streamed.percentile(0.99) == pytest.approx(exact.p99, rel=0.002)
    assert report.preemptions == numbers.preemptions


@pytest.mark.parametrize(("stage", "iterations"), [("static", 1024), ("orca", 672)])
def test_tinyorcas_workload_takes_the_published_iterations(stage, iterations):
    load = workload("short_long_mix")
    make_scheduler, make_memory, _ = STAGES[stage]
    scheduler = make_scheduler(make_memory.for_arena(load.num_slots, 1), load.max_num_seqs)
    assert simulate(load.jobs(), scheduler, Unit()).iterations == iterations


def test_sizes_of_a_workload_are_those_of_its_prompts():
    for name in WORKLOADS:
        load = workload(name)
        if isinstance(load.items[0].prompt, str):
            with pytest.raises(ValueError, match=f"'{name}' has prompts of text"):
                load.jobs()
        else:
            assert [job.prompt for job in load.jobs()] == [len(item.prompt) for item in load.items]
            assert [job.arrival for job in load.jobs()] == [item.arrival for item in load.items]
