"""The engine from outside: whole outputs, tokens as they come, and any number of both at once."""

import gc
import random

import numpy as np
import pytest
import torch
from helpers.prompts import LIMITS, PARAMS, PROMPTS, drain, ids
from helpers.serve import assert_nothing_left

from tinyengine import SamplingParams


def test_generate_keeps_the_order_of_the_prompts(engine, alone):
    outputs = engine.generate(PROMPTS, LIMITS)
    assert ids(outputs) == alone
    assert [output.prompt_token_ids for output in outputs] == PROMPTS
    assert all(output.finish_reason == "length" and output.text == "" for output in outputs)
    assert_nothing_left(engine)
    assert not engine.outputs


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor])
def test_one_prompt_is_a_list_of_one(engine, alone, form):
    one = form(PROMPTS[0])
    assert ids(engine.generate(one, LIMITS[0])) == alone[:1]
    assert ids(engine.generate([one], LIMITS[0])) == alone[:1]
    assert [token.token_id for token in engine.stream(one, LIMITS[0])] == alone[0]


def test_a_matrix_of_ids_is_a_list_of_prompts(engine):
    matrix = np.array([[1, 2, 3], [4, 5, 6]])
    assert ids(engine.generate(matrix, PARAMS)) == ids(engine.generate([[1, 2, 3], [4, 5, 6]], PARAMS))


def test_no_prompts_no_outputs(engine):
    assert engine.generate([]) == [] and list(engine.stream([])) == []


@pytest.mark.parametrize("use_tqdm", [False, True])
def test_the_progress_bar_counts_finished_requests_on_request(engine, capsys, use_tqdm):
    engine.generate(PROMPTS[:3], PARAMS, use_tqdm=use_tqdm)
    assert ("3/3" in capsys.readouterr().err) == use_tqdm


@pytest.mark.parametrize("count", [0, 2, 4])
def test_as_many_params_as_prompts(engine, count):
    with pytest.raises(ValueError, match=f"params has {count} entries, but there are 3 prompts"):
        engine.generate(PROMPTS[:3], [PARAMS] * count)
    assert_nothing_left(engine)


def test_one_bad_prompt_of_several_leaves_none_behind(engine):
    with pytest.raises(ValueError, match="token id 300"):
        engine.generate([[1, 2], [300], [3]], PARAMS)
    assert_nothing_left(engine)
    assert not engine.outputs and not engine.trace.iterations


def test_a_stream_gives_the_tokens_of_generate_as_they_come(engine, alone):
    tokens = list(engine.stream(PROMPTS, LIMITS))
    names = list(dict.fromkeys(engine.trace.requests))
    assert [[t.token_id for t in tokens if t.request_id == name] for name in names] == alone
    for name in names:
        *before, last = [t.finish_reason for t in tokens if t.request_id == name]
        assert before == [None] * len(before) and last == "length"
    assert_nothing_left(engine)


def test_a_stream_yields_before_the_next_step(engine):
    stream = engine.stream(PROMPTS[0], PARAMS)
    for count in range(1, 5):
        next(stream)
        assert len(engine.trace.iterations) == count


@pytest.mark.parametrize("how", ["close", "forget"])
def test_a_stream_that_is_never_read_leaves_nothing(engine, how):
    stream = engine.stream(PROMPTS, PARAMS)
    assert len(engine.outputs.open) == len(PROMPTS) == len(stream.outputs)
    if how == "close":
        stream.close()
    del stream
    gc.collect()
    assert_nothing_left(engine)
    assert not engine.outputs and not engine.trace.iterations


def test_a_stream_has_the_outputs_of_its_requests(engine, alone):
    stream = engine.stream(PROMPTS[:2], LIMITS[:2])
    for token in stream:
        output = next(output for output in stream.outputs if output.request_id == token.request_id)
        assert output.token_ids[-1] == token.token_id and output.finish_reason == token.finish_reason
    assert ids(stream.outputs) == alone[:2] and list(stream) == []


@pytest.mark.parametrize("bad", [[[300]], [[1], [300]], 7])
def test_a_stream_of_a_bad_prompt_is_refused_when_it_is_made(engine, bad):
    with pytest.raises(ValueError, match=r"token id 300|must be a prompt or a list of them"):
        engine.stream(bad, PARAMS)
    assert_nothing_left(engine)
    assert not engine.outputs


@pytest.mark.parametrize("after", [1, 2, 7, 20])
@pytest.mark.parametrize("how", ["close", "forget", "raise"])
def test_a_stream_that_ends_early_leaks_nothing_and_harms_nobody(engine, alone, how, after):
    other = engine.add_request(PROMPTS[2], LIMITS[2])
    late = engine.add_request(PROMPTS[5], LIMITS[5], arrival=3)
    stream = engine.stream(PROMPTS, LIMITS)
    if how == "raise":
        with pytest.raises(ZeroDivisionError):
            try:
                for count, _ in enumerate(stream, 1):
                    if count == after:
                        raise ZeroDivisionError
            finally:
                stream.close()
    else:
        for _ in range(after):
            next(stream)
        if how == "close":
            stream.close()
        del stream
        gc.collect()
    assert set(engine.outputs.open) <= {other, late}
    assert set(engine.memory.holders) <= {other, late}
    engine.memory.check()
    drain(engine)
    assert engine.outputs[other].token_ids == alone[2] and engine.outputs[late].token_ids == alone[5]
    assert_nothing_left(engine)
    assert set(engine.outputs) == {other, late}


@pytest.mark.parametrize("seed", range(4))
def test_streams_side_by_side_each_get_their_own_tokens(engine, alone, seed):
    rng = random.Random(seed)
    streams = {index: engine.stream(PROMPTS[index], LIMITS[index]) for index in range(len(PROMPTS))}
    got = {index: [] for index in streams}
    while streams:
        index = rng.choice(list(streams))
        token = next(streams[index], None)
        if token is None:
            del streams[index]
        else:
            got[index].append(token.token_id)
    assert list(got.values()) == alone
    assert_nothing_left(engine)


def test_generate_inside_a_stream_serves_both(engine, alone):
    got = []
    for token in engine.stream(PROMPTS[1], LIMITS[1]):
        got.append(token.token_id)
        if len(got) == 3:
            assert ids(engine.generate(PROMPTS[2:5], LIMITS[2:5])) == alone[2:5]
    assert got == alone[1]


def test_a_request_of_a_stream_aborted_by_somebody_else_ends_the_stream(engine):
    stream = engine.stream(PROMPTS[0], PARAMS)
    first = next(stream)
    engine.abort_request(first.request_id)
    assert list(stream) == []
    assert_nothing_left(engine)


@pytest.mark.parametrize("end", ["run", "abort"])
def test_an_output_taken_out_before_its_end_is_still_filled(engine, end):
    output = engine.outputs.pop(engine.add_request([5, 6], SamplingParams(max_tokens=3, ignore_eos=True)))
    engine.step()
    if end == "abort":
        engine.abort_request(output.request_id)
    while engine.has_unfinished():
        engine.step()
    assert output.finish_reason == {"run": "length", "abort": "abort"}[end]
    assert len(output.token_ids) == {"run": 3, "abort": 1}[end]
    assert_nothing_left(engine)
