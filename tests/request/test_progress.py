"""SamplingParams and Request: every limit is named in one sentence, and the lifecycle follows from the counters."""

import dataclasses
import math

import pytest

from tinyengine.request import SLO_CLASSES, Lifecycle, Request, SamplingParams, Slo

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
BAD_REQUESTS = [
    *(("request_id", value, "text") for value in ("", None, 5, b"r0", ["r0"])),
    *(("prompt", value, "") for value in ([], (), "", None, 5, 1.5, True)),
    *(("prompt", value, "at least 0") for value in ([-1], [1, 2.0], [True], ["1"], "abc", [None], [[1]])),
    *(("arrival", value, "at least 0") for value in (-0.001, NAN, INF, HUGE, True, "0", None)),
    *(("priority", value, "whole number") for value in (NAN, 0.5, True, "high", None, 2**63, -(2**63) - 1)),
]


def assert_one_sentence(error: ValueError, *parts: str):
    sentence = str(error)
    assert "\n" not in sentence and ". " not in sentence
    for part in parts:
        assert part in sentence, f"{part!r} is not in: {sentence}"


@pytest.mark.parametrize(("field", "value", "limit"), BAD_PARAMS)
def test_a_bad_sampling_parameter_is_refused_with_field_value_and_limit(field, value, limit):
    with pytest.raises(ValueError) as caught:
        SamplingParams(**{field: value})
    shown = value[-1] if isinstance(value, list) and field.startswith("stop") else value
    shown = {b"ab": 97, "12": "1"}.get(shown, shown) if isinstance(shown, bytes | str) else shown
    assert_one_sentence(caught.value, field, repr(shown), "but", limit)


@pytest.mark.parametrize(("field", "value", "limit"), BAD_REQUESTS)
def test_a_bad_request_is_refused_with_field_value_and_limit(field, value, limit):
    arguments = {"request_id": "r7", "prompt_token_ids": [1], "arrival": 0.0, "priority": 0}
    arguments["prompt_token_ids" if field == "prompt" else field] = value
    with pytest.raises(ValueError) as caught:
        Request(**arguments)
    assert_one_sentence(caught.value, field, "but", limit)
    if field == "prompt":
        assert "r7" in str(caught.value)


def test_the_edges_of_every_limit_are_allowed():
    SamplingParams(max_tokens=1, top_k=-1, temperature=0, top_p=1, repetition_penalty=1e-9, seed=0)
    SamplingParams(max_tokens=10**9, top_k=0, temperature=5.0, top_p=1e-9, repetition_penalty=2, seed=2**63 - 1)
    SamplingParams(seed=None, stop=None, stop_token_ids=None)
    Request("r", [0], arrival=0, priority=-5)


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


def test_the_request_keeps_its_own_copy_of_the_prompt():
    prompt = [1, 2, 3]
    request = Request("r", prompt)
    prompt.append(4)
    request.tokens.append(9)
    assert tuple(request.prompt_token_ids) == (1, 2, 3) and request.num_prompt_tokens == 3
    assert request.output_token_ids == [9]


def test_two_requests_share_nothing():
    one, other = Request("a", [1]), Request("b", [1])
    one.tokens.append(2)
    one.table.append(0)
    assert other.tokens == [1] and other.table == []
    assert one != other and Request("a", [1]) != Request("a", [1])  # identity: a batch holds requests, not values


def test_the_gap_is_what_is_left_to_compute():
    request = Request("r", [1, 2, 3, 4], SamplingParams(max_tokens=2))
    assert request.gap == 4
    request.computed = 3  # a chunk
    assert request.gap == 1
    request.computed = 4
    assert request.gap == 0
    request.tokens.append(9)
    assert request.gap == 1  # a decode step
    request.computed = 0  # preempted: prompt and output alike
    assert request.gap == 5


def test_max_slots_is_prompt_plus_max_tokens_and_does_not_move():
    request = Request("r", [1, 2, 3], SamplingParams(max_tokens=7))
    before = request.max_slots
    request.tokens.append(9)
    request.computed = 4
    assert before == request.max_slots == 10


