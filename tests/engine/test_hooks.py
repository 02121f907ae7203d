"""What a hook in the model does to the engine that runs it."""

import pytest
from helpers.serve import assert_nothing_left

from tinyengine import Engine, SamplingParams
from tinyengine.clock import IterationClock
from tinyengine.overlap import OverlappedEngine

PROMPTS = ["Count from 7 to 31.", "Count from 1 to 9.", "What is 23 + 45?"]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def hooked(engine, call, at: int):
    """`call` is made inside of the model's pass number `at`."""
    right, passes = engine.forward, []

    def forward(batch):
        passes.append(batch)
        if len(passes) == at:
            call()
        return right(batch)

    engine.forward = forward


@pytest.mark.parametrize("kind", [Engine, OverlappedEngine])
@pytest.mark.parametrize("guesses", [0, 4])
@pytest.mark.parametrize("at", [1, 3, 6])
def test_an_abort_in_the_model_costs_no_other_request_a_token(tiny, kind, guesses, at):
    alone = [Engine(tiny, "static", num_slots=128).generate(prompt, PARAMS)[0].token_ids for prompt in PROMPTS]
    engine = kind(tiny, num_slots=256, num_speculative_tokens=guesses, clock=IterationClock())
    ids = [engine.add_request(prompt, PARAMS) for prompt in PROMPTS]
    hooked(engine, lambda: engine.abort_request(ids[0]), at)
    while engine.has_unfinished():
        engine.step()
        engine.memory.check()
    assert [engine.outputs[name].token_ids for name in ids[1:]] == alone[1:]
    first = engine.outputs[ids[0]]
    assert first.finish_reason == "abort" and first.token_ids == alone[0][: len(first.token_ids)]
    spans = [span for iteration in engine.trace.iterations for span in iteration.spans if span.request_id == ids[0]]
    assert [token for span in spans for token in span.tokens] == first.token_ids
    assert_nothing_left(engine)


def test_a_step_inside_of_the_model_is_refused_and_costs_nothing(tiny):
    engine, refused = Engine(tiny, num_slots=256), []

    def call():
        for attempt in (engine.step, lambda: engine.generate("What is 23 + 45?")):
            with pytest.raises(RuntimeError, match="inside its own model") as error:
                attempt()
            refused.append(error)

    hooked(engine, call, 3)
    assert engine.generate(PROMPTS[2])[0].text == "68" and len(refused) == 2
    assert_nothing_left(engine)


def test_an_id_may_be_taken_again_in_a_stop_when(tiny):
    engine = Engine(tiny, num_slots=256, trace=None)

    def again(token_ids):
        if len(token_ids) == 2:
            engine.abort_request("a")
            engine.outputs.pop("a")
            engine.add_request(PROMPTS[2], request_id="a")
            return True

    engine.add_request(PROMPTS[0], SamplingParams(stop_when=again), request_id="a")
    while engine.has_unfinished():
        engine.step()
    assert engine.outputs["a"].text == "68"
    assert_nothing_left(engine)
