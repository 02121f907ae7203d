"""Requests come at their time; the same run gives the same trace."""

import json
from dataclasses import replace

import pytest
from helpers.prompts import LIMITS, PARAMS, PROMPTS, drain
from helpers.serve import iteration_engine

from tinyengine import STAGES, Engine, SamplingParams, Trace


def test_a_future_request_waits_outside_until_its_time(engine):
    name = engine.add_request(PROMPTS[0], LIMITS[0], arrival=7.5)
    assert engine.has_unfinished() and not engine.scheduler.has_unfinished()
    assert engine.step() == [] and engine.clock.now() == 7.5
    assert engine.step()[0].request_id == name


def test_requests_are_served_in_order_of_arrival_and_then_of_adding(engine):
    order = [engine.add_request([1], SamplingParams(max_tokens=1), arrival=arrival) for arrival in (3, 1, 2, 1, 3)]
    assert [token.request_id for token in drain(engine)] == [order[i] for i in (1, 3, 2, 0, 4)]


@pytest.mark.parametrize("victim", range(7))
def test_an_abort_among_future_requests_keeps_the_order_of_the_others(engine, victim):
    arrivals = [1, 5, 2, 6, 7, 3, 4]
    names = {engine.add_request([1], SamplingParams(max_tokens=1), arrival=moment): moment for moment in arrivals}
    engine.abort_request(list(names)[victim])
    assert [names[token.request_id] for token in drain(engine)] == sorted({*arrivals} - {arrivals[victim]})


def test_on_the_wall_clock_too_the_engine_sleeps_until_the_next_arrival(random_model):
    engine = Engine(random_model, num_slots=64)
    engine.add_request([1, 2], SamplingParams(max_tokens=2, ignore_eos=True), arrival=engine.clock.now() + 0.05)
    assert engine.step() == []
    assert engine.clock.now() >= 0.05
    assert len(drain(engine)) == 2


def run_with_abort(model, stage) -> Engine:
    engine = iteration_engine(model, stage, max_num_seqs=3, num_slots=100)
    names = [
        engine.add_request(prompt, replace(limits, temperature=0.8), arrival=index)
        for index, (prompt, limits) in enumerate(zip(PROMPTS, LIMITS, strict=True))
    ]
    for _ in range(6):
        engine.step()
    engine.abort_request(names[5])
    drain(engine)
    return engine


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_run_gives_the_same_trace_and_it_survives_json(random_model, stage, tmp_path):
    first, second = run_with_abort(random_model, stage).trace, run_with_abort(random_model, stage).trace
    assert first == second
    assert len(first.iterations) > 10 and {"arrive", "admit", "finish", "abort"} <= {e.kind for e in first.events}
    assert Trace.from_json(json.loads(json.dumps(first.to_json()))) == first
    first.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == first


@pytest.mark.parametrize("stage", STAGES)
def test_the_trace_holds_the_tokens_that_the_outputs_hold(random_model, stage):
    engine = run_with_abort(random_model, stage)
    for name, output in engine.outputs.items():
        spans = [span for i in engine.trace.iterations for span in i.spans if span.request_id == name]
        assert [token for span in spans for token in span.tokens] == output.token_ids
    assert set(engine.trace.requests) == set(engine.outputs)


def test_names_count_up_and_step_aside_for_the_user_s(engine):
    engine.add_request([1], PARAMS, request_id="r1")
    assert [engine.add_request([1], PARAMS) for _ in range(3)] == ["r0", "r2", "r3"]


def test_an_arrival_in_the_past_is_served_at_once_and_measured_from_then(engine, alone):
    drained = engine.generate([PROMPTS[5]], LIMITS[5])
    assert len(drained[0].token_ids) == engine.clock.now() == 16
    name = engine.add_request(PROMPTS[0], LIMITS[0], arrival=2.5)
    assert engine.step()[0].request_id == name and engine.trace.requests[name].arrival == 2.5
    drain(engine)
    assert engine.outputs[name].token_ids == alone[0]
