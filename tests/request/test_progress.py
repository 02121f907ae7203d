"""Request: every limit is named in one sentence, and where it stands follows from two counters."""

import math

import pytest
from helpers.sentences import assert_one_sentence

from tinyengine.request import Request, SamplingParams

NAN, INF = math.nan, math.inf
HUGE = 10**400  # a whole number that no float can hold

BAD_REQUESTS = [
    *(("request_id", value, "text") for value in ("", None, 5, b"r0", ["r0"])),
    *(("prompt", value, "") for value in ([], (), "", None, 5, 1.5, True)),
    *(("prompt", value, "at least 0") for value in ([-1], [1, 2.0], [True], ["1"], "abc", [None], [[1]])),
    *(("arrival", value, "at least 0") for value in (-0.001, NAN, INF, HUGE, True, "0", None)),
    *(("priority", value, "whole number") for value in (NAN, 0.5, True, "high", None, 2**63, -(2**63) - 1)),
]


@pytest.mark.parametrize(("field", "value", "limit"), BAD_REQUESTS, ids=lambda value: str(value)[:20])
def test_a_bad_request_is_refused_with_field_value_and_limit(field, value, limit):
    arguments = {"request_id": "r7", "prompt_token_ids": [1], "arrival": 0.0, "priority": 0}
    arguments["prompt_token_ids" if field == "prompt" else field] = value
    with pytest.raises(ValueError) as caught:
        Request(**arguments)
    assert_one_sentence(caught, field, "but", limit)
    if field == "prompt":
        assert "r7" in str(caught.value)


def test_the_edges_of_every_limit_are_allowed():
    Request("r", [0], arrival=0, priority=-5)


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
    ("tokens", "length", "reason"),
    [
        ([4, 4, 4], None, "length"),
        ([4, 4, 4], 4, "length"),
        ([4, 4, 4], 3, None),
        ([4, 0, 4], 3, "stop"),  # an end-of-sequence token that others follow
        ([4, 0, 4], 2, None),
    ],
)
def test_a_request_can_be_asked_whether_it_would_have_ended_after_so_many_tokens(tokens, length, reason):
    request = Request("r", [1], SamplingParams(max_tokens=3), eos_token_ids=(0,))
    request.tokens += tokens
    assert request.reason_to_finish(length) == reason and request.tokens == [1, *tokens]


def test_guesses_are_counted_among_its_tokens_and_belong_to_the_gap():
    request = Request("r", [1, 2, 3])
    request.computed, request.tokens, request.guesses = 2, [1, 2, 3, 8, 9], 2
    assert request.gap == 3 and request.num_prompt_tokens == 3
    assert Request("other", [1]).guesses == 0
