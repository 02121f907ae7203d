"""Requests whose blocks are given by hand."""

from tinyengine.request import Request, SamplingParams


def placed(name: str, tokens: list[int], table: list[int], computed: int, draft: list[int] | None = None) -> Request:
    request = Request(name, tokens, SamplingParams(max_tokens=50))
    request.table, request.computed, request.draft = table, computed, draft or []
    return request
