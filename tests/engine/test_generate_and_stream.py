"""The engine from outside: what it promises to the caller, whatever the caller does and whatever goes wrong."""

import contextlib
import gc
import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.serve import assert_nothing_left, iteration_engine
from helpers.tokenizer import byte_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyengine import STAGES, Engine, SamplingParams, Trace
from tinyengine.compiled_decode import CompiledDecode
from tinyengine.inputs import CPU_KV_BYTES, estimate_num_slots
from tinyengine.memory import Slots
from tinyengine.qwen3 import Qwen3
from tinyengine.scheduler import Orca

RNG = random.Random(4)
PROMPTS = [[RNG.randrange(300) for _ in range(length)] for length in (9, 1, 23, 4, 40, 2, 15)]
LIMITS = [SamplingParams(max_tokens=most, ignore_eos=True) for most in (6, 12, 3, 9, 1, 16, 5)]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def alone(random_oracle):
    return [random_oracle.generate(prompt, params) for prompt, params in zip(PROMPTS, LIMITS, strict=True)]


@pytest.fixture(params=STAGES)
def engine(request, random_model):
    return iteration_engine(random_model, request.param, max_num_seqs=3, num_slots=128)


@pytest.fixture
def talker(random_model):
    """The random model with a tokenizer whose tokens end anywhere in a character."""
    model = Qwen3(random_model.config)
    model.__dict__.update(random_model.__dict__)
    model.tokenizer = byte_tokenizer()
    return model


def ids(outputs) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def drain(engine) -> list:
    tokens = []
    while engine.has_unfinished():
        tokens += engine.step()
    return tokens


# ---- generate and stream -------------------------------------------------------------------------------------------


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


def test_a_stream_that_is_never_started_adds_nothing(engine):
    stream = engine.stream(PROMPTS, PARAMS)
    assert not engine.has_unfinished()
    stream.close()
    assert_nothing_left(engine)


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
    assert set(engine._requests) <= {other, late}
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


# ---- abort ---------------------------------------------------------------------------------------------------------


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


# ---- Clock, arrivals, trace ----------------------------------------------------------------------------------------


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


# ---- Faults inside -------------------------------------------------------------------------------------------------


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

        patch.setattr(Qwen3, where, fail)
        if where == "forward":
            patch.setattr(CompiledDecode, "__call__", fail)
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
    assert set(engine.memory.holders) <= {other} and set(engine._requests) <= {other}
    drain(engine)
    assert engine.outputs[other].token_ids == alone[2]


def test_what_freed_slots_still_hold_harms_no_later_request(engine, alone):
    """NaN in every slot: whatever is read without having been written would show."""
    cache = engine.attention.cache
    cache.keys.fill_(math.nan)
    cache.values.fill_(math.nan)
    assert ids(engine.generate(PROMPTS, LIMITS)) == alone


class Newest(Orca):
    """Last come, first served, one at a time."""

    def schedule(self):
        if not self.running and self.waiting:
            self.waiting.reverse()
            self._admit()
            self.waiting.reverse()
        return [(request, request.gap) for request in self.running]


@pytest.mark.parametrize("stage", STAGES)
def test_a_learner_s_scheduler_and_memory_are_used(random_model, alone, stage):
    scheduler = Newest(Slots(77), max_num_seqs=1)
    engine = iteration_engine(random_model, stage, scheduler=scheduler)
    names = [engine.add_request(prompt, limits) for prompt, limits in zip(PROMPTS, LIMITS, strict=True)]
    finished = [token.request_id for token in drain(engine) if token.finish_reason]
    assert engine.scheduler is scheduler and engine.memory is scheduler.memory
    assert engine.attention.cache.keys.shape[1] == engine.trace.num_slots == 77
    assert engine.trace.max_num_seqs == 1
    assert finished == names[::-1]
    assert [engine.outputs[name].token_ids for name in names] == alone


def test_a_scheduler_that_is_stuck_is_named(random_model):
    class Stuck(Orca):
        def schedule(self):
            return []

    engine = Engine(random_model, scheduler=Stuck(Slots(64)))
    engine.add_request([1], PARAMS)
    with pytest.raises(RuntimeError, match=r"Stuck.schedule\(\) planned nothing, with 1 requests waiting"):
        engine.step()


