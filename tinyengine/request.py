"""A request, and what its user asked for. No torch: schedulers, simulator and widgets all run on this class."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

PENDING = -1  # stands in `tokens` for one that is computed, but not known yet (see overlap)


class Lifecycle(Enum):
    """Orca's request states (section 3.2); `WAITING` is a request that holds no K/V slots yet, or no longer."""

    WAITING = "waiting"
    INITIATION = "initiation"
    INCREMENT = "increment"
    FINISHED = "finished"


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends. The names are vLLM's.

    max_tokens: most tokens to generate, >= 1.
    temperature: 0 is greedy, the default here because a course wants the same answer twice (vLLM's default is 1.0).
    top_k: keep the k likeliest tokens; 0 or -1 keeps all.
    top_p: keep the smallest set of likeliest tokens whose probabilities reach top_p, in (0, 1].
    repetition_penalty: > 1 makes tokens of the prompt and of the output less likely (CTRL, section 4.1).
    seed: fixes the random choices of this request, in any batch; None lets the engine pick one.
    stop: strings that end the output, which then ends just before them.
    stop_token_ids: tokens that end the output, beside the model's own end-of-sequence tokens.
    ignore_eos: run to max_tokens whatever the model says.
    stop_when: called with the output's token ids after each token; True ends the output with that token. If it raises,
        its request ends with the reason "error", and no other is touched.

    Raises ValueError for a value outside its limits.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop_when: Callable[[list[int]], bool] | None = None

    def __post_init__(self):
        stop = (self.stop,) if isinstance(self.stop, str) else _tuple("stop", self.stop, "text or a list of texts")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", _tuple("stop_token_ids", self.stop_token_ids, "a list of token ids"))
        _whole("max_tokens", self.max_tokens, at_least=1)
        _whole("top_k", self.top_k, at_least=-1)
        if self.seed is not None:
            _whole("seed", self.seed, at_least=0, below=2**63)
        _finite("temperature", self.temperature, "at least 0", lambda value: value >= 0)
        _finite("top_p", self.top_p, "above 0 and at most 1", lambda value: 0 < value <= 1)
        _finite("repetition_penalty", self.repetition_penalty, "above 0", lambda value: value > 0)
        for string in self.stop:
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop holds {string!r}, but a stop string is text of at least one character")
        for token in self.stop_token_ids:
            _whole("a token of stop_token_ids", token, at_least=0)
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos is {self.ignore_eos!r}, but must be True or False")
        if self.stop_when is not None and not callable(self.stop_when):
            raise ValueError(f"stop_when is {self.stop_when!r}, but must be a function of the output's token ids")


@dataclass(frozen=True)
class Slo:
    """A service-level objective: the seconds that a user was promised, None for no promise.

    ttft: from arrival to the first token. tbt: between any two tokens.
    Raises ValueError for a number that is not above 0.
    """

    ttft: float | None = None
    tbt: float | None = None

    def __post_init__(self):
        for name, seconds in (("ttft", self.ttft), ("tbt", self.tbt)):
            if seconds is not None:
                _finite(f"the {name} of an Slo", seconds, "above 0", lambda value: value > 0)


@dataclass(eq=False)
class Request:
    """One prompt on its way to an output.

    Progress is one integer: `computed`, the number of tokens whose K/V are in memory, chases `len(tokens)`. A whole
    prompt, a chunk of one, a decode step and a recompute after preemption differ only in the size of that gap (the
    framing of vLLM v1's scheduler). The scheduler writes `tokens`, `computed` and `draft`; the memory writes `table`.

    draft: guesses of the tokens that come next, to be verified in this iteration; they belong to the gap, and count as
        tokens only when they were right.
    table: where its K/V live: block b of the request is block `table[b]` of the arena (a slot is a block of one).
    arrival: seconds on the engine's clock.
    priority: smaller is served first where the scheduler looks at it. slo: what its user was promised.
    order: its number among the requests that the scheduler was given.

    Raises ValueError for an empty prompt, one that is not a sequence of whole numbers, and any other field outside its
    limits.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival: float = 0.0
    priority: int = 0
    eos_token_ids: tuple[int, ...] = ()
    slo: Slo = Slo()
    tokens: list[int] = field(init=False)
    computed: int = field(init=False, default=0)
    draft: list[int] = field(init=False, default_factory=list)
    order: int = field(init=False, default=0)
    table: list[int] | range = field(init=False, default_factory=list)
    finish_reason: str | None = field(init=False, default=None)

    def __post_init__(self):
        if not isinstance(self.request_id, str) or not self.request_id:
            raise ValueError(f"request_id is {self.request_id!r}, but must be text of at least one character")
        whose = f"the prompt of request {self.request_id!r}"
        self.prompt_token_ids = _tuple(whose, self.prompt_token_ids, "a list of token ids")
        if not self.prompt_token_ids:
            raise ValueError(f"{whose} has 0 tokens, but at least 1 is needed")
        for token in self.prompt_token_ids:
            _whole(f"a prompt token of request {self.request_id!r}", token, at_least=0)
        _finite("arrival", self.arrival, "at least 0", lambda value: value >= 0)
        _whole("priority", self.priority, at_least=-(2**63), below=2**63)
        self.tokens = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def gap(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return len(self.tokens) + len(self.draft) - self.computed

    @property
    def deadline(self) -> float:
        """When its first token is due, on the engine's clock."""
        return inf if self.slo.ttft is None else self.arrival + self.slo.ttft

    @property
    def max_slots(self) -> int:
        """The K/V slots it can come to need: Orca's n_max, prompt + max_tokens. (The last token needs none: nothing
        attends to it. Orca reserves for it all the same, and so do we.)"""
        return self.num_prompt_tokens + self.params.max_tokens

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def lifecycle(self) -> Lifecycle:
        """Derived, never stored, so that it cannot disagree with the counters."""
        if self.finished:
            return Lifecycle.FINISHED
        if not self.table:
            return Lifecycle.WAITING
        return Lifecycle.INITIATION if self.computed < self.num_prompt_tokens else Lifecycle.INCREMENT

    def reason_to_finish(self, new: Sequence[int] = ()) -> str | None:
        """Why the newest token ends it, the last of `new` where those are about to be appended: "stop" (end of
        sequence), "length" (max_tokens), or None (it goes on, or the token is PENDING)."""
        params, last = self.params, new[-1] if new else self.tokens[-1]
        if last == PENDING:
            return None
        if last in params.stop_token_ids or (last in self.eos_token_ids and not params.ignore_eos):
            return "stop"
        if len(self.tokens) + len(new) - len(self.prompt_token_ids) >= params.max_tokens:
            return "length"
        return None


def _whole(name, value, at_least, below=None):
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} is {value!r}, but must be a whole number of at least {at_least}")
    if below is not None and value >= below:
        raise ValueError(f"{name} is {value!r}, but must be a whole number below {below}")


def _finite(name, value, limit, holds):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max or not holds(value):  # `not <=` is true of NaN as well
        raise ValueError(f"{name} is {value!r}, but must be a finite number {limit}")


def _tuple(name, value, kind):
    try:
        return () if value is None else tuple(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}, but must be {kind}") from None


# Somebody reads along; somebody waits for the whole; nobody waits. The seconds are this course's own round numbers.
SLO_CLASSES = {"interactive": Slo(ttft=0.5, tbt=0.1), "standard": Slo(ttft=2.0, tbt=0.5), "batch": Slo()}
