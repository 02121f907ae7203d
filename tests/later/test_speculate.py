"""Guessing from the text itself, and what of the guesses is kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.request import Request, SamplingParams
from tinyengine.sampler import accept
from tinyengine.speculate import look_up, take_back


@pytest.mark.parametrize(
    ("text", "most", "guesses"),
    [
        ([], 4, []),
        ([7], 4, []),
        ([7, 8], 4, []),
        ([7, 7], 4, [7]),
        ([7, 8, 7], 4, [8, 7]),
        ([7, 8, 7], 1, [8]),
        ([7, 8, 7], 0, []),
        ([1, 2, 3, 9, 1, 2, 3], 4, [9, 1, 2, 3]),
        ([1, 2, 3, 9, 1, 2, 3], 2, [9, 1]),
        ([1, 2, 3, 8, 5, 3, 9, 1, 2, 3], 2, [8, 5]),  # three tokens match there, and one only further on
        ([2, 3, 8, 5, 3, 9, 1, 2, 3], 2, [8, 5]),  # two
        ([3, 8, 4, 3, 9, 5, 3], 2, [9, 5]),  # one and one: the later
        ([1, 2, 3, 4, 6, 0, 2, 3, 4, 7, 1, 2, 3, 4], 1, [7]),  # only three tokens are looked at: four would say 6
        ([65536, 0, 256], 2, []),  # the bytes of 256 lie across the first two, but no token is 256
        ([256, 7, 65536, 0, 256], 1, [7]),
        ([5, 5, 5, 5, 5], 3, [5]),  # the end itself is no earlier place, but may overlap with it
    ],
)
def test_look_up_by_hand(text, most, guesses):
    assert look_up(text, most) == guesses


def test_the_longest_match_can_be_chosen():
    text = [1, 2, 3, 4, 6, 0, 2, 3, 4, 7, 1, 2, 3, 4]
    assert look_up(text, 1, longest=4) == [6] and look_up(text, 1, longest=3) == [7]
    assert look_up([1, 2, 8, 2, 9, 1, 2], 1, longest=1) == [9] and look_up([1, 2, 8, 2, 9, 1, 2], 1) == [8]


@given(st.lists(st.sampled_from([0, 1, 256, 65536]), max_size=30), st.integers(0, 6), st.integers(1, 4))
@settings(deadline=None, max_examples=300)
def test_look_up_is_the_longest_and_then_the_latest_earlier_match(text, most, longest):
    before = list(text)
    found = [  # (how long the match is, where it ends)
        (n, end)
        for end in range(1, len(text))
        for n in range(1, longest + 1)
        if n <= end and text[end - n : end] == text[len(text) - n :]
    ]
    _, end = max(found, default=(0, len(text)))
    assert look_up(text, most, longest) == text[end : end + most]
    assert text == before


def guessing(guesses: list[int], left: int = 9, **params) -> Request:
    """A request as it is between plan and commit."""
    request = Request("r", [1, 2], SamplingParams(max_tokens=left, **params), eos_token_ids=(0,))
    request.tokens += guesses
    request.guesses = len(guesses)
    return request


@pytest.mark.parametrize(
    ("guesses", "chosen", "kept"),
    [
        ([5, 6, 7], [5, 6, 7, 8], [5, 6, 7, 8]),  # all right, and one more for nothing
        ([5, 6, 7], [5, 6, 9, 8], [5, 6, 9]),  # the first wrong guess still gives the right token
        ([5, 6, 7], [9, 6, 7, 8], [9]),  # what comes behind a wrong guess was chosen for another text
        ([5], [5, 5], [5, 5]),
        ([], [4], [4]),
        ([5, 0, 7], [5, 0, 7, 8], [5, 0]),  # it ends there
        ([0, 6, 7], [0, 6, 7, 8], [0]),
    ],
)
def test_accept_by_hand(guesses, chosen, kept):
    request = guessing(guesses)
    assert accept(request, chosen) == kept
    assert request.tokens == [1, 2, *guesses] and request.guesses == len(guesses)


def test_accept_stops_where_the_output_is_long_enough_and_where_a_stop_token_stands():
    assert accept(guessing([5, 6, 7], left=2), [5, 6, 7, 8]) == [5, 6]
    assert accept(guessing([5, 6, 7], stop_token_ids=(6,)), [5, 6, 7, 8]) == [5, 6]
    assert accept(guessing([0, 6], ignore_eos=True), [0, 6, 8]) == [0, 6, 8]


@given(st.data(), st.integers(1, 8), st.lists(st.integers(0, 2), max_size=5))
@settings(deadline=None, max_examples=200)
def test_whatever_is_guessed_the_output_is_that_of_one_token_at_a_time(data, left, guesses):
    """The "model" chooses by the text alone."""
    table = data.draw(st.lists(st.integers(0, 2), min_size=12, max_size=12))
    guesses = guesses[: left - 1]
    request, plain = guessing(guesses, left), guessing([], left)

    def choose(text):
        return table[(text[-1] + 3 * len(text)) % 12]

    chosen = [choose(request.tokens[: 2 + n]) for n in range(len(guesses) + 1)]
    kept = accept(request, chosen)
    while not plain.output_token_ids or not plain.reason_to_finish():
        plain.tokens.append(choose(plain.tokens))
    assert plain.output_token_ids[: len(kept)] == kept and len(kept) >= 1
    if len(kept) <= len(guesses) and kept != plain.output_token_ids:
        assert kept[-1] != guesses[len(kept) - 1], "a right guess was thrown away"


def test_guesses_are_taken_back_and_nothing_else():
    request = guessing([5, 6])
    take_back(request)
    assert request.tokens == [1, 2] and request.guesses == 0
    take_back(request)
    assert request.tokens == [1, 2]