@pytest.mark.parametrize(("stage", "block_size"), [("selective", 16), ("chunked", 16), ("chunked", 1), ("paged", 256)])
def test_num_slots_is_what_fits_the_stated_budget_in_whole_blocks(random_model, stage, block_size):
    slots = estimate_num_slots(random_model)
    per_slot = 2 * 3 * 2 * 16 * 4  # K and V, layers, kv heads, head_dim, bytes of a float32
    assert slots * per_slot <= CPU_KV_BYTES < (slots + 1) * per_slot
    engine = Engine(random_model, stage, block_size=block_size)
    whole = slots // engine.memory.block_size * engine.memory.block_size
    assert engine.memory.block_size == (1 if stage == "selective" else block_size)
    assert engine.memory.n_slots == whole == engine.attention.cache.keys.shape[1]
    assert engine.attention.cache.keys.nbytes + engine.attention.cache.values.nbytes <= CPU_KV_BYTES


@pytest.mark.cuda
def test_num_slots_on_a_gpu_leaves_room_for_activations(random_folder):
    from tinyengine import load_model

    model = load_model(random_folder, "cuda")
    free, _ = torch.cuda.mem_get_info()
    assert 0.7 * free < estimate_num_slots(model) * 2 * 3 * 2 * 16 * 4 <= 0.8 * free


# ---- Text ----------------------------------------------------------------------------------------------------------


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


# ---- Bad input -----------------------------------------------------------------------------------------------------

NAN = math.nan
BAD_PARAMS = [
    ({"max_tokens": 0}, "max_tokens is 0, but must be a whole number of at least 1"),
    ({"max_tokens": -3}, "max_tokens is -3"),
    ({"max_tokens": 2.5}, "max_tokens is 2.5"),
    ({"max_tokens": None}, "max_tokens is None"),
    ({"top_p": 0}, "top_p is 0, but must be a finite number above 0 and at most 1"),
    ({"top_p": 1.5}, "top_p is 1.5"),
    ({"top_p": NAN}, "top_p is nan"),
    ({"temperature": -0.1}, "temperature is -0.1, but must be a finite number at least 0"),
    ({"temperature": NAN}, "temperature is nan"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"temperature": "hot"}, "temperature is 'hot'"),
    ({"top_k": -2}, "top_k is -2"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ({"repetition_penalty": NAN}, "repetition_penalty is nan"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 2**63}, "seed is 9223372036854775808"),
    ({"stop": ""}, "stop holds ''"),
    ({"stop": ["a", 3]}, "stop holds 3"),
    ({"stop_token_ids": [-1]}, "a token of stop_token_ids is -1"),
]
BAD_PROMPTS = [
    ([], "has 0 tokens, but at least 1 is needed"),
    ([1, 300], "holds token id 300, but the model's vocabulary ends at 299"),
    ([1, -1], "is -1, but must be a whole number of at least 0"),
    (None, "is NoneType, but must be text or whole token ids"),
    (7, "is int, but must be text or whole token ids"),
    ([1.0, 2.0], "is list, but must be text or whole token ids"),
    (np.array([1.0, 2.0]), "is ndarray, but must be text or whole token ids"),
    (torch.tensor([1.5]), "is Tensor, but must be text or whole token ids"),
    (b"hello", "is bytes, but must be text or whole token ids"),
    (["a", "b"], "is list, but must be text or whole token ids"),
    ([[1, 2]], "is list, but must be text or whole token ids"),
    ("hello", "is text, but the model has no tokenizer"),
    ([1] * 505, "prompt 505 \\+ max_tokens 8.*the model has 512 positions"),
    ([1] * 130, "prompt 130 \\+ max_tokens 8.*the arena has 128"),
]


def assert_one_sentence(error):
    text = str(error.value)
    assert "\n" not in text and len(text) < 300 and not text.endswith(".") and ". " not in text, text


@pytest.mark.parametrize(("params", "message"), BAD_PARAMS, ids=repr)
def test_a_bad_parameter_is_named_with_its_value_and_limit(params, message):
    with pytest.raises(ValueError, match=message) as error:
        SamplingParams(**params)
    assert_one_sentence(error)


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS, ids=lambda value: repr(value)[:20])
def test_a_bad_prompt_is_refused_and_the_others_are_served(engine, alone, prompt, message):
    names = [engine.add_request(p, limits) for p, limits in zip(PROMPTS[:3], LIMITS, strict=False)]
    for _ in range(3):
        with pytest.raises(ValueError, match=message) as error:
            engine.add_request(prompt, PARAMS)
        assert_one_sentence(error)
        engine.step()
    drain(engine)
    assert [engine.outputs[name].token_ids for name in names] == alone[:3]
    assert_nothing_left(engine)
    assert list(engine.trace.requests) == names == list(engine.outputs)


