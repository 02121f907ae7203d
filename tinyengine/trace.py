"""What happened, iteration by iteration. The engine, the simulator and a learner's scheduler all write this, and every
picture and every metric reads nothing else. No torch."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tinyengine.request import Request


@dataclass(frozen=True)
class Span:
    """One request's share of one iteration: `n_tokens` tokens, the first at position `start`.

    tokens: the token ids that it emitted: none (a partial chunk), one, or more where a draft was right.
    draft: how many of the n_tokens were guesses (the last ones). recomputed: how many had been computed before, and
    were lost to a preemption.
    """

    request_id: str
    start: int
    n_tokens: int
    tokens: tuple[int, ...] = ()
    draft: int = 0
    recomputed: int = 0

    @property
    def end(self) -> int:
        """Tokens of the request that are computed when the iteration is done; wrong guesses are not."""
        return self.start + self.n_tokens - self.rejected

    @property
    def rejected(self) -> int:
        """Guesses that were wrong, or not looked at because the request ended before them."""
        return self.draft - max(0, len(self.tokens) - 1)


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
    """What is fixed about a request when it arrives. prompt: its text, where there was one.
    ttft_target, tbt_target: seconds that its user was promised (see Slo), or None."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    arrival: float
    priority: int = 0
    prompt: str | None = None
    ttft_target: float | None = None
    tbt_target: float | None = None


@dataclass(frozen=True)
class Event:
    """Something that happened to a request just before (arrive, admit, preempt) or at the end of (finish, abort)
    iteration `iteration`; -1 is the end of nothing: aborted before the first. kind: one of EVENT_KINDS. detail: the
    finish reason, where there is one. cached: tokens that an admitted request found in the prefix cache."""

    iteration: int
    kind: str
    request_id: str
    detail: str | None = None
    cached: int = 0


EVENT_KINDS = ("arrive", "admit", "preempt", "finish", "abort")


