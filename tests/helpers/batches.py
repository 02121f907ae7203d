"""Requests whose blocks are given by hand."""

from tinyengine.request import Request, SamplingParams


def placed(name: str, tokens: list[int], table: list[int], computed: int, guesses: list[int] = ()) -> Request:
    request = Request(name, tokens, SamplingParams(max_tokens=50))
    request.table, request.computed, request.guesses = table, computed, len(guesses)
    request.tokens += guesses
    return request
