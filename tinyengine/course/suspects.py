"""Engines under suspicion, for exercise 6.4: real schedulers and memory, made-up logits, and a fault that shows in one
situation only. Everything is whole numbers and seeds, so a fault moves the same bits on every machine."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from tinyengine.extras import assemble
from tinyengine.memory import Blocks
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Chunked

VOCAB, NEW, BLOCK = 50, 8, 16  # token ids, tokens that each prompt is continued by, K/V slots of a block
MOST_RUNS = 150  # of one engine
LONGEST = 400  # tokens of a prompt


@dataclass(frozen=True)
class Fact:
    """What an iteration was for one request: `rows` and `requests` of the batch, the request's `place` in it; its
    tokens from `first`, `count` of them. cached: how many it took over. again: it has been preempted."""

    rows: int
    requests: int
    place: int
    first: int
    count: int
    cached: int
    again: bool


@dataclass(frozen=True)
class Fault:
    """title: what the engine does. unseen: what did not happen where it has not shown. shows: for which Fact.
    size: "bit" moves a last bit, "small" a number by a ten-thousandth, "token" the choice of the token."""

    title: str
    unseen: str
    shows: Callable[[Fact], bool]
    size: str = "bit"


FAULTS = {
    "rows": Fault(
        "a product of fewer than 4 rows is added up in another order",
        "are fewer than 4 rows computed at once",
        lambda fact: fact.rows < 4,
    ),
    "crowd": Fault(
        "where 4 or more requests are computed at once, attention gives each a smaller share of the processors",
        "are 4 requests computed at once",
        lambda fact: fact.requests >= 4,
        "token",
    ),
    "place": Fault(
        "the last request of a batch lies in a tile that is not full",
        "is a request the last of several",
        lambda fact: 1 < fact.requests == fact.place + 1,
        "small",
    ),
    "chunk": Fault(
        "keys of the chunk and older keys are added up apart",
        "does a chunk of several tokens stand behind older ones",
        lambda fact: fact.first > fact.cached and fact.count > 1,
    ),
    "long": Fault(
        "beyond 64 keys, and with neighbours, the splits of the keys are combined as they come",
        "does a request of more than 64 tokens have a neighbour",
        lambda fact: fact.first + fact.count > 64 and fact.requests > 1,
    ),
    "decode": Fault(
        "a single new row behind older ones gets another kernel than rows that come together",
        "does a single new row stand behind older ones",
        lambda fact: fact.count == 1 and fact.first > 0,
    ),
    "hit": Fault(
        "keys and values that are taken over from a cached prefix are rounded",
        "does a request take over a cached prefix",
        lambda fact: fact.cached > 0,
    ),
    "preempt": Fault(
        "what a preempted request computes again is computed in another order",
        "is a request preempted",
        lambda fact: fact.again,
    ),
}


@dataclass
class Suspect:
    """An engine that a test may run. fault: one of FAULTS, or None.

    runs: how many there were. shown: in how many of them the fault has moved something. has_cached: whether a run had
    a prefix cache.
    """

    fault: str | None = None
    seed: int = 0
    runs: int = field(init=False, default=0)
    shown: int = field(init=False, default=0)
    has_cached: bool = field(init=False, default=False)

    def __call__(self, prompts, budget=512, slots=1024, caching=False):
        """Serves the prompts together -> for each a tensor [8, 50]: the logits of its 8 next tokens."""
        before = sys.gettrace()
        sys.settrace(None)  # no line of this is the learner's
        try:
            return self._run([list(map(int, prompt)) for prompt in prompts], int(budget), int(slots), bool(caching))
        finally:
            sys.settrace(before)

    def _run(self, prompts, budget, slots, caching):
        self.runs += 1
        if self.runs > MOST_RUNS:
            raise RuntimeError(f"your test has run one engine {MOST_RUNS} times, and that is the most: look for a loop")
        check_prompts(prompts)
        self.has_cached |= caching
        options = {"enable_prefix_caching": True} if caching else {}
        sizes = dict(num_slots=slots, block_size=BLOCK, max_num_seqs=16, max_num_batched_tokens=budget)
        scheduler = assemble(Chunked, Blocks, options, **sizes)
        params = SamplingParams(max_tokens=NEW, ignore_eos=True)
        requests = [Request(f"r{number}", prompt, params) for number, prompt in enumerate(prompts)]
        coming, states = requests[::-1], {request.request_id: State() for request in requests}
        while coming or scheduler.has_unfinished():
            # With a cache each prompt comes when the one before it has a token: else there is nothing to take over
            while coming and (not caching or len(coming) == len(requests) or has_token(requests[-len(coming) - 1])):
                scheduler.add(coming.pop())
            self._step(scheduler, states)
        self.shown += any(state.has_moved for state in states.values())
        return [torch.tensor(np.array(states[request.request_id].logits)) for request in requests]

    def _step(self, scheduler, states):
        plan, tokens = scheduler.schedule(), []
        rows = sum(count for _, count in plan)
        for place, (request, count) in enumerate(plan):
            state, first = states[request.request_id], request.computed
            state.begins(first)
            fact = Fact(rows, len(plan), place, first, count, state.cached, state.times > 1)
            if self.fault and FAULTS[self.fault].shows(fact):
                state.moved_from = min(state.moved_from, first)
            state.reached = end = first + count
            tokens.append(self._token(request, state) if end == len(request.tokens) else None)
        scheduler.commit(plan, tokens)

    def _token(self, request, state):
        logits = made_up(self.seed, tuple(request.tokens))
        if state.moved_from < len(request.tokens):
            logits, state.has_moved = other(logits, FAULTS[self.fault].size), True
        state.logits.append(logits)
        return int(logits.argmax())


@dataclass
class State:
    """A request on its way. moved_from: the first position whose K/V have other bits. cached: tokens taken over.
    times: how often it has begun. reached: how many of its tokens are computed."""

    logits: list = field(default_factory=list)
    moved_from: float = np.inf
    cached: int = 0
    times: int = 0
    reached: int = -1
    has_moved: bool = False

    def begins(self, first: int) -> None:
        if first != self.reached:  # for the first time, or after a preemption
            self.times, self.cached, self.moved_from = self.times + 1, first, np.inf


def has_token(request) -> bool:
    return len(request.tokens) > request.num_prompt_tokens


def check_prompts(prompts) -> None:
    """Raises ValueError unless every prompt has tokens, and not too many."""
    if not prompts:
        raise ValueError("run() is given no prompt, but it needs at least one")
    for number, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= LONGEST or not all(0 <= token < VOCAB for token in prompt):
            raise ValueError(
                f"prompt {number} has {len(prompt)} tokens from {min(prompt, default=0)} to {max(prompt, default=0)}, "
                f"but a prompt has 1 to {LONGEST} tokens from 0 to {VOCAB - 1}"
            )


@lru_cache(maxsize=20_000)
def made_up(seed: int, tokens: tuple) -> np.ndarray:
    """Logits that depend on the tokens alone."""
    values = np.random.default_rng([seed, len(tokens), *tokens]).integers(-(2**20), 2**20, VOCAB)
    return (values / 2**17).astype(np.float32)


def other(logits: np.ndarray, size: str) -> np.ndarray:
    """Logits that a fault has moved."""
    moved, order = logits.copy(), np.argsort(logits, kind="stable")
    if size == "bit":
        moved[order[VOCAB // 2]] = np.nextafter(moved[order[VOCAB // 2]], np.float32(np.inf))
    elif size == "small":
        moved[order[VOCAB // 2]] *= np.float32(1.0001)
    else:
        moved[order[-1]], moved[order[-2]] = logits[order[-2]], logits[order[-1]]
    return moved
