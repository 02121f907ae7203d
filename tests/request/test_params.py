"""SamplingParams and Slo: every limit is named in one sentence."""

import dataclasses
import math

import pytest
from helpers.sentences import assert_one_sentence

from tinyengine.request import SLO_CLASSES, SamplingParams, Slo

NAN, INF = math.nan, math.inf
HUGE = 10**400  # a whole number that no float can hold

# field, bad value, what the sentence must say beside the value
BAD_PARAMS = [
    *(("max_tokens", value, "at least 1") for value in (0, -1, True, 1.0, NAN, INF, "8", None, [8])),
    *(("top_k", value, "at least -1") for value in (-2, True, 5.0, NAN, "5", None)),
    *(("temperature", value, "at least 0") for value in (-0.1, -1, NAN, INF, -INF, HUGE, True, "1", None, [0.5])),
    *(("top_p", value, "above 0 and at most 1") for value in (0, -0.5, 1.0001, 2, NAN, INF, HUGE, True, "1", None)),
    *(("repetition_penalty", value, "above 0") for value in (0, 0.0, -1.5, NAN, INF, HUGE, True, "1", None)),
    *(("seed", value, "at least 0") for value in (-1, True, 1.0, NAN, "1")),
    ("seed", 2**63, "below 9223372036854775808"),
    *(("stop", value, "") for value in ("", [""], ["a", ""], [3], [None], b"ab", 5, 0, False, 1.5)),
    *(("stop_token_ids", value, "") for value in ([-1], [1.0], ["1"], "12", [True], [None], 5, 0, False)),
    *(("ignore_eos", value, "True or False") for value in (0, 1, "no", None)),
]


@pytest.mark.parametrize(("field", "value", "limit"), BAD_PARAMS, ids=lambda value: str(value)[:20])
def test_a_bad_sampling_parameter_is_refused_with_field_value_and_limit(field, value, limit):
    with pytest.raises(ValueError) as caught:
        SamplingParams(**{field: value})
    shown = value[-1] if isinstance(value, list) and field.startswith("stop") else value
    shown = {b"ab": 97, "12": "1"}.get(shown, shown) if isinstance(shown, bytes | str) else shown
    assert_one_sentence(caught, field, repr(shown), "but", limit)


def test_the_edges_of_every_limit_are_allowed():
    SamplingParams(max_tokens=1, top_k=-1, temperature=0, top_p=1, repetition_penalty=1e-9, seed=0)
    SamplingParams(max_tokens=10**9, top_k=0, temperature=5.0, top_p=1e-9, repetition_penalty=2, seed=2**63 - 1)
    SamplingParams(seed=None, stop=None, stop_token_ids=None)


def test_one_stop_string_is_not_taken_for_its_letters():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "bc"]).stop == ("a", "bc")
    assert SamplingParams().stop == SamplingParams(stop=None).stop == SamplingParams(stop=[]).stop == ()
    assert SamplingParams(stop_token_ids=[3, 1]).stop_token_ids == (3, 1)


def test_params_cannot_be_changed_behind_the_checks():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().max_tokens = 0
    assert hash(SamplingParams(stop=["a"], stop_token_ids=[1])) == hash(SamplingParams(stop="a", stop_token_ids=(1,)))


def test_replace_checks_the_limits_again():
    with pytest.raises(ValueError, match="top_p"):
        dataclasses.replace(SamplingParams(), top_p=0)


@pytest.mark.parametrize("name", ["ttft", "tbt"])
@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "1", True])
def test_a_promise_is_a_number_of_seconds_above_0(name, seconds):
    with pytest.raises(ValueError, match=f"the {name} of an Slo is .* above 0"):
        Slo(**{name: seconds})


def test_the_classes_promise_less_and_less():
    interactive, standard, batch = (SLO_CLASSES[name] for name in ("interactive", "standard", "batch"))
    assert interactive.ttft < standard.ttft and interactive.tbt < standard.tbt and batch == Slo()


@pytest.mark.parametrize("value", [7, "stop", [1]])
def test_stop_when_is_a_function(value):
    with pytest.raises(ValueError, match=r"stop_when is .* must be a function"):
        SamplingParams(stop_when=value)
