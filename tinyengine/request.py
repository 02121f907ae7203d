"""A request. No torch: schedulers, memories and the simulator run on this class."""

from dataclasses import dataclass, field

from tinyengine.checks import check_fields
from tinyengine.params import NO_PROMISE, SLO_CLASSES, SamplingParams, Slo

__all__ = ["SLO_CLASSES", "Request", "SamplingParams", "Slo"]


@dataclass(eq=False)
class Request:
    """One prompt on its way to an output.

    Progress is one integer: `computed`, the number of tokens whose K/V are in memory, chases `len(tokens)`. A whole
    prompt, a chunk of one, a decode step and a recompute after preemption differ only in the size of that gap (the
    framing of vLLM v1's scheduler). Admission and preemption set where `computed` begins; `Scheduler.commit` moves it,
    appends to `tokens` and ends the request; the memory writes `table`.

    guesses: how many of the last `tokens` are not known yet, but to be verified in this iteration.
    table: where its K/V live: block b of the request is block `table[b]` of the arena (a slot is a block of one).
    arrival: seconds on the engine's clock.
    priority: smaller is served first where the scheduler looks at it. slo: what its user was promised.
    finish_reason: None while it is unfinished, then "stop", "length", "abort" or "error".

    Raises ValueError for an empty prompt, one that is not a sequence of whole numbers, and any other field outside its
    limits.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival: float = 0.0
    priority: int = 0
    eos_token_ids: tuple[int, ...] = ()
    slo: Slo = NO_PROMISE
    tokens: list[int] = field(init=False)
    computed: int = field(init=False, default=0)
    guesses: int = field(init=False, default=0)
    table: list[int] | range = field(init=False, default_factory=list)
    finish_reason: str | None = field(init=False, default=None)

    def __post_init__(self):
        check_fields(self)
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
        return len(self.tokens) - self.computed

    @property
    def max_slots(self) -> int:
        """The K/V slots that it can come to need: Orca's n_max, prompt + max_tokens. (The last token needs none, since
        no token attends to it. Orca reserves for it all the same, as `Slots` does.)"""
        return self.num_prompt_tokens + self.params.max_tokens

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def reason_to_finish(self, length: int | None = None) -> str | None:
        """Why the last of its first `length` tokens ends it (all of them if None): "stop" (end of sequence), "length"
        (max_tokens), or None: it goes on."""
        length = len(self.tokens) if length is None else length
        last = self.tokens[length - 1]
        if last in self.params.stop_token_ids or (last in self.eos_token_ids and not self.params.ignore_eos):
            return "stop"
        return "length" if length >= self.max_slots else None
