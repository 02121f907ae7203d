"""A stop in the middle of several tokens that one step has given."""

from dataclasses import replace

import pytest
from helpers.prompts import drain
from helpers.serve import PAGED, assert_nothing_left, iteration_engine

from tinyengine import SamplingParams
from tinyengine.metrics import measure
from tinyengine.workload import chat

COUNTED = chat("Count from 5 to 35.") + " ".join(map(str, range(5, 36)))


@pytest.mark.parametrize("stage", PAGED)
@pytest.mark.parametrize("stop", ["14", "1 1", " 20 2", "9", "3"])
@pytest.mark.parametrize("how", ["stop", "stop_when", "stop_token_ids"])
def test_a_stop_amid_accepted_guesses_cuts_the_output_and_the_trace(tiny, stage, stop, how):
    """The output is that of an engine without guesses, and the trace knows no token that nobody got."""
    params = SamplingParams(max_tokens=60)
    if how == "stop":
        params = replace(params, stop=stop)
    elif how == "stop_when":
        params = replace(params, stop_when=lambda token_ids: tiny.tokenizer.decode(token_ids).endswith(stop))
    else:
        params = replace(params, stop_token_ids=tiny.tokenizer(stop).input_ids[-1:])
    prompts = [COUNTED + chat(f"Count from {first} to 31.") for first in (7, 8, 6)]
    runs = []
    for num_speculative_tokens in (0, 5):
        engine = iteration_engine(tiny, stage, num_slots=1024, num_speculative_tokens=num_speculative_tokens)
        names = [engine.add_request(prompt, params) for prompt in prompts]
        drain(engine)
        assert_nothing_left(engine)
        outputs = [engine.outputs[name] for name in names]
        runs.append([(output.token_ids, output.text, output.pieces, output.finish_reason) for output in outputs])
        for name, output in zip(names, outputs):
            spans = [(i, span) for i in engine.trace.iterations for span in i.spans if span.request_id == name]
            assert [token for _, span in spans for token in span.tokens] == output.token_ids
            assert all(0 <= span.rejected <= span.draft for _, span in spans)
            assert all(i.memory[name].used == span.end for i, span in spans)
            last = [event for event in engine.trace.events if event.kind == "finish" and event.request_id == name]
            assert [event.iteration for event in last] == [engine.trace.iterations.index(spans[-1][0])]
        metrics = measure(engine.trace)
        assert metrics.output_tokens == sum(len(output.token_ids) for output in outputs)
    assert runs[0] == runs[1]
    assert all(reason == "stop" for *_, reason in runs[0])
    assert metrics.tokens_per_step > 1.2 or len(runs[0][0][0]) < 4
