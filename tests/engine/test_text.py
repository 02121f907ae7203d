"""Text in and out: never half a character, and stop strings."""

from dataclasses import replace

import pytest
from helpers.prompts import drain
from helpers.serve import assert_nothing_left, iteration_engine

from tinyengine import STAGES, SamplingParams


def test_text_is_the_decoded_tokens_and_never_half_a_character(talker):
    engine = iteration_engine(talker, "selective", max_num_seqs=3, num_slots=512)
    prompts = ["the cat", "世界 🦊", "naïve", "한국어 the 🦊"]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=1))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt == prompt and output.prompt_token_ids == talker.tokenizer.encode(prompt)
        whole = talker.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        assert output.text == "".join(output.pieces) == whole.rstrip("\ufffd")
        assert len(output.pieces) == len(output.token_ids)
    assert engine.trace.pieces == {name: o.pieces for name, o in zip(engine.trace.requests, outputs, strict=True)}


def test_streamed_text_is_the_text_of_generate(talker):
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=3, stop=["zzz"])
    engine = iteration_engine(talker, "orca", num_slots=512)
    (output,) = engine.generate("the", params)
    assert "".join(token.text for token in engine.stream("the", params)) == output.text


@pytest.fixture
def free_text(talker):
    """An output of the talker without a stop, and the number of tokens after which each character was there."""
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.5, seed=11)
    (output,) = iteration_engine(talker, "selective", num_slots=256).generate("the cat", params)
    return params, output


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("first", "length"), [(0, 1), (0, 3), (5, 1), (5, 4), (9, 6), (20, 2)])
def test_a_stop_string_ends_the_output_just_before_it_and_frees_its_slots_at_once(
    talker, free_text, stage, first, length
):
    params, free = free_text
    stop = free.text[first : first + length]
    assert len(stop) == length, "the output is too short for this test"
    engine = iteration_engine(talker, stage, num_slots=256)
    name = engine.add_request("the cat", replace(params, stop=("never in it", stop)))
    while engine.has_unfinished():
        tokens = engine.step()
    output = engine.outputs[name]
    assert output.text == free.text[: free.text.index(stop)]
    assert output.finish_reason == tokens[-1].finish_reason == "stop"
    assert output.token_ids == free.token_ids[: len(output.token_ids)]
    so_far = ["".join(free.pieces[:n]) for n in range(41)]
    assert len(output.token_ids) == next(n for n, text in enumerate(so_far) if stop in text)
    assert_nothing_left(engine)
    assert [event.detail for event in engine.trace.events if event.kind == "finish"] == ["stop"]


def test_a_text_that_ends_inside_a_stop_string_is_given_whole(talker, free_text):
    params, free = free_text
    (output,) = iteration_engine(talker, "selective", num_slots=256).generate(
        "the cat", replace(params, stop=free.text[-3:] + "no")
    )
    assert output.text == free.text and output.finish_reason == "length"


def test_a_stopped_request_makes_room_for_the_next_step(talker, free_text):
    params, free = free_text
    engine = iteration_engine(talker, "orca", max_num_seqs=1, num_slots=256)
    first = engine.add_request("the cat", replace(params, stop=free.text[3:6]))
    second = engine.add_request("the cat", params)
    drain(engine)
    spans = [i.spans[0].request_id for i in engine.trace.iterations]
    assert spans == [first] * len(engine.outputs[first].token_ids) + [second] * 40
    assert engine.outputs[second].text == free.text
