"""A request can be aborted at any moment, and the others get their own tokens."""

import pytest
from helpers.prompts import LIMITS, PARAMS, PROMPTS, drain
from helpers.serve import assert_nothing_left, iteration_engine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyengine import STAGES


@pytest.mark.parametrize("after", [0, 1, 4, 9, 17])
@pytest.mark.parametrize("victim", [0, 1, 2, 5])
def test_abort_at_any_moment_changes_nobody_else_s_tokens(engine, alone, victim, after):
    names = [
        engine.add_request(prompt, params, arrival=2.0 * index)
        for index, (prompt, params) in enumerate(zip(PROMPTS, LIMITS, strict=True))
    ]
    for _ in range(after):
        engine.step()
    output = engine.outputs[names[victim]]
    ended = output.finish_reason
    for _ in range(2):
        engine.abort_request(names[victim])
        assert output.finish_reason == (ended or "abort")
        assert names[victim] not in engine.memory.holders
        engine.memory.check()
    drain(engine)
    for index, name in enumerate(names):
        tokens = engine.outputs[name].token_ids
        assert tokens == (alone[index][: len(tokens)] if index == victim else alone[index])
    assert_nothing_left(engine)
    aborts = [event for event in engine.trace.events if event.kind == "abort"]
    assert {event.request_id for event in aborts} <= {names[victim]} & set(engine.trace.requests)
    assert len(aborts) <= 1


def test_abort_of_a_future_request_is_remembered(engine):
    name = engine.add_request(PROMPTS[0], PARAMS, arrival=50)
    engine.abort_request(name)
    engine.abort_request(name)
    assert not engine.has_unfinished()
    with pytest.raises(ValueError, match=f"request_id '{name}' is taken"):
        engine.add_request(PROMPTS[0], PARAMS, request_id=name)
    assert engine.step() == [] and engine.clock.now() == 0


def test_abort_of_the_last_request_leaves_an_idle_engine(engine):
    name = engine.add_request(PROMPTS[0], PARAMS)
    engine.step()
    engine.abort_request(name)
    assert not engine.has_unfinished() and engine.step() == []
    assert_nothing_left(engine)


def test_abort_of_an_unknown_request_names_it(engine):
    with pytest.raises(ValueError, match="request_id 'nobody' is unknown"):
        engine.abort_request("nobody")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("stage", STAGES)
def test_any_mix_of_adds_steps_and_aborts_gives_everybody_his_own(random_model, alone, stage, data):
    engine = iteration_engine(random_model, stage, max_num_seqs=3, num_slots=80)
    names: dict[str, int] = {}
    aborted = set()
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["add", "add", "step", "step", "step", "abort"]))
        if action == "add":
            index = data.draw(st.integers(0, len(PROMPTS) - 1))
            arrival = engine.clock.now() + data.draw(st.sampled_from([0, 0, 1, 5]))
            names[engine.add_request(PROMPTS[index], LIMITS[index], arrival=arrival)] = index
        elif action == "step":
            engine.step()
        elif names:
            name = data.draw(st.sampled_from(list(names)))
            if engine.outputs[name].finish_reason is None:
                aborted.add(name)
            engine.abort_request(name)
        engine.memory.check()
    drain(engine)
    assert_nothing_left(engine)
    for name, index in names.items():
        tokens = engine.outputs[name].token_ids
        assert tokens == (alone[index][: len(tokens)] if name in aborted else alone[index])
        assert engine.outputs[name].finish_reason == ("abort" if name in aborted else "length")
