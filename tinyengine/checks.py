"""All refusals that need no torch: one sentence that says what, which value, which limit and what to do."""

import sys
from numbers import Integral


def check_fields(request):
    """Raises ValueError for a request with an empty prompt, one that is not a sequence of whole numbers, or any other
    field outside its limits. It leaves the prompt a tuple."""
    if not isinstance(request.request_id, str) or not request.request_id:
        raise ValueError(f"request_id is {request.request_id!r}, but must be text of at least one character")
    if not _has_utf8(request.request_id):
        raise ValueError(f"request_id is {request.request_id!r}, but must be text that has a UTF-8 form")
    whose = f"the prompt of request {request.request_id!r}"
    request.prompt_token_ids = as_tuple(whose, request.prompt_token_ids, "a list of token ids")
    if not request.prompt_token_ids:
        raise ValueError(f"{whose} has 0 tokens, but at least 1 is needed")
    for token in request.prompt_token_ids:
        whole_number(f"a prompt token of request {request.request_id!r}", token, at_least=0)
    finite_number("arrival", request.arrival, "at least 0", lambda value: value >= 0)
    whole_number("priority", request.priority, at_least=-(2**63), below=2**63)


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def whole_number(name, value, at_least, below=None):
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} is {value!r}, but must be a whole number of at least {at_least}")
    if below is not None and value >= below:
        raise ValueError(f"{name} is {value!r}, but must be a whole number below {below}")


def finite_number(name, value, limit, holds):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max or not holds(value):  # `not <=` is true of NaN as well
        raise ValueError(f"{name} is {value!r}, but must be a finite number {limit}")


def as_tuple(name, value, kind):
    try:
        return () if value is None else tuple(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}, but must be {kind}") from None


def check_fits(request, memory):
    """Raises ValueError if the request could never run: inside `schedule` it would block all behind it for ever."""
    if not memory.can_ever_hold(request):
        raise ValueError(
            f"request {request.request_id!r} can come to need {request.max_slots} K/V slots (prompt "
            f"{request.num_prompt_tokens} + max_tokens {request.params.max_tokens}), but the arena has "
            f"{memory.n_slots}: shorten it, lower max_tokens, or raise num_slots"
        )


def check_new(request, waiting, memory):
    """Raises ValueError for a request that can never fit, that has ended, or whose id is in use."""
    check_fits(request, memory)
    if request.finished:
        raise ValueError(f"request {request.request_id!r} has ended ({request.finish_reason}): make a new one")
    if request.request_id in waiting.by_id or request.request_id in memory.holders:
        raise ValueError(f"request_id {request.request_id!r} is taken by an unfinished request")


# By the name of a scheduler: the memory that it takes, and what it asks of it.
TAKES = {"Static": ("Slots", "reserve"), "Orca": ("Slots", "reserve"), "Paged": ("Blocks", "admit")}


def check_batch(scheduler, memory, max_num_seqs):
    """Raises ValueError for a batch without room for a request, and for a memory of the other kind."""
    check_size("max_num_seqs", max_num_seqs)
    for name in [kind.__name__ for kind in type(scheduler).__mro__ if kind.__name__ in TAKES]:
        wanted, method = TAKES[name]
        if not hasattr(memory, method):
            raise ValueError(
                f"{type(scheduler).__name__} was given {type(memory).__name__}, but its memory must be {wanted}"
            )


def check_size(name, size):
    """Raises ValueError for a size that is not a whole number of at least 1, in any type of whole numbers."""
    if not _is_whole(size) or size < 1:
        raise ValueError(f"{name} is {size!r}, but must be a whole number of at least 1")


def _is_whole(value):
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_plan(plan, tokens):
    """Raises ValueError where a token is missing or too much, or a plan that `Scheduler.commit` is given is impossible.
    A request that was aborted since `schedule` is passed over."""
    if len(tokens) != len(plan):
        raise ValueError(f"tokens has {len(tokens)} entries, but the plan has {len(plan)}: one for each request")
    if len({request for request, _ in plan}) < len(plan):
        raise ValueError("the plan names a request twice, but a request has one place in a batch")
    for (request, n_tokens), token in zip(plan, tokens):
        if request.finished:
            continue
        gap = request.gap
        if (type(n_tokens) is not int and not _is_whole(n_tokens)) or not 1 <= n_tokens <= gap:  # no call for an int
            raise ValueError(
                f"request {request.request_id!r} is planned with {n_tokens} tokens, but 1 to {gap} are open"
            )
        if (token is not None) != (n_tokens == gap):
            raise ValueError(
                f"request {request.request_id!r} computes {n_tokens} of its {gap} open tokens, so its "
                f"token is {'owed' if token is None else 'not due'}, but commit was given {token!r}"
            )
        if token is not None and ((type(token) is not int and not _is_whole(token)) or token < 0):
            raise ValueError(
                f"request {request.request_id!r} was given {token!r}, but a token is a whole number of at least 0"
            )
