"""Who runs, and how many tokens each: one class per idea, in the order in which the field had them. No torch, no clock.

A scheduler is driven round and round:

    plan = scheduler.schedule()       # [(request, n_tokens), ...] in batch order; [] when nothing can run
    scheduler.commit(plan, tokens)    # one token per request whose `computed` has caught up, else None
"""

from typing import NamedTuple

from tinyengine.checks import check_batch, check_new, check_plan, check_size
from tinyengine.memory import Blocks, Slots
from tinyengine.queue import Queue
from tinyengine.request import Request

Plan = list[tuple[Request, int]]
Tokens = list[int | None]  # per request of a plan: the sampled token, or None where none is due


class Token(NamedTuple):
    """What `commit` reports: a request got a token, and perhaps ended with it ("stop" or "length")."""

    request: Request
    token_id: int
    finish_reason: str | None


class Scheduler:
    """What every scheduler shares: a queue, the running requests, and `commit`.

    memory: Slots for Static and Orca, Blocks for Paged and Chunked. max_num_seqs: most requests in a batch.
    A subclass writes `schedule`. First come, first served goes by the order of `add`.
    Raises ValueError for a batch without room for a request.
    """

    token_budget: int | None = None  # most tokens of the next iteration, of a scheduler that can cut a prompt

    def __init__(self, memory: Slots | Blocks, max_num_seqs: int = 8):
        check_batch(self, memory, max_num_seqs)
        self.memory = memory
        self.max_num_seqs = max_num_seqs
        self.waiting = Queue()
        self.running: list[Request] = []  # a list, never a set: batch order must be the same in every run

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request):
        """Queues a request. Raises ValueError for one that can never fit, that has ended, or whose id is in use."""
        check_new(request, self.waiting, self.memory)
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """The next batch: [(request, n_tokens), ...]; [] when nothing can run."""
        raise NotImplementedError(f"{type(self).__name__} has no schedule()")

    def height(self, plan: Plan) -> int:
        """How many requests the batch is computed for, where it is computed as a rectangle."""
        return len(plan)

    def observe(self, n_tokens: int, seconds: float):
        """Hears how long the last iteration took, for a scheduler that makes its budget from that."""

    def commit(self, plan: Plan, tokens: Tokens) -> list[Token]:
        """Counts the plan as computed, appends its tokens, ends what is done and frees its memory.

        tokens: in plan order, the sampled token of each request whose `computed` has caught up with its tokens, else
            None. A request that was aborted since `schedule` is passed over.
        Raises ValueError, before anything is changed, where a token is missing or too much, or the plan is impossible.
        """
        check_plan(plan, tokens)
        events = []
        for (request, n_tokens), token in zip(plan, tokens):
            if request.finished:  # aborted since `schedule`
                continue
            request.computed += n_tokens
            if token is not None:
                token = int(token)
                request.tokens.append(token)
                events.append(Token(request, token, request.reason_to_finish()))
        for request, _, reason in events:
            if reason:
                self.finish(request, reason)
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

    def _admit(self) -> list[Request]:
        """Moves requests from the queue into the batch, in order, while there is a batch slot and the memory holds
        them whole. The first that does not fit blocks all behind it: that is what first come, first served costs."""
        admitted = []
        while self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
            admitted.append(self.waiting.popleft())
            self.running.append(admitted[-1])
        return admitted


class Static(Scheduler):
    """Static batching: a batch is filled once, and no request joins until its longest request has ended.

    Source: how inference servers batched before Orca (its section 2 and figure 3: early-finished and late-joining
    requests).
    """

    batch_size = 0  # requests of the batch, those among them that have ended included, until it is refilled

    def schedule(self) -> Plan:
        if not self.running:
            self.batch_size = len(self._admit())
        return [(request, request.gap) for request in self.running]

    def height(self, plan: Plan) -> int:
        return self.batch_size


class Orca(Scheduler):
    """Iteration-level scheduling: the batch is chosen anew before every iteration.

    A request joins as soon as a batch slot is free and its n_max slots of K/V are reserved, and leaves with its last
    token. Source: Orca (OSDI 2022), section 3.1 and Algorithm 1.
    """

    def schedule(self) -> Plan:
        self._admit()  # Algorithm 1, Select
        return [(request, request.gap) for request in self.running]


class Paged(Scheduler):
    """Blocks on demand: a request joins when the blocks of all its tokens are free, and gets another block whenever
    its last one is full. Where there is none, the newest request gives all of its blocks back and goes to the front of
    the queue: its prompt and what it has generated are computed once more.

    Source: PagedAttention (SOSP 2023), section 4.5, with recomputation as in vLLM v1, which has no swapping.
    """

    memory: Blocks

    def schedule(self) -> Plan:
        plan, waited = [], len(self.waiting)
        while len(plan) < len(self.running):
            request = self.running[len(plan)]
            if self.memory.grow(request, len(request.tokens)):
                plan.append((request, request.gap))
            else:
                self.preempt(self.running[-1])  # the newest: perhaps this one, never one that is planned
        while len(self.waiting) <= waited and self._admit_next():  # a step that preempts admits none
            request = self.running[-1]
            self.memory.grow(request, len(request.tokens))
            plan.append((request, request.gap))
        return plan

    def _admit_next(self) -> bool:
        """Moves the head of the queue into the batch if a batch slot and the blocks of all its tokens are free."""
        if not self.waiting or len(self.running) >= self.max_num_seqs or not self.memory.admit(self.waiting[0]):
            return False
        self.running.append(self.waiting.popleft())
        return True

    def preempt(self, request: Request):
        """Takes back all blocks of the request: it waits at the front of the queue, and computes anew."""
        self.running.remove(request)
        self.memory.release(request)
        request.computed = 0
        self.waiting.appendleft(request)


class Chunked(Paged):
    """A token budget: every iteration computes at most so many tokens, running requests first, then waiting ones, so
    that a prompt is cut into chunks and no decode ever waits for one.

    Raises ValueError for a budget below 1.
    Source: Sarathi-Serve (OSDI 2024), Algorithm 3; the one counter and the two passes are vLLM v1's.
    """

    def __init__(self, memory: Blocks, max_num_seqs: int = 8, max_num_batched_tokens: int = 512):
        super().__init__(memory, max_num_seqs)
        check_size("max_num_batched_tokens", max_num_batched_tokens)
        self.max_num_batched_tokens = max_num_batched_tokens

    @property
    def token_budget(self) -> int:
        return self.max_num_batched_tokens

    def schedule(self) -> Plan:
        plan, waited, budget = [], len(self.waiting), self.token_budget
        while len(plan) < len(self.running) and budget > 0:
            request = self.running[len(plan)]
            n_tokens = min(request.gap, self.share(request, budget))  # a chunk, where the budget is smaller
            if self.memory.grow(request, request.computed + n_tokens):
                plan.append((request, n_tokens))
                budget -= n_tokens
            else:
                self.preempt(self.running[-1])  # the newest: perhaps this one, never one that is planned
        while len(self.waiting) <= waited and budget > 0 and self._admit_next():  # a step that preempts admits none
            request = self.running[-1]
            n_tokens = min(request.gap, self.share(request, budget))
            self.memory.grow(request, request.computed + n_tokens)
            plan.append((request, n_tokens))
            budget -= n_tokens
        return plan

    def share(self, request: Request, budget: int) -> int:
        """What the request may have of the budget that is left: here all of it; a subclass may give less."""
        return budget
