"""Who runs, and how many tokens each: one class per idea, in the order in which the field had them. No torch, no clock.

Whoever drives one goes round and round:

    plan = scheduler.schedule()       # [(request, n_tokens), ...] in batch order; [] when nothing can run
    scheduler.commit(plan, tokens)    # one token per request whose `computed` has caught up, else None
"""

from collections import deque
from typing import NamedTuple

from tinyengine.memory import Slots
from tinyengine.request import Request

Plan = list[tuple[Request, int]]


class Token(NamedTuple):
    """What `commit` reports: a request got a token, and perhaps ended with it ("stop" or "length")."""

    request: Request
    token_id: int
    finish_reason: str | None


class Scheduler:
    """What every scheduler shares: a queue, the running requests, and the only code that moves a request forward.

    memory: who holds which K/V slots.
    max_num_seqs: most requests in a batch.
    max_num_batched_tokens: most tokens in a batch, for a scheduler that can cut a prompt; the others have no budget.

    A subclass writes `schedule`. First come, first served goes by the order of `add`.
    """

    def __init__(self, memory: Slots, max_num_seqs: int = 8, max_num_batched_tokens: int | None = None):
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {max_num_seqs}, but a batch needs room for at least 1 request")
        self.memory = memory
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # a list, never a set: batch order must be the same in every run

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def check_fits(self, request: Request):
        """Raises ValueError if the request could never run: inside `schedule` it would block all behind it for ever."""
        if not self.memory.can_ever_hold(request):
            raise ValueError(
                f"request {request.request_id!r} can come to need {request.max_slots} K/V slots (prompt "
                f"{request.num_prompt_tokens} + max_tokens {request.params.max_tokens}), but the arena has "
                f"{self.memory.n_slots}: shorten it, lower max_tokens, or raise num_slots"
            )

    def add(self, request: Request):
        """Queues a request. Raises ValueError for one that can never fit, that has ended, or whose id is in use."""
        self.check_fits(request)
        if request.finished:
            raise ValueError(f"request {request.request_id!r} has ended ({request.finish_reason}): make a new one")
        if any(request.request_id == other.request_id for other in (*self.running, *self.waiting)):
            raise ValueError(f"request_id {request.request_id!r} is taken by an unfinished request")
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """The next batch: [(request, n_tokens), ...]; [] when nothing can run."""
        raise NotImplementedError(f"{type(self).__name__} has no schedule()")

    def rows(self, plan: Plan) -> int:
        """Rows that the batch has where it is computed as a rectangle."""
        return len(plan)

    def commit(self, plan: Plan, tokens: list[int | None]) -> list[Token]:
        """Counts the plan as computed, appends its tokens, ends what is done and frees its memory.

        tokens: in plan order, the sampled token of each request whose `computed` has caught up with its tokens, else
            None. A request that was aborted since `schedule` is passed over.
        Raises ValueError, before anything is changed, where a token is missing or too much, or the plan is impossible.
        """
        self._check(plan, tokens)
        events = []
        for (request, n_tokens), token in zip(plan, tokens):
            if request.finished:
                continue
            request.computed += n_tokens
            if token is not None:
                request.tokens.append(token)
                events.append(Token(request, token, request.reason_to_finish()))
        for event in events:
            if event.finish_reason:
                self.finish(event.request, event.finish_reason)
        return events

    def finish(self, request: Request, reason: str):
        """Ends a request at any moment, wherever it is: out of the queue and the batch, its memory freed."""
        if request.finished:
            return
        request.finish_reason = reason
        for place in (self.running, self.waiting):
            if request in place:
                place.remove(request)
        self.memory.release(request)

    def abort(self, request: Request):
        self.finish(request, "abort")

    @staticmethod
    def _check(plan: Plan, tokens: list[int | None]):
        if len(tokens) != len(plan):
            raise ValueError(f"tokens has {len(tokens)} entries, but the plan has {len(plan)}: one for each request")
        if len({id(request) for request, _ in plan}) < len(plan):
            raise ValueError("the plan names a request twice, but a request has one place in a batch")
        for (request, n_tokens), token in zip(plan, tokens, strict=True):
            if request.finished:
                continue
            if not 1 <= n_tokens <= request.gap:
                raise ValueError(
                    f"request {request.request_id!r} is planned with {n_tokens} tokens, but 1 to {request.gap} are open"
                )
            if (token is not None) != (n_tokens == request.gap):
                raise ValueError(
                    f"request {request.request_id!r} computes {n_tokens} of its {request.gap} open tokens, so its "
                    f"token is {'owed' if token is None else 'not due'}, but commit was given {token!r}"
                )

    def _admit(self) -> list[Request]:
        """Moves requests from the queue into the batch, in order, while there is a batch slot and the memory holds
        them whole. The first that does not fit blocks all behind it: that is what first come, first served costs."""
        admitted = []
        while self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
            admitted.append(self.waiting.popleft())
            self.running.append(admitted[-1])
        return admitted


class Static(Scheduler):
    """Static batching: a batch is filled once, and nobody joins until its longest request has ended.

    Source: how inference servers batched before Orca (its section 2 and figure 3: early-finished and late-joining
    requests).
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.batch_size = 0  # rows of the rectangle; it keeps those of finished requests until it is refilled

    def schedule(self) -> Plan:
        if not self.running:
            self.batch_size = len(self._admit())
        return [(request, request.gap) for request in self.running]

    def rows(self, plan: Plan) -> int:
        return self.batch_size


class Orca(Scheduler):
    """Iteration-level scheduling: the batch is chosen anew before every iteration.

    A request joins as soon as a batch slot is free and its n_max slots of K/V are reserved, and leaves with its last
    token. Source: Orca (OSDI 2022), section 3.1 and Algorithm 1.
    """

    def schedule(self) -> Plan:
        self._admit()  # Algorithm 1, Select
        return [(request, request.gap) for request in self.running]