@dataclass
class Trace:
    """A run. stage: its name. max_num_seqs: batch slots. num_slots: K/V slots of the arena. contiguous: a request's
    slots must be one piece, so that free slots can be of no use (fragmentation). pieces: the text that each emitted
    token added, by request id (the stream a user saw)."""

    stage: str = ""
    max_num_seqs: int = 1
    num_slots: int = 0
    block_size: int = 1
    contiguous: bool = True
    requests: dict[str, RequestRecord] = field(default_factory=dict)
    iterations: list[Iteration] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    pieces: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self):
        self._holders: dict[str, None] = {}  # who held memory in the newest iteration and has not ended since
        self._reached: dict[str, int] = {}  # how far each of the unfinished was ever computed

    def __repr__(self) -> str:
        counts = f"{len(self.requests)} requests, {len(self.iterations)} iterations"
        return f"<Trace {self.stage or 'of no stage'}: {counts}>"

    def phase(self, span: Span) -> str:
        """What it is called: "recompute" (begins with tokens that a preemption lost), "decode" (past the prompt),
        "prefill" (the whole prompt at once), or "chunk" (a part of it, also the part that the prefix cache left)."""
        prompt = self.requests[span.request_id].num_prompt_tokens
        if span.recomputed:
            return "recompute"
        if span.start >= prompt:
            return "decode"
        return "prefill" if (span.start, span.n_tokens) == (0, prompt) else "chunk"

    def arrive(self, request: Request, prompt: str | None = None):
        record = RequestRecord(
            request.request_id,
            request.num_prompt_tokens,
            request.params.max_tokens,
            request.arrival,
            request.priority,
            prompt,
            request.slo.ttft,
            request.slo.tbt,
        )
        self.requests[request.request_id] = record
        self.event("arrive", request.request_id)

    def record(
        self,
        plan: list[tuple[Request, int]],
        tokens: list[int | Sequence[int] | None],
        memory: dict[str, Holding],
        **fields,
    ):
        """Adds an iteration, before its plan is committed; who was admitted or preempted shows in who holds memory.
        Whoever ends a request says so through `event`: one that is gone without it counts as preempted.

        tokens: as for Scheduler.commit. memory: what each request holds, as before the iteration. fields: the others
        of Iteration.
        """
        self.hold(memory)
        each = zip(plan, tokens, strict=True)
        spans = {request.request_id: self._span(request, n, token) for (request, n), token in each}
        for request_id, span in spans.items():
            self._reached[request_id] = max(self._reached.get(request_id, 0), span.end)
        filled = {key: Holding(held.ranges, spans[key].end) if key in spans else held for key, held in memory.items()}
        self.iterations.append(Iteration(spans=tuple(spans.values()), memory=filled, **fields))

    def hold(self, memory: dict[str, Holding]):
        """Notes who has been admitted or preempted since the last time: for an iteration that came to nothing, and is
        not recorded."""
        for request_id in self._holders:
            if request_id not in memory:
                self.event("preempt", request_id)
        for request_id, held in memory.items():
            if request_id not in self._holders:  # all that it has computed by now came from the prefix cache
                self.event("admit", request_id, cached=held.used)
        self._holders = dict.fromkeys(memory)

    def _span(self, request: Request, n_tokens: int, token: int | Sequence[int] | None) -> Span:
        emitted = () if token is None else (token,) if isinstance(token, int) else tuple(token)
        lost = min(n_tokens, max(0, self._reached.get(request.request_id, 0) - request.computed))
        return Span(request.request_id, request.computed, n_tokens, emitted, len(request.draft), lost)

    def withdraw(self, request_id: str):
        """The request had ended before the last token of its newest span: nobody ever got that one."""
        number, span = next(
            (number, span)
            for number in range(len(self.iterations) - 1, -1, -1)
            for span in self.iterations[number].spans
            if span.request_id == request_id and span.tokens
        )
        shorter = replace(span, tokens=span.tokens[:-1])
        old = self.iterations[number]
        spans = tuple(shorter if own is span else own for own in old.spans)
        memory = {**old.memory, request_id: Holding(old.memory[request_id].ranges, shorter.end)}
        self.iterations[number] = replace(old, spans=spans, memory=memory)

    def arrived(self, number: int, tokens: dict[str, int], time: float, duration: float):
        """The tokens of iteration `number`, by request id, that were not known yet when it was recorded, and its times:
        from when it had the device for itself."""
        old = self.iterations[number]
        spans = tuple(
            replace(span, tokens=(tokens[span.request_id],)) if span.request_id in tokens else span
            for span in old.spans
        )
        self.iterations[number] = replace(old, spans=spans, time=time, duration=duration)

    def event(self, kind: str, request_id: str, detail: str | None = None, cached: int = 0):
        """Something that happens now: at the end of the newest iteration (finish, abort), else before the next one."""
        ended = kind in ("finish", "abort")
        self.events.append(Event(len(self.iterations) - ended, kind, request_id, detail, cached))
        if ended:
            self._holders.pop(request_id, None)
            self._reached.pop(request_id, None)

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
            contiguous=data["contiguous"],
            requests={key: RequestRecord(**record) for key, record in data["requests"].items()},
            iterations=[_iteration(record) for record in data["iterations"]],
            events=[Event(**event) for event in data["events"]],
            pieces={key: list(pieces) for key, pieces in data["pieces"].items()},
        )

    def save(self, path: str | Path):
        Path(path).write_text(json.dumps(self.to_json(), ensure_ascii=False), encoding="utf-8")

    def to_perfetto(self, path: str | Path) -> Path:
        """Writes Chrome trace JSON, which ui.perfetto.dev opens."""
        from tinyengine.perfetto import chrome_events  # which reads traces, so it imports this module

        path = Path(path)
        path.write_text(json.dumps(chrome_events(self)), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


def _iteration(record: dict) -> Iteration:
    memory = {
        key: Holding(tuple(tuple(span) for span in holding["ranges"]), holding["used"])
        for key, holding in record["memory"].items()
    }
    spans = tuple(Span(**{**span, "tokens": tuple(span["tokens"])}) for span in record["spans"])
    return Iteration(**{**record, "spans": spans, "waiting": tuple(record["waiting"]), "memory": memory})