def test_the_lifecycle_follows_from_the_counters():
    request = Request("r", [1, 2, 3], SamplingParams(max_tokens=2))
    assert request.lifecycle is Lifecycle.WAITING
    request.table = range(5)
    assert request.lifecycle is Lifecycle.INITIATION
    request.computed = 2  # a chunk of the prompt is not the end of initiation
    assert request.lifecycle is Lifecycle.INITIATION
    request.computed = 3
    request.tokens.append(9)
    assert request.lifecycle is Lifecycle.INCREMENT
    request.table, request.computed = [], 0  # preempted
    assert request.lifecycle is Lifecycle.WAITING
    request.finish_reason = "abort"
    assert request.finished and request.lifecycle is Lifecycle.FINISHED


def test_the_lifecycle_cannot_be_written():
    with pytest.raises(AttributeError):
        Request("r", [1]).lifecycle = Lifecycle.FINISHED
    assert [state.name for state in Lifecycle] == ["WAITING", "INITIATION", "INCREMENT", "FINISHED"]


@pytest.mark.parametrize(
    ("params", "output", "reason"),
    [
        (SamplingParams(max_tokens=3), [7], None),
        (SamplingParams(max_tokens=3), [7, 7], None),
        (SamplingParams(max_tokens=3), [7, 7, 7], "length"),
        (SamplingParams(max_tokens=1), [7], "length"),
        (SamplingParams(max_tokens=3), [5], "stop"),
        (SamplingParams(max_tokens=3), [6], "stop"),  # a model can have several end-of-sequence tokens
        (SamplingParams(max_tokens=3, ignore_eos=True), [5], None),
        (SamplingParams(max_tokens=2, ignore_eos=True), [5, 6], "length"),
        (SamplingParams(max_tokens=3, stop_token_ids=[8]), [8], "stop"),
        (SamplingParams(max_tokens=3, stop_token_ids=[8], ignore_eos=True), [8], "stop"),
        (SamplingParams(max_tokens=1), [5], "stop"),  # both at once: it said what it had to say
        (SamplingParams(max_tokens=3), [5, 7], None),  # only the newest token counts
    ],
)
def test_a_request_ends_for_the_reason_its_newest_token_gives(params, output, reason):
    request = Request("r", [1, 5], params, eos_token_ids=(5, 6))  # its prompt ends with an end-of-sequence token
    request.tokens += output
    assert request.reason_to_finish() == reason


@pytest.mark.parametrize(
    ("new", "reason"), [([4], None), ([4, 4], "length"), ([0], "stop"), ([4, 0], "stop"), ([], None)]
)
def test_a_request_can_be_asked_what_tokens_would_do_before_it_has_them(new, reason):
    request = Request("r", [1], SamplingParams(max_tokens=3), eos_token_ids=(0,))
    request.tokens.append(4)
    assert request.reason_to_finish(new) == reason and request.tokens == [1, 4]


def test_guesses_belong_to_the_gap_and_are_no_tokens():
    request = Request("r", [1, 2, 3])
    request.computed, request.draft = 2, [8, 9]
    assert request.gap == 3 and request.tokens == [1, 2, 3] and request.output_token_ids == []


@pytest.mark.parametrize("name", ["ttft", "tbt"])
@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "1", True])
def test_a_promise_is_a_number_of_seconds_above_0(name, seconds):
    with pytest.raises(ValueError, match=f"the {name} of an Slo is .* above 0"):
        Slo(**{name: seconds})


def test_a_deadline_is_arrival_plus_the_promise():
    assert Request("r", [1], arrival=3.0, slo=Slo(ttft=0.5)).deadline == 3.5
    assert Request("r", [1], arrival=3.0, slo=Slo(tbt=0.5)).deadline == Request("r", [1]).deadline == math.inf


def test_the_classes_promise_less_and_less():
    interactive, standard, batch = (SLO_CLASSES[name] for name in ("interactive", "standard", "batch"))
    assert interactive.ttft < standard.ttft and interactive.tbt < standard.tbt and batch == Slo()


@pytest.mark.parametrize("value", [7, "stop", [1]])
def test_stop_when_is_a_function(value):
    with pytest.raises(ValueError, match=r"stop_when is .* must be a function"):
        SamplingParams(stop_when=value)
