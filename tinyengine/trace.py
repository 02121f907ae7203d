"""What happened, iteration by iteration. The engine, the simulator and a learner's scheduler all write this, and every
picture and every metric reads nothing else. No torch."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tinyengine.request import Request


@dataclass(frozen=True)
class Span:
    """One request's share of one iteration: `n_tokens` tokens, the first at position `start`.

    token: the token id that it emitted, or None (a partial chunk emits nothing).
    """

    request_id: str
    start: int
    n_tokens: int
    token: int | None = None


@dataclass(frozen=True)
class Holding:
    """The K/V that one request holds during an iteration: slot ranges [first, end) of the arena, and how many of those
    slots are filled when it is done."""

    ranges: tuple[tuple[int, int], ...]
    used: int

    @property
    def reserved(self) -> int:
        return sum(end - first for first, end in self.ranges)


@dataclass(frozen=True)
class Iteration:
    """One forward pass.

    time, duration: seconds on the engine's clock; the tokens of `spans` exist at `time + duration`.
    waiting: ids in queue order, of the requests that have arrived and did not run.
    padding: rows of the batch that were computed for nothing.
    budget: most tokens that this iteration was allowed, or None: no budget.
    memory: what each request held, by id, while the iteration ran.
    """

    time: float
    duration: float
    spans: tuple[Span, ...]
    waiting: tuple[str, ...] = ()
    padding: int = 0
    budget: int | None = None
    memory: dict[str, Holding] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.time + self.duration

    @property
    def num_tokens(self) -> int:
        return sum(span.n_tokens for span in self.spans)


@dataclass(frozen=True)
class RequestRecord:
    """What is fixed about a request when it arrives. prompt: its text, where there was one."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    arrival: float
    priority: int = 0
    prompt: str | None = None


@dataclass(frozen=True)
class Event:
    """Something that happened to a request just before (arrive, admit, preempt) or at the end of (finish, abort)
    iteration `iteration`; -1 is the end of nothing: aborted before the first. kind: one of EVENT_KINDS. detail: the
    finish reason, where there is one."""

    iteration: int
    kind: str
    request_id: str
    detail: str | None = None


EVENT_KINDS = ("arrive", "admit", "preempt", "finish", "abort")


@dataclass
class Trace:
    """A run. stage: its name. max_num_seqs: batch slots. num_slots: K/V slots of the arena. pieces: the text that each
    emitted token added, by request id (the stream a user saw)."""

    stage: str = ""
    max_num_seqs: int = 1
    num_slots: int = 0
    block_size: int = 1
    requests: dict[str, RequestRecord] = field(default_factory=dict)
    iterations: list[Iteration] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    pieces: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self):
        self._holders: dict[str, None] = {}  # who held memory in the newest iteration and has not ended since

    def phase(self, span: Span) -> str:
        """What it is called: "decode" (one token past the prompt), "prefill" (the whole prompt at once), "chunk" (a
        part of it), or "recompute" (generated tokens once more, after a preemption; a part inside the prompt reads as
        the first time).
        """
        prompt = self.requests[span.request_id].num_prompt_tokens
        if span.start >= prompt and span.n_tokens == 1:
            return "decode"
        if span.start + span.n_tokens > prompt:
            return "recompute"
        return "prefill" if (span.start, span.n_tokens) == (0, prompt) else "chunk"

    def arrive(self, request: Request, prompt: str | None = None):
        record = RequestRecord(
            request.request_id,
            request.num_prompt_tokens,
            request.params.max_tokens,
            request.arrival,
            request.priority,
            prompt,
        )
        self.requests[request.request_id] = record
        self.event("arrive", request.request_id)

    def record(self, plan: list[tuple[Request, int]], tokens: list[int | None], memory: dict[str, Holding], **fields):
        """Adds an iteration, before its plan is committed; who was admitted or preempted shows in who holds memory.
        Whoever ends a request says so through `event`: one that is gone without it counts as preempted.

        memory: what each request holds, as before the iteration. fields: the others of Iteration.
        """
        for request_id in self._holders:
            if request_id not in memory:
                self.event("preempt", request_id)
        for request_id in memory:
            if request_id not in self._holders:
                self.event("admit", request_id)
        self._holders = dict.fromkeys(memory)
        counts = {request.request_id: n_tokens for request, n_tokens in plan}
        spans = tuple(Span(r.request_id, r.computed, n, token) for (r, n), token in zip(plan, tokens, strict=True))
        memory = {key: Holding(held.ranges, held.used + counts.get(key, 0)) for key, held in memory.items()}
        self.iterations.append(Iteration(spans=spans, memory=memory, **fields))

    def event(self, kind: str, request_id: str, detail: str | None = None):
        """Something that happens now: at the end of the newest iteration (finish, abort), else before the next one."""
        ended = kind in ("finish", "abort")
        self.events.append(Event(len(self.iterations) - ended, kind, request_id, detail))
        if ended:
            self._holders.pop(request_id, None)

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> "Trace":
        """The inverse of to_json, also after a passage through JSON text (tuples come back as lists)."""
        return cls(
            stage=data["stage"],
            max_num_seqs=data["max_num_seqs"],
            num_slots=data["num_slots"],
            block_size=data["block_size"],
            requests={key: RequestRecord(**record) for key, record in data["requests"].items()},
            iterations=[_iteration(record) for record in data["iterations"]],
            events=[Event(**event) for event in data["events"]],
            pieces={key: list(pieces) for key, pieces in data["pieces"].items()},
        )

    def save(self, path: str | Path):
        Path(path).write_text(json.dumps(self.to_json(), ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


def _iteration(record: dict) -> Iteration:
    memory = {
        key: Holding(tuple(tuple(span) for span in holding["ranges"]), holding["used"])
        for key, holding in record["memory"].items()
    }
    spans = tuple(Span(**span) for span in record["spans"])
    return Iteration(**{**record, "spans": spans, "waiting": tuple(record["waiting"]), "memory": memory})
