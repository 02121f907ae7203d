"""Who runs, and how many tokens each: one class per idea, in the order in which the field had them. No torch, no clock.

Whoever drives one goes round and round:

    plan = scheduler.schedule()       # [(request, n_tokens), ...] in batch order; [] when nothing can run
    scheduler.commit(plan, tokens)    # one token per request whose `computed` has caught up, else None
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, Protocol

from tinyengine.memory import Blocks, Slots
from tinyengine.request import Request
from tinyengine.speculate import look_up

Plan = list[tuple[Request, int]]
Tokens = list[int | Sequence[int] | None]


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

    def __init__(self, memory: Slots | Blocks, max_num_seqs: int = 8, max_num_batched_tokens: int | None = None):
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {max_num_seqs}, but a batch needs room for at least 1 request")
        self.memory = memory
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # a list, never a set: batch order must be the same in every run
        self._unfinished: dict[str, Request] = {}
        self._order = count()

    @property
    def token_budget(self) -> int | None:
        """Most tokens of the next iteration; None: no limit."""
        return None

    def observe(self, n_tokens: int, seconds: float):
        """Hears how long the last iteration took, for a scheduler that makes its budget from that."""

    def has_unfinished(self) -> bool:
        return bool(self._unfinished)

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
        if request.request_id in self._unfinished:
            raise ValueError(f"request_id {request.request_id!r} is taken by an unfinished request")
        self._unfinished[request.request_id] = request
        request.order = next(self._order)
        self._enqueue(request)

    def schedule(self) -> Plan:
        """The next batch: [(request, n_tokens), ...]; [] when nothing can run."""
        raise NotImplementedError(f"{type(self).__name__} has no schedule()")

    def rows(self, plan: Plan) -> int:
        """Rows that the batch has where it is computed as a rectangle."""
        return len(plan)

    def commit(self, plan: Plan, tokens: Tokens) -> list[Token]:
        """Counts the plan as computed, appends its tokens, ends what is done and frees its memory.

        tokens: in plan order, the sampled token of each request whose `computed` has caught up with its tokens, else
            None; of a request with a draft, the list of all tokens that it got. A request that was aborted since
            `schedule` is passed over.
        Raises ValueError, before anything is changed, where a token is missing or too much, or the plan is impossible.
        """
        self._check(plan, tokens)
        caching = self.memory.enable_prefix_caching
        events = []
        for (request, n_tokens), token in zip(plan, tokens):
            if request.finish_reason is not None:
                continue
            since = request.computed
            request.computed = since + n_tokens
            if isinstance(token, int) and not request.draft:
                request.tokens.append(token)
                events.append(Token(request, token, request.reason_to_finish()))
            elif token is not None:
                events += self._accept(request, [token] if isinstance(token, int) else token)
            if caching:
                self.memory.filled(request, since)
        for request, _, reason in events:
            if reason:
                self.finish(request, reason)
        return events

    @staticmethod
    def _accept(request: Request, tokens: Sequence[int]) -> list[Token]:
        """Appends what a request with a draft got: the guesses that were right, and the token after them."""
        request.computed -= len(request.draft) + 1 - len(tokens)  # the guesses that were wrong
        request.draft = []
        events = []
        for token in tokens:
            request.tokens.append(token)
            events.append(Token(request, token, request.reason_to_finish()))
        return events

    def finish(self, request: Request, reason: str):
        """Ends a request at any moment, wherever it is: out of the queue and the batch, its memory freed."""
        if request.finished:
            return
        request.finish_reason = reason
        if self._unfinished.get(request.request_id) is request:
            del self._unfinished[request.request_id]
        for place in (self.running, self.waiting):
            if request in place:
                place.remove(request)
                break  # the queue may be long
        self.memory.release(request)

    def retire(self, request: Request):
        """Takes a request out of the batch, and lets it keep its memory: it has computed all it can, but its last token
        is still on the way. `finish` will follow."""
        self.running.remove(request)

    def abort(self, request: Request):
        self.finish(request, "abort")

    def _enqueue(self, request: Request):
        self.waiting.append(request)

    @staticmethod
    def _check(plan: Plan, tokens: Tokens):
        if len(tokens) != len(plan):
            raise ValueError(f"tokens has {len(tokens)} entries, but the plan has {len(plan)}: one for each request")
        if len({request for request, _ in plan}) < len(plan):
            raise ValueError("the plan names a request twice, but a request has one place in a batch")
        for (request, n_tokens), token in zip(plan, tokens):
            gap = len(request.tokens) + len(request.draft) - request.computed
            if (n_tokens == gap and isinstance(token, int)) or request.finish_reason is not None:
                continue  # what is right nearly always is looked at first
            if not 1 <= n_tokens <= gap:
                raise ValueError(
                    f"request {request.request_id!r} is planned with {n_tokens} tokens, but 1 to {gap} are open"
                )
            if (token is not None) != (n_tokens == gap):
                raise ValueError(
                    f"request {request.request_id!r} computes {n_tokens} of its {gap} open tokens, so its "
                    f"token is {'owed' if token is None else 'not due'}, but commit was given {token!r}"
                )
            if token is not None and not 1 <= len(token) <= len(request.draft) + 1:
                raise ValueError(
                    f"request {request.request_id!r} was given {len(token)} tokens, but with a draft of "
                    f"{len(request.draft)} it can get 1 to {len(request.draft) + 1}"
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


POLICIES = {
    # name: the order in which requests are served, as a key to sort by; never equal, since no two have one `order`
    "fcfs": lambda request: request.order,
    "priority": lambda request: (request.priority, request.deadline, request.arrival, request.order),
}


class Paged(Scheduler):
    """Blocks on demand: a request is admitted when the blocks of its whole prompt are free, and then gets a block
    whenever its last one is full. Where there is none, the newest request gives all of its blocks back and goes to the
    front of the queue: its prompt and what it has generated are computed once more.

    num_speculative_tokens: most guesses that a decoding request verifies in an iteration; 0 is no speculation.

    Source: PagedAttention (SOSP 2023), section 4.5, with recomputation as in vLLM v1, which has no swapping.
    """

    memory: Blocks

    def __init__(self, *args, num_speculative_tokens: int = 0, **options):
        super().__init__(*args, **options)
        is_whole = isinstance(num_speculative_tokens, int) and not isinstance(num_speculative_tokens, bool)
        if not is_whole or num_speculative_tokens < 0:
            raise ValueError(
                f"num_speculative_tokens is {num_speculative_tokens!r}, but must be a whole number of at least 0"
            )
        self.num_speculative_tokens = num_speculative_tokens
        self.urgency = POLICIES["fcfs"]
        self._spare = 0

    def schedule(self) -> Plan:
        plan: Plan = []
        queued = len(self.waiting)
        self._count_spare()
        while len(plan) < len(self.running):
            request = self.running[len(plan)]
            if n_tokens := self._grow(request):
                plan.append((request, n_tokens))
            else:
                self._preempt(self.running[-1])
        if len(self.waiting) > queued:
            return plan  # whoever has just lost its memory must not take it back in the same step
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self._admit_first(len(request.tokens)):
                break
            plan.append((request, self._grow(request)))
        return plan

    def _grow(self, request: Request, most: int | None = None) -> int:
        """How many tokens the request computes, up to `most`: it has the memory for them now; 0 where there is none."""
        if self.num_speculative_tokens:
            request.draft = self._guess(request, most)
            sure = self.memory.missing(request, len(request.tokens))
            extra = self.memory.missing(request, len(request.tokens) + len(request.draft)) - sure
            if extra > self._spare:
                request.draft = []
            elif extra:
                self._spare -= extra
        n_tokens = len(request.tokens) + len(request.draft) - request.computed
        if most is not None and n_tokens > most:
            n_tokens = most
        return n_tokens if self.memory.grow(request, request.computed + n_tokens) else 0

    def _count_spare(self):
        """Blocks that no running request needs for what is sure: guesses may have these, so nobody is driven out for
        one. Growing by what is sure changes nothing about it."""
        if self.num_speculative_tokens:
            sure = sum(self.memory.missing(request, len(request.tokens)) for request in self.running)
            self._spare = len(self.memory.free) - sure

    def _guess(self, request: Request, most: int | None) -> list[int]:
        """A draft for a request that decodes: never past its end, nor past `most` tokens with the one that is sure."""
        if request.computed != len(request.tokens) - 1 or request.computed < request.num_prompt_tokens:
            return []
        open_tokens = request.max_slots - len(request.tokens)  # what it can still get; one of them needs no guess
        guesses = min(self.num_speculative_tokens, open_tokens - 1, open_tokens if most is None else most - 1)
        return look_up(request.tokens, guesses) if guesses > 0 else []

    def _admit_first(self, n_slots: int, owed: int = 0) -> bool:
        """Moves the first of the queue into the batch if the blocks of its first `n_slots` positions are free beside
        `owed` that others are still to get."""
        request, free = self.waiting[0], len(self.memory.free)
        cached = self.memory.admit(request, n_slots, owed)
        if cached is None:
            return False
        request.computed = cached
        taken = free - len(self.memory.free)  # cached blocks that were nobody's
        self._spare -= taken + self.memory.missing(request, len(request.tokens))
        self.waiting.popleft()
        insort(self.running, request, key=self.urgency)
        return True

    def _preempt(self, request: Request):
        self.running.remove(request)
        self.memory.release(request)
        request.computed = 0
        request.draft = []
        self._enqueue(request)

    def _enqueue(self, request: Request):
        """To its place in the order, which is the end for a new request and the front for a preempted one, mostly."""
        if self.waiting and self.urgency(request) < self.urgency(self.waiting[-1]):
            insort(self.waiting, request, key=self.urgency)
        else:
            self.waiting.append(request)


class Budget(Protocol):
    """What says how many tokens an iteration may have, and learns from how long one took (budget.AdaptiveBudget)."""

    @property
    def tokens(self) -> int: ...

    def observe(self, n_tokens: int, seconds: float): ...


class Chunked(Paged):
    """A token budget: every iteration computes at most so many tokens, running requests first, then waiting ones, so
    that a prompt is cut into chunks and no decode ever waits for one.

    policy: "fcfs", or "priority" (priority, then the deadline of the first token, then arrival). The order decides
        three things: who is admitted first, who gets tokens of the budget first, and, from its end, who gives its
        memory back when there is none. A request without a promise has no deadline: it waits for as long as others of
        its priority come that have one.
    budget: makes the budget from measured times; max_num_batched_tokens is then its upper limit.
    chunking: False runs a prompt whole, past the budget if need be (Sarathi's ablation calls it "hybrid only").
    mixing: False lets iterations of prompts and of decodes take turns ("chunked only").
    admit_first_chunk: True admits a prompt when its first chunk fits, and not the whole: many are let in, and then
        drive each other out (a preemption storm, kept to be looked at).

    Raises ValueError for an unknown policy and for a budget below 1.
    Source: Sarathi-Serve (OSDI 2024), Algorithm 3 and table 4; the one counter and the two passes are vLLM v1's.
    """

    def __init__(
        self,
        *args,
        policy: str = "fcfs",
        budget: Budget | None = None,
        chunking: bool = True,
        mixing: bool = True,
        admit_first_chunk: bool = False,
        **options,
    ):
        super().__init__(*args, **options)
        for name, choice in {"chunking": chunking, "mixing": mixing, "admit_first_chunk": admit_first_chunk}.items():
            if not isinstance(choice, bool):
                raise ValueError(f"{name} is {choice!r}, but must be True or False")
        if budget is not None and not hasattr(budget, "tokens"):
            raise ValueError(f"budget is {budget!r}, but must be an AdaptiveBudget: a number is max_num_batched_tokens")
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}, but the policies are {', '.join(POLICIES)}")
        if self.max_num_batched_tokens is None:
            self.max_num_batched_tokens = 512
        if self.max_num_batched_tokens < 1:
            raise ValueError(f"max_num_batched_tokens is {self.max_num_batched_tokens}, but must be at least 1")
        self.urgency = POLICIES[policy]
        self.budget = budget
        self.chunking = chunking
        self.mixing = mixing
        self.admit_first_chunk = admit_first_chunk
        self._prompts_next = True  # whose turn it is, without mixing

    @property
    def token_budget(self) -> int:
        return min(self.max_num_batched_tokens, self.budget.tokens) if self.budget else self.max_num_batched_tokens

    def observe(self, n_tokens: int, seconds: float):
        if self.budget:
            self.budget.observe(n_tokens, seconds)

    def schedule(self) -> Plan:
        queued = len(self.waiting)
        self._count_spare()
        if self.mixing:
            plan, budget = self._running_pass(self.token_budget)
            return plan + self._waiting_pass(budget, queued)
        for prompts in (self._prompts_next, not self._prompts_next):  # the other kind runs where one has nothing to do
            plan, budget = self._running_pass(self.token_budget, only_prompts=prompts)
            if prompts:
                plan += self._waiting_pass(budget, queued)
            if plan:
                self._prompts_next = not prompts
                break
        return plan

    def _running_pass(self, budget: int, only_prompts: bool | None = None) -> tuple[Plan, int]:
        """The running requests, in order, and what they leave of the budget. only_prompts: True those that prefill,
        False those that decode, None all."""
        plan: Plan = []
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            behind = len(self.running) - 1 - index if self.mixing else 0
            if only_prompts is not None and only_prompts != _prefills(request):
                index += 1
            elif n_tokens := self._grow(request, self._share(request, budget, behind)):
                plan.append((request, n_tokens))
                budget -= n_tokens
                index += 1
            else:
                self._preempt(self.running[-1])  # never one that is planned already: those come before it
        return plan, budget

    def _share(self, request: Request, budget: int, behind: int = 0) -> int | None:
        """Most tokens for the request: one is left for each of those `behind` it, whose decode would stall while an
        urgent prompt takes all. None: no limit, for a prompt that must not be cut."""
        if not self.chunking and _prefills(request):
            return None
        left = budget - behind
        return left if left > 1 else 1  # max() would be a tenth of the step

    def _waiting_pass(self, budget: int, queued: int) -> Plan:
        """New requests, in order, up to the first whose whole prompt does not fit; none in a step that preempted:
        whoever has just lost its memory must not take it back at once. queued: how many waited before the step."""
        plan: Plan = []
        owed = None
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs and len(self.waiting) <= queued:
            request = self.waiting[0]
            if owed is None:  # by those that sit this turn out; all others have what they need, or the budget is spent
                owed = sum(self.memory.missing(other, len(other.tokens)) for other in self.running)
            if self.admit_first_chunk:
                admitted = self._admit_first(min(len(request.tokens), budget))
            else:
                admitted = self._admit_first(len(request.tokens), owed)
            if not admitted:
                break
            n_tokens = self._grow(request, self._share(request, budget))
            if not n_tokens:  # its first chunk lies behind a cached prefix, and does not fit after all
                self._preempt(request)
                break
            plan.append((request, n_tokens))
            budget -= n_tokens
        return plan


def _prefills(request: Request) -> bool:
    """Whether it has more to compute than its newest token: a prompt, or what a preemption lost."""
    return request.computed < max(request.num_prompt_tokens, len(request.tokens) - 1)