@pytest.mark.parametrize("prompt", [None, 7, True])
def test_generate_too_says_what_a_prompt_is(engine, prompt):
    with pytest.raises(ValueError, match="must be a prompt or a list of them") as error:
        engine.generate(prompt)
    assert_one_sentence(error)


def test_ids_of_any_whole_number_type_are_a_prompt(engine, alone):
    forms = (np.array(PROMPTS[0], dtype=np.uint16), torch.tensor(PROMPTS[0]), map(int, PROMPTS[0]), tuple(PROMPTS[0]))
    names = [engine.add_request(form, LIMITS[0]) for form in forms]
    drain(engine)
    assert [engine.outputs[name].token_ids for name in names] == [alone[0]] * 4
    assert all(type(token) is int for name in names for token in engine.outputs[name].prompt_token_ids)


def test_a_request_that_just_fits_is_served(engine):
    """prompt + max_tokens equal to the arena; one more is refused. Blocks on demand hold one token more: nothing ever
    attends to the last one, and nobody reserves for it."""
    most = 128 if isinstance(engine.memory, Slots) else 129
    (output,) = engine.generate([1] * (most - 8), PARAMS)
    assert len(output.token_ids) == 8
    with pytest.raises(ValueError, match=f"can come to need {most + 1} K/V slots"):
        engine.generate([1] * (most - 7), PARAMS)


def test_a_request_up_to_the_last_position_is_served(random_model, random_oracle):
    prompt = [7, 8] * 252
    (output,) = Engine(random_model, num_slots=600).generate([prompt], PARAMS)
    assert output.token_ids == random_oracle.generate(prompt, PARAMS)


@pytest.mark.parametrize("moment", ["waiting", "running", "future", "finished"])
def test_an_id_is_taken_for_ever(engine, moment):
    engine.add_request([1], PARAMS, request_id="mine", arrival=9 if moment == "future" else None)
    for _ in range({"running": 2, "finished": 10}.get(moment, 0)):
        engine.step()
    with pytest.raises(ValueError, match="request_id 'mine' is taken") as error:
        engine.add_request([1], PARAMS, request_id="mine")
    assert_one_sentence(error)
    drain(engine)
    assert len(engine.outputs["mine"].token_ids) == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"request_id": []}, r"request_id is \[\], but must be text"),
        ({"request_id": 3}, "request_id is 3, but must be text"),
        ({"slo": "unknown"}, "slo is 'unknown', but the classes are interactive, standard, batch"),
        ({"slo": 0.5}, "slo is 0.5, but must be an Slo or one of"),
        ({"priority": 0.5}, "priority is 0.5, but must be a whole number"),
    ],
    ids=repr,
)
def test_a_bad_field_is_refused_and_no_seed_is_used_up(random_model, fields, message):
    drawn = SamplingParams(max_tokens=6, temperature=1.0, ignore_eos=True)
    said = []
    for attempts in (0, 2):
        engine = iteration_engine(random_model, "chunked", num_slots=64)
        for _ in range(attempts):
            with pytest.raises(ValueError, match=message) as error:
                engine.add_request([1], drawn, **fields)
            assert_one_sentence(error)
        assert not engine.has_unfinished() and not engine.outputs
        said.append(ids(engine.generate([[1, 2]], drawn)))
    assert said[0] == said[1]


def test_an_arrival_in_the_past_is_served_at_once_and_measured_from_then(engine, alone):
    drained = engine.generate([PROMPTS[5]], LIMITS[5])
    assert len(drained[0].token_ids) == engine.clock.now() == 16
    name = engine.add_request(PROMPTS[0], LIMITS[0], arrival=2.5)
    assert engine.step()[0].request_id == name and engine.trace.requests[name].arrival == 2.5
    drain(engine)
    assert engine.outputs[name].token_ids == alone[0]


@pytest.mark.parametrize("arrival", [NAN, math.inf, -1.0, "soon"])
def test_a_bad_arrival_is_refused(engine, arrival):
    with pytest.raises(ValueError, match="arrival is") as error:
        engine.add_request([1], PARAMS, arrival=arrival)
    assert_one_sentence(error)
    assert not engine.has_unfinished() and not engine.outputs


