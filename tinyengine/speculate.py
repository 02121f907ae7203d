"""Speculative decoding without a second model: guess the next tokens from the text itself, verify them in one step.

Whatever is guessed, the output stays the same: a guess is kept only if the model chooses that very token there.
Source: Leviathan et al., "Fast inference from transformers via speculative decoding" (ICML 2023), for verification;
prompt look-up decoding (Saxena, 2023), vLLM's "ngram", for the guess.
"""

from array import array
from collections.abc import Sequence
from math import inf
from numbers import Integral

from tinyengine.checks import check_plan
from tinyengine.request import Request
from tinyengine.scheduler import Plan, Token


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


class Speculative:
    """Goes before a scheduler of blocks: what budget and blocks its plan leaves is filled up with guesses for requests
    that decode. No request waits or gives memory back for a guess.

    Guesses stand at the end of `tokens` from `schedule` to `commit`; the latter is given, for a request with guesses,
    the list of all tokens that it got (`sampler.accept`).
    num_speculative_tokens: most guesses that a request verifies in an iteration; 0 is no speculation.
    Raises ValueError for a number of guesses below 0.
    """

    def __init__(self, *args, num_speculative_tokens: int, **options):
        super().__init__(*args, **options)
        number = num_speculative_tokens
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"num_speculative_tokens is {number!r}, but must be a whole number of at least 0")
        self.num_speculative_tokens = num_speculative_tokens

    def schedule(self) -> Plan:
        for request in self.running:
            take_back(request)  # of an iteration that failed
        plan = super().schedule()
        budget = inf if self.token_budget is None else self.token_budget
        budget -= sum(n_tokens for _, n_tokens in plan)
        owed = sum(self.memory.missing(request, len(request.tokens)) for request in self.running)
        for index, (request, n_tokens) in enumerate(plan):
            guesses = self._guess(request, budget)
            end = len(request.tokens) + len(guesses)
            if not guesses or self.memory.missing(request, end) > len(self.memory.free) - owed:
                continue
            self.memory.grow(request, end)
            request.tokens += guesses
            request.guesses = len(guesses)
            plan[index] = request, n_tokens + len(guesses)
            budget -= len(guesses)
        return plan

    def _guess(self, request: Request, budget: float) -> list[int]:
        """Guesses for a request that decodes: never past its end, nor past the budget."""
        if request.gap != 1 or request.computed < request.num_prompt_tokens:
            return []
        open_tokens = request.max_slots - len(request.tokens)  # what it can still get; one of them needs no guess
        most = min(self.num_speculative_tokens, open_tokens - 1, budget)
        return look_up(request.tokens, most) if most > 0 else []

    def commit(self, plan: Plan, tokens: list) -> list[Token]:
        if len(tokens) != len(plan) or not any(request.guesses for request, _ in plan):
            return super().commit(plan, tokens)
        each = [as_list(got) if request.guesses else [got] for (request, _), got in zip(plan, tokens)]
        for (request, n_tokens), got in zip(plan, each):
            _check_guesses(request, n_tokens, got)
        check_plan(plan, [got[-1] for got in each])
        certain, last, events = [], [], {}
        for (request, n_tokens), got in zip(plan, each):
            if request.guesses:
                n_tokens -= request.guesses + 1 - len(got)  # the guesses that were wrong
                take_back(request)
                right = [int(token) for token in got[:-1]]
                request.tokens += right
                events[request] = [Token(request, token, None) for token in right]
            certain.append((request, n_tokens))
            last.append(got[-1])
        for event in super().commit(certain, last):
            events.setdefault(event.request, []).append(event)
        return [event for request, _ in plan for event in events.get(request, ())]

    def finish(self, request: Request, reason: str):
        take_back(request)
        super().finish(request, reason)


def take_back(request: Request):
    """Removes its guesses, which were not verified."""
    if request.guesses:
        del request.tokens[-request.guesses :]
        request.guesses = 0


def as_list(got) -> list:
    """What a request with guesses got; a single token is a list of one."""
    return list(got) if isinstance(got, (list, tuple)) else [got]


def _check_guesses(request: Request, n_tokens: int, got: list):
    """Raises ValueError unless the tokens that a request got are as many as its guesses allow, and whole numbers, and
    its guesses are verified in one iteration."""
    if not 1 <= len(got) <= request.guesses + 1:
        raise ValueError(
            f"request {request.request_id!r} was given {len(got)} tokens, but with {request.guesses} guesses it can "
            f"get 1 to {request.guesses + 1}"
        )
    if request.guesses and n_tokens < request.gap:
        raise ValueError(
            f"request {request.request_id!r} is planned with {n_tokens} tokens, but its {request.guesses} guesses are "
            f"verified in one iteration, which takes {request.gap}"
        )
    for token in got[:-1]:
        if not isinstance(token, (int, Integral)):
            raise ValueError(f"request {request.request_id!r} was given {token!r}, but a token is a whole number")
