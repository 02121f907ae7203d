"""Speculative decoding without a second model: guess the next tokens from the text itself, verify them in one step.

Whatever is guessed, the output stays the same: a guess is kept only if the model chooses that very token there.
Source: Leviathan et al., "Fast inference from transformers via speculative decoding" (ICML 2023), for verification;
prompt look-up decoding (Saxena, 2023), vLLM's "ngram", for the guess.
"""

from array import array
from collections.abc import Sequence

from tinyengine.request import Request


def look_up(tokens: Sequence[int], most: int, longest: int = 3) -> list[int]:
    """Up to `most` tokens that followed the last earlier place where the text read as it does at its end.

    The longest match of `longest` .. 1 tokens wins, and of equally long ones the latest.
    """
    text = array("i", tokens)
    size, text = text.itemsize, text.tobytes()  # bytes are searched in C: this runs for every decode of every step
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        tail = text[-n * size :]
        place = text.rfind(tail, 0, len(text) - size)  # an earlier place: it ends before the last token
        while place % size and place >= 0:  # a match that begins inside of a token is none
            place = text.rfind(tail, 0, place + len(tail) - 1)
        if place >= 0:
            follows = place // size + n
            return list(tokens[follows : follows + most])
    return []


def accept(request: Request, chosen: Sequence[int]) -> list[int]:
    """What the request gets of the tokens that were chosen behind its text and behind each of its guesses: all up to
    the first that differs from the guess in its place, or that ends the request."""
    kept: list[int] = []
    for token, guess in zip(chosen, (*request.draft, None), strict=True):
        kept.append(token)
        if token != guess or request.reason_to_finish(kept):
            break
    return kept
