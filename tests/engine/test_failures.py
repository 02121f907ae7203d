"""Whatever is thrown, and wherever: memory stays whole, the others get their own tokens, the failed one is reported."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers.serve import PAGED, Alone, assert_nothing_left, iteration_engine

from tinyengine import STAGES, SamplingParams
from tinyengine.metrics import measure
from tinyengine.qwen3 import Attention, Qwen3


class Boom(Exception):
    """What the tests throw."""


PROMPTS = [
    [(7 * place + 13 * row) % 300 for place in range(length)] for row, length in enumerate((9, 1, 23, 4, 40, 12))
]
LIMITS = [SamplingParams(max_tokens=most, ignore_eos=True) for most in (6, 12, 3, 9, 5, 16)]
TIGHT = {
    "max_num_seqs": 4,
    "num_slots": 64,
    "block_size": 4,
    "enable_prefix_caching": True,
}  # they drive each other out


def tight(model, stage: str, **options):
    """An engine of a stage with blocks, in which some request is preempted."""
    return iteration_engine(model, stage, **{**TIGHT, "num_speculative_tokens": 2, **options})


@pytest.fixture(scope="module")
def alone(random_oracle, random_model):
    right = Alone(random_oracle, random_model.eos_token_ids)
    return [right(prompt, params) for prompt, params in zip(PROMPTS, LIMITS)]


def add_all(engine, **fields) -> list[str]:
    return [
        engine.add_request(prompt, params, arrival=i, **fields)
        for i, (prompt, params) in enumerate(zip(PROMPTS, LIMITS))
    ]


def drain(engine):
    while engine.has_unfinished():
        engine.step()
        engine.memory.check()


@pytest.mark.parametrize("stage", PAGED)
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
@pytest.mark.parametrize("layer", range(3))
def test_a_forward_that_raises_in_any_step_and_layer_is_repeated(random_model, alone, monkeypatch, stage, error, layer):
    """Every second try fails, in this layer, before its K/V are written or behind that."""
    real, calls = Attention.forward, itertools.count()

    def forward(self, *args):
        call, index = divmod(next(calls), 3)
        if index < layer or call % 2:
            return real(self, *args)
        for _ in range(2 - index):  # the layers that this forward pass will not come to
            next(calls)
        if call % 4:
            real(self, *args)
        raise error

    monkeypatch.setattr(Attention, "forward", forward)
    engine = tight(random_model, stage, compiled_decode=False)
    names, failures = add_all(engine), 0
    while engine.has_unfinished():
        try:
            engine.step()
        except error:
            failures += 1
        engine.memory.check()
    assert [engine.outputs[name].token_ids for name in names] == alone
    assert_nothing_left(engine)
    assert failures in (len(engine.trace.iterations), len(engine.trace.iterations) + 1)
    assert measure(engine.trace).preemptions > 0


@pytest.mark.parametrize("stage", PAGED)
def test_a_request_can_be_aborted_between_a_failed_step_and_the_next(random_model, alone, monkeypatch, stage):
    for victim in range(len(PROMPTS)):
        engine = tight(random_model, stage)
        names = add_all(engine)
        for _ in range(7):
            engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(Qwen3, "logits", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.step()
        engine.abort_request(names[victim])
        engine.memory.check()
        drain(engine)
        for index, name in enumerate(names):
            tokens = engine.outputs[name].token_ids
            assert tokens == (alone[index][: len(tokens)] if index == victim else alone[index])
        assert_nothing_left(engine)


@pytest.mark.parametrize("stage", STAGES)
def test_generate_that_fails_ends_its_own_requests_only(random_model, alone, monkeypatch, stage):
    engine = iteration_engine(random_model, stage, num_slots=256)
    stream = engine.stream(PROMPTS[:2], LIMITS[:2])
    first, other = next(stream), engine.add_request(PROMPTS[5], LIMITS[5])
    with monkeypatch.context() as patch:
        patch.setattr(Qwen3, "forward", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(PROMPTS[2:5], LIMITS[2:5])
    assert set(engine.outputs.open) >= {other, first.request_id} and len(engine.outputs.open) <= 3
    got = {}
    for token in (first, *stream):
        got.setdefault(token.request_id, []).append(token.token_id)
    assert list(got.values()) == alone[:2]
    drain(engine)
    assert engine.outputs[other].token_ids == alone[5] and set(engine.outputs) == {other}
    assert_nothing_left(engine)


@pytest.mark.parametrize("stage", PAGED)
@pytest.mark.parametrize("state", ["waiting", "running", "preempted", "future", "ended"])
def test_abort_in_any_state(random_model, alone, stage, state):
    engine = tight(random_model, stage)
    names = add_all(engine)

    def is_in_state(name: str) -> bool:
        entry, output = engine.outputs.open.get(name), engine.outputs[name]
        request = entry and entry.request
        waits = request is not None and request in engine.scheduler.waiting
        return {
            "waiting": waits and not output.token_ids,
            "running": request in engine.scheduler.running,
            "preempted": waits and bool(output.token_ids),
            "future": name not in engine.trace.requests,
            "ended": request is None,
        }[state]

    while not (victims := [name for name in names if is_in_state(name)]):
        engine.step()
    ended = engine.outputs[victims[0]].finish_reason
    engine.abort_request(victims[0])
    assert engine.outputs[victims[0]].finish_reason == (ended or "abort")
    drain(engine)
    for name, right in zip(names, alone):
        tokens = engine.outputs[name].token_ids
        assert tokens == (right if name != victims[0] or ended else right[: len(tokens)])
    assert_nothing_left(engine)


@pytest.mark.parametrize("answer", [1, "yes", [0], np.True_, True])
@pytest.mark.parametrize("stage", STAGES)
def test_whatever_is_true_stops(random_model, alone, stage, answer):
    params = replace(LIMITS[5], stop_when=lambda token_ids: answer if len(token_ids) == 4 else type(answer)())
    (output,) = iteration_engine(random_model, stage, num_slots=64).generate([PROMPTS[5]], params)
    assert output.token_ids == alone[5][:4] and output.finish_reason == "stop" and output.error is None


@pytest.mark.parametrize("stage", STAGES)
def test_a_stop_when_that_fails_is_reported_and_harms_nobody(random_model, alone, stage):
    """It raises, or its answer is neither true nor false."""

    def explode(token_ids):
        raise Boom(len(token_ids))

    engine = iteration_engine(random_model, stage, num_slots=256)
    first = engine.add_request(PROMPTS[0], replace(LIMITS[0], stop_when=explode))
    second = engine.add_request(PROMPTS[1], replace(LIMITS[1], stop_when=lambda token_ids: np.array([1, 2])))
    names = add_all(engine)
    drain(engine)
    for name, error in ((first, Boom), (second, ValueError)):
        output = engine.outputs[name]
        assert output.finish_reason == "error" and isinstance(output.error, error) and len(output.token_ids) == 1
    assert [engine.outputs[name].token_ids for name in names] == alone
    assert_nothing_left(engine)


@pytest.mark.parametrize("at", [1, 5, 12])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", ["abort", "abort and stop", "step", "generate", "interrupt"])
def test_a_stop_when_that_uses_the_engine_costs_nobody_a_token(random_model, alone, stage, what, at):
    """Behind it in the batch are requests whose tokens are committed and not yet delivered. 12 is its last token."""

    asked = []

    def meddle(token_ids):
        asked.append(len(token_ids))
        if len(token_ids) != at:
            return False
        if what.startswith("abort"):
            engine.abort_request("meddler")
        elif what == "step":
            engine.step()
        elif what == "generate":
            assert engine.generate(PROMPTS[2], LIMITS[2])[0].token_ids == alone[2]
        elif what == "interrupt" and asked.count(at) == 1:  # it is asked again
            raise KeyboardInterrupt
        return what == "abort and stop"

    engine = iteration_engine(random_model, stage, max_num_seqs=8, num_slots=400)
    before = engine.add_request(PROMPTS[5], LIMITS[5])
    engine.add_request(PROMPTS[1], replace(LIMITS[1], stop_when=meddle), request_id="meddler")
    names, interrupts = [before, *add_all(engine)], 0
    while engine.has_unfinished():
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == (what == "interrupt")
    assert [engine.outputs[name].token_ids for name in names] == [alone[5], *alone]
    output = engine.outputs["meddler"]
    assert asked.count(at) == 1 + interrupts
    aborts = what.startswith("abort")
    assert output.finish_reason == ("abort" if aborts else "length") and output.error is None
    assert output.token_ids == (alone[1][:at] if aborts else alone[1])
    for name, own in engine.outputs.items():
        spans = [span for i in engine.trace.iterations for span in i.spans if span.request_id == name]
        assert [token for span in spans for token in span.tokens] == own.token_ids
    assert_nothing_left(engine)


@pytest.mark.parametrize("stage", STAGES)
def test_tokens_that_an_interrupt_left_behind_come_with_the_next_step(random_model, alone, stage):
    """Also where nothing is left to run, and they are all that the step has to give."""

    asked = []

    def interrupt(token_ids):
        asked.append(len(token_ids))
        if asked.count(LIMITS[0].max_tokens) == 1:
            raise KeyboardInterrupt

    engine = iteration_engine(random_model, stage, num_slots=64)
    engine.add_request(PROMPTS[0], replace(LIMITS[0], stop_when=interrupt), request_id="first")
    engine.add_request(PROMPTS[0], LIMITS[0], request_id="second")
    engine.add_request(PROMPTS[1], LIMITS[1], request_id="late", arrival=50)
    for _ in range(LIMITS[0].max_tokens - 1):
        engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.outputs["first"].finish_reason is engine.outputs["second"].finish_reason is None
    tokens = engine.step()  # which asks again
    assert [(token.request_id, token.finish_reason) for token in tokens] == [("first", "length"), ("second", "length")]
    drain(engine)
    assert [engine.outputs[name].token_ids for name in ("first", "second", "late")] == [alone[0], alone[0], alone[1]]
    assert_nothing_left(engine)
