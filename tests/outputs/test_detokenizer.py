"""Text as it comes: the pieces make the whole, and none of them ends inside a character or a stop string."""

import pytest
from helpers.tokenizer import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.detokenizer import Detokenizer

HALF = "\N{REPLACEMENT CHARACTER}"
SAMPLES = ["hello", "世界", "🦊🦊🦊", "👩‍👩‍👧‍👦", "🇫🇷🇩🇪", "e\u0301a\u0308", "한국어", "  two  spaces ", "\n\t\x00"]
SAMPLES += ["naïve café", "שלום"]
TOKENIZER = byte_tokenizer()
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=HALF), max_size=40)


@pytest.fixture(scope="module", params=["splits characters", "embedded"])
def tokenizer(request):
    return request.getfixturevalue("tiny").tokenizer if request.param == "embedded" else TOKENIZER


def pieces_of(tokenizer, tokens, stop=()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, stop)
    pieces = []
    for token in tokens:
        pieces.append(detokenizer.push(token))
        if detokenizer.stopped:
            return pieces
    return [*pieces, detokenizer.flush()]


def test_the_tokenizer_of_these_tests_splits_characters_and_joins_parts_of_two():
    decoded = [TOKENIZER.decode([token]) for token in range(len(TOKENIZER))]
    assert any(text.strip(HALF) and text.endswith(HALF) for text in decoded), "a whole character and half of the next"
    assert any(text == HALF for text in decoded)


@pytest.mark.parametrize("text", SAMPLES)
def test_pieces_of_a_text_make_the_text(tokenizer, text):
    pieces = pieces_of(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert "".join(pieces) == text
    assert not any(HALF in piece for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_pieces_of_any_text_make_the_text(text):
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    pieces = pieces_of(TOKENIZER, tokens)
    assert "".join(pieces) == TOKENIZER.decode(tokens) == text
    assert not any(HALF in piece for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(text=texts, cut=st.integers(1, 12))
def test_a_text_cut_anywhere_keeps_every_complete_character(text, cut):
    tokens = TOKENIZER.encode(text, add_special_tokens=False)[:-cut]
    assert "".join(pieces_of(TOKENIZER, tokens)) == TOKENIZER.decode(tokens).rstrip(HALF)


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40))
def test_bytes_that_are_no_text_never_raise_and_lose_nothing(tokens):
    pieces = pieces_of(TOKENIZER, tokens)
    whole = TOKENIZER.decode(tokens, skip_special_tokens=True)
    assert "".join(pieces) == whole.rstrip(HALF)
    assert not any(piece.endswith(HALF) for piece in pieces)


def test_a_piece_comes_with_the_token_that_completes_it():
    # the three bytes of the character, as a byte-level tokenizer writes them
    tokens = [TOKENIZER.convert_tokens_to_ids(byte) for byte in ("\u00e4", "\u00b8", "\u0143")]
    assert TOKENIZER.decode(tokens) == "中"
    assert pieces_of(TOKENIZER, [*tokens, *tokens]) == ["", "", "中", "", "", "中", ""]


def test_special_tokens_are_no_text():
    end = TOKENIZER.eos_token_id
    a, b = TOKENIZER.encode("ab", add_special_tokens=False)
    assert "".join(pieces_of(TOKENIZER, [a, end, b, end])) == "ab"


def test_tokens_past_the_tokenizer_s_last_one_are_no_text():
    """A checkpoint's vocabulary is often padded beyond its tokenizer's."""
    assert "".join(pieces_of(TOKENIZER, [*TOKENIZER.encode("ab"), 10_000, *TOKENIZER.encode("c")])) == "abc"


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("one. two. three.", (".",), "one"),
        ("one two three", ("two",), "one "),
        ("one two three", ("one",), ""),
        ("one two three", ("three", "two"), "one "),
        ("one two three", ("four",), None),
        ("one two thre", ("three",), None),
        ("aaab", ("aab",), "a"),
        ("ab", ("abc", "b"), "a"),
        ("世界 世 🦊", ("🦊",), "世界 世 "),
        ("x\n\ny", ("\n\n",), "x"),
    ],
)
def test_a_stop_string_ends_the_text_just_before_it(text, stop, kept):
    pieces = pieces_of(TOKENIZER, TOKENIZER.encode(text, add_special_tokens=False), stop)
    assert "".join(pieces) == (text if kept is None else kept)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("ab🦊 ", max_size=30),
    stop=st.lists(st.text("ab🦊 ", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple),
)
def test_no_piece_ever_shows_a_stop_string_or_its_beginning_in_vain(text, stop):
    """One token a character, so that "as soon as it has appeared" says which stop string counts."""
    tokens = [token for character in text for token in TOKENIZER.encode(character, add_special_tokens=False)]
    end = next((n for n in range(len(text) + 1) if any(s in text[:n] for s in stop)), None)
    expected = text if end is None else text[: min(text.index(s) for s in stop if s in text[:end])]
    pieces = pieces_of(TOKENIZER, tokens, stop)
    assert "".join(pieces) == expected
    assert expected.startswith("".join(pieces[:-1]))


def test_a_window_not_the_whole_output_is_decoded_again():
    class Counting:
        longest = 0

        def decode(self, tokens, **options):
            self.longest = max(self.longest, len(tokens))
            return TOKENIZER.decode(tokens, **options)

    counting = Counting()
    pieces_of(counting, TOKENIZER.encode("the cat " * 200))
    assert counting.longest <= 4
