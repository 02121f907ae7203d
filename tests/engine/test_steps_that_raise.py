"""A step that raises can be repeated, and harms no request."""

import contextlib
import math

import pytest
from helpers.prompts import LIMITS, PROMPTS, drain, ids
from helpers.serve import assert_nothing_left, iteration_engine

from tinyengine import SamplingParams
from tinyengine.qwen3 import Qwen3


@pytest.mark.parametrize("where", ["forward", "logits"])
@pytest.mark.parametrize("at", [0, 1, 4, 9])
def test_a_step_that_raises_can_be_repeated(engine, alone, monkeypatch, where, at):
    names = [
        engine.add_request(p, limits, arrival=i) for i, (p, limits) in enumerate(zip(PROMPTS, LIMITS, strict=True))
    ]
    for _ in range(at):
        engine.step()
    with monkeypatch.context() as patch:

        def fail(*args):
            raise RuntimeError("out of memory")

        patch.setattr(*((engine, where) if where == "forward" else (Qwen3, where)), fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of memory"):
                engine.step()
            engine.memory.check()
    iterations = len(engine.trace.iterations)
    drain(engine)
    assert iterations == at and [engine.outputs[name].token_ids for name in names] == alone
    assert_nothing_left(engine)


def test_generate_that_raises_in_a_step_leaves_others_and_memory_alone(engine, alone, monkeypatch):
    other = engine.add_request(PROMPTS[2], LIMITS[2])
    real, calls = Qwen3.forward, iter(range(100))

    def fail(self, *args):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(Qwen3, "forward", fail)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, LIMITS)
    assert set(engine.memory.holders) <= {other} and set(engine.outputs.open) <= {other}
    drain(engine)
    assert engine.outputs[other].token_ids == alone[2]


def test_what_freed_slots_still_hold_harms_no_later_request(engine, alone):
    """NaN in every slot: whatever is read without having been written would show."""
    cache = engine.attention.cache
    cache.keys.fill_(math.nan)
    cache.values.fill_(math.nan)
    assert ids(engine.generate(PROMPTS, LIMITS)) == alone


def test_a_preemption_shows_in_the_trace_though_its_iteration_failed(random_model, monkeypatch):
    """The blocks of two requests run out together; the model fails in that very step, and works in the next."""
    engine = iteration_engine(random_model, "paged", num_slots=32, block_size=4)
    ids = [engine.add_request([7] * 12, SamplingParams(max_tokens=12, ignore_eos=True)) for _ in range(2)]
    whole = engine.model.forward

    def fail(*args):
        raise OSError("once")

    while engine.has_unfinished():
        if len(engine.memory.free) == 0 and not engine.memory.blocks(1) > 1:
            monkeypatch.setattr(engine.model, "forward", fail)
            with contextlib.suppress(OSError):
                engine.step()
            monkeypatch.setattr(engine.model, "forward", whole)
        engine.step()
    events = [(event.kind, event.request_id) for event in engine.trace.events]
    assert events.count(("preempt", ids[1])) == events.count(("admit", ids[1])) - 1 >= 1
