"""What a user asks for: how tokens are chosen, when a request ends, how fast tokens are to come. No torch."""

from collections.abc import Callable
from dataclasses import dataclass

from tinyengine.checks import as_tuple, finite_number, whole_number


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
        stop = (self.stop,) if isinstance(self.stop, str) else as_tuple("stop", self.stop, "text or a list of texts")
        object.__setattr__(self, "stop", stop)
        ids = as_tuple("stop_token_ids", self.stop_token_ids, "a list of token ids")
        object.__setattr__(self, "stop_token_ids", ids)
        whole_number("max_tokens", self.max_tokens, at_least=1)
        whole_number("top_k", self.top_k, at_least=-1)
        if self.seed is not None:
            whole_number("seed", self.seed, at_least=0, below=2**63)
        finite_number("temperature", self.temperature, "at least 0", lambda value: value >= 0)
        finite_number("top_p", self.top_p, "above 0 and at most 1", lambda value: 0 < value <= 1)
        finite_number("repetition_penalty", self.repetition_penalty, "above 0", lambda value: value > 0)
        for string in self.stop:
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop holds {string!r}, but a stop string is text of at least one character")
        for token in self.stop_token_ids:
            whole_number("a token of stop_token_ids", token, at_least=0)
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
                finite_number(f"the {name} of an Slo", seconds, "above 0", lambda value: value > 0)


# interactive: a person reads along; standard: a person waits for the whole answer; batch: no one waits. The seconds are
# this course's own round numbers.
NO_PROMISE = Slo()
SLO_CLASSES = {"interactive": Slo(ttft=0.5, tbt=0.1), "standard": Slo(ttft=2.0, tbt=0.5), "batch": NO_PROMISE}