def test_a_stop_string_needs_a_tokenizer(engine):
    with pytest.raises(ValueError, match=r"stop is \('x',\), but the model has no tokenizer") as error:
        engine.add_request([1], SamplingParams(stop="x"))
    assert_one_sentence(error)
    assert not engine.has_unfinished()


def test_an_empty_text_is_an_empty_prompt(talker):
    with pytest.raises(ValueError, match="the prompt of request 'r0' has 0 tokens"):
        iteration_engine(talker, "selective", num_slots=64).generate("")


def test_half_a_surrogate_pair_is_no_text(talker):
    engine = iteration_engine(talker, "selective", num_slots=64)
    with pytest.raises(ValueError, match="is text that has no UTF-8 form") as error:
        engine.add_request("\ud800")
    assert_one_sentence(error)
    assert_nothing_left(engine)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, 3, "greedy"])
def test_params_of_another_type_are_refused(engine, params):
    with pytest.raises(ValueError, match="but must be SamplingParams") as error:
        engine.add_request([1], params)
    assert_one_sentence(error)
    assert_nothing_left(engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": "magic"}, f"stage is 'magic', but the stages are {', '.join(STAGES)}"),
        ({"num_slots": 0}, "num_slots is 0, but must be a whole number of at least 1"),
        ({"num_slots": -4}, "num_slots is -4"),
        ({"num_slots": 10.5}, "num_slots is 10.5"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0, but must be a whole number of at least 1"),
        ({"max_num_seqs": None}, "max_num_seqs is None"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"max_num_batched_tokens": None}, "max_num_batched_tokens is None"),
        ({"block_size": 0}, "block_size is 0"),
        ({"block_size": True}, "block_size is True, but must be a whole number of at least 1"),
        ({"block_size": "16"}, "block_size is '16'"),
        ({"block_size": 3}, "block_size is 3, but must be a power of two"),
        ({"num_slots": 15}, "num_slots is 15, but a block has 16 slots"),
        ({"stage": "orca", "enable_prefix_caching": True}, "enable_prefix_caching is True, but only stages"),
        ({"stage": "orca", "policy": "priority"}, "policy is no option of stage 'orca', whose options are: none"),
        ({"stage": "paged", "mixing": False}, "mixing is no option of stage 'paged'.*: num_speculative_tokens"),
        ({"polcy": "fcfs"}, "polcy is no option of stage 'chunked'.*chunking.* policy"),
        ({"policy": "lifo"}, "policy is 'lifo', but the policies are fcfs, priority"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1"),
        ({"num_speculative_tokens": 2.5}, "num_speculative_tokens is 2.5, but must be a whole number"),
        ({"num_speculative_tokens": "3"}, "num_speculative_tokens is '3'"),
        ({"scheduler": Orca(Slots(9)), "policy": "fcfs"}, "policy is an option of a stage's own scheduler"),
    ],
    ids=repr,
)
def test_a_bad_engine_option_is_named_with_its_value_and_limit(random_model, options, message):
    with pytest.raises(ValueError, match=message) as error:
        Engine(random_model, **options)
    assert_one_sentence(error)


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stage": ["paged"]}, "stage is ['paged'], but the stages are static"),
        ({"scheduler": 3}, "scheduler is 3, but must be an instance of a Scheduler"),
        ({"enable_prefix_caching": "yes"}, "enable_prefix_caching is 'yes', but must be True or False"),
        ({"overlap": 1}, "overlap is 1, but must be True or False"),
        ({"chunking": "no"}, "chunking is 'no', but must be True or False"),
        ({"budget": 3}, "budget is 3, but must be an AdaptiveBudget"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens is True, but must be a whole number"),
        ({"num_slots": 10**14}, "num_slots is 100000000000000, whose K/V take"),
    ],
)
def test_an_engine_of_wrong_parts_is_refused_in_a_sentence(random_model, wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Engine(random_model, **wrong)


def test_a_name_is_no_model():
    with pytest.raises(ValueError, match=re.escape("model is 'tiny', but must be a model: load_model('tiny'), say")):
        Engine("tiny")


@pytest.mark.parametrize("params", [5, {"max_tokens": 3}])
def test_params_of_another_kind_are_refused_in_a_sentence(engine, params):
    with pytest.raises(ValueError, match="but must be SamplingParams, or a list with one for each prompt"):
        engine.generate([[1, 2]], params)


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
