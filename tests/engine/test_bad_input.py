"""What an engine refuses, it refuses in one sentence that names the value and its limit."""

import math
import re

import numpy as np
import pytest
import torch
from helpers.prompts import LIMITS, PARAMS, PROMPTS, drain, ids
from helpers.sentences import assert_one_sentence
from helpers.serve import assert_nothing_left, iteration_engine

from tinyengine import STAGES, Engine, SamplingParams
from tinyengine.clock import WallClock
from tinyengine.memory import Slots
from tinyengine.scheduler import Orca

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
        ({"stage": "orca", "enable_prefix_caching": True}, "enable_prefix_caching is no option of stage 'orca'"),
        (
            {"stage": "orca", "policy": "priority", "fast": False},
            "policy is no option of stage 'orca', whose options are: none",
        ),
        ({"stage": "paged", "mixing": False}, "mixing is no option of stage 'paged'.*num_speculative_tokens"),
        ({"compiled_decode": False, "fast": False}, "compiled_decode is no option of stage 'chunked'"),
        ({"polcy": "fcfs"}, "polcy is no option of stage 'chunked'.*chunking.* policy"),
        ({"policy": "lifo"}, "policy is 'lifo', but the policies are fcfs, priority"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1"),
        ({"num_speculative_tokens": 2.5}, "num_speculative_tokens is 2.5, but must be a whole number"),
        ({"num_speculative_tokens": "3"}, "num_speculative_tokens is '3'"),
        ({"scheduler": Orca(Slots(9)), "policy": "fcfs"}, "policy is an option of a stage's own scheduler"),
    ],
    ids=lambda value: repr(value).split(" object at ")[0],
)
def test_a_bad_engine_option_is_named_with_its_value_and_limit(random_model, options, message):
    with pytest.raises(ValueError, match=message) as error:
        Engine(random_model, **options)
    assert_one_sentence(error)


def test_sizes_may_be_whole_numbers_of_any_kind(tiny):
    sizes = {"num_slots": 256, "block_size": 8, "max_num_seqs": 2, "max_num_batched_tokens": 16}
    prompts = ["What is 2 + 3?", "Count from 1 to 5."]
    texts = [
        [output.text for output in Engine(tiny, "chunked", **kind).generate(prompts)]
        for kind in (sizes, {name: np.int64(size) for name, size in sizes.items()})
    ]
    assert texts[0] == texts[1]



@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stage": ["paged"]}, "stage is ['paged'], but the stages are static"),
        ({"scheduler": 3}, "scheduler is 3, but must be an instance of a Scheduler"),
        ({"enable_prefix_caching": "yes"}, "enable_prefix_caching is 'yes', but must be True or False"),
        ({"overlap": True}, "overlap is no option of stage 'chunked'"),
        ({"fast": 1}, "fast is 1, but must be True or False"),
        ({"trace": 0}, "trace is 0, but must be 'full', a number of iterations to keep, or None"),
        ({"trace": True}, "trace is True, but must be 'full'"),
        ({"clock": WallClock}, "WallClock'>, but must be a clock: WallClock()"),
        ({"seed": []}, "seed is [], but must be a whole number"),
        ({"seed": True}, "seed is True, but must be a whole number"),
        ({"clock": 3}, "clock is 3, but must be a clock"),
        ({"scheduler": Orca(Slots(10**14)), "stage": "orca"}, "num_slots is 100000000000000, whose K/V take"),
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
