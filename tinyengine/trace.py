"""What happened, iteration by iteration. The engine, the simulator and a learner's scheduler all write this, and every
picture and every metric reads nothing else. No torch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import NamedTuple, Protocol

from tinyengine.holding import Holding
from tinyengine.request import Request

ENDS = ("finish", "abort")
Ranges = tuple[tuple[int, int], ...]
EVENT_KINDS = ("arrive", "admit", "preempt", *ENDS)


class Span(NamedTuple):
    """One request's share of one iteration: `n_tokens` tokens, the first at position `start`.

    tokens: the token ids that it emitted: none (a partial chunk), one, or more where guesses were right.
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
        end = self.start + self.n_tokens
        return end - self.rejected if self.draft else end

    @property
    def rejected(self) -> int:
        """Guesses that were wrong, or not looked at because the request ended before them."""
        return self.draft - max(0, len(self.tokens) - 1)


@dataclass(frozen=True, slots=True)
class Iteration:
    """One forward pass.

    time, duration: seconds on the engine's clock; the tokens of `spans` exist at `time + duration`.
    padding: rows of the batch that were computed for nothing.
    budget: most tokens that this iteration was allowed, or None: no budget.
    memory: what each request held, by id, while the iteration ran; `used` as it is when it is done.

    Which requests waited is not kept here, since a long queue hardly changes: see Trace.queues.
    """

    time: float
    duration: float
    spans: tuple[Span, ...]
    padding: int = 0
    budget: int | None = None
    memory: dict[str, Holding] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.time + self.duration

    @property
    def num_tokens(self) -> int:
        return sum(span.n_tokens for span in self.spans)


@dataclass(frozen=True, slots=True)
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

    @property
    def urgency(self) -> tuple[int, float, float]:
        """What a queue by priority is sorted by."""
        return self.priority, inf if self.ttft_target is None else self.arrival + self.ttft_target, self.arrival


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a request just before (arrive, admit, preempt) or at the end of (finish, abort)
    iteration `iteration`; -1 is the end of nothing: aborted before the first. kind: one of EVENT_KINDS. detail: the
    finish reason, where there is one. cached: tokens that an admitted request found in the prefix cache."""

    iteration: int
    kind: str
    request_id: str
    detail: str | None = None
    cached: int = 0

    @property
    def ends(self) -> bool:
        return self.kind in ENDS

    @property
    def before(self) -> int:
        """The first iteration that ran after it."""
        return self.iteration + self.ends


class Earlier(NamedTuple):
    """What a request had emitted before the first iteration of a trace that forgets. first, last: when the first and
    the newest of these tokens came."""

    tokens: int
    first: float
    last: float


class Arena(Protocol):
    """What is needed of a memory: Slots, Blocks, and the simulator's several of them."""

    holders: dict[str, Request]

    def holdings(self) -> dict[str, Holding]: ...


@dataclass
class Trace:
    """A run. stage: its name. max_num_seqs: batch slots. num_slots: K/V slots of the arena. contiguous: a request's
    slots must be one piece, so that free slots can be of no use (fragmentation). pieces: the text that each emitted
    token added, by request id (the stream a user saw).

    by_priority: the queue is shown by priority, then by the deadline of the first token, then by arrival, as
        policy="priority" sorts it. Without it, a request that arrives is the last, and a preempted one the first.
    keep: None keeps every iteration; 0 keeps nothing at all; n keeps the newest n at least, and at most twice as many
        (more while a long queue waits, since each cut looks at it). What is kept is a trace like any other: its first
        iteration is number 0, each request that was unfinished by then arrives (and is admitted) before it, and all
        that had ended are forgotten. forgotten: how many iterations went before. earlier: what the unfinished had
        emitted in those.
    """

    stage: str = ""
    max_num_seqs: int = 1
    num_slots: int = 0
    block_size: int = 1
    contiguous: bool = True
    requests: dict[str, RequestRecord] = field(default_factory=dict)
    iterations: list[Iteration] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    pieces: dict[str, list[str]] = field(default_factory=dict)
    by_priority: bool = False
    keep: int | None = None
    forgotten: int = 0
    earlier: dict[str, Earlier] = field(default_factory=dict)

    def __post_init__(self):
        self._unfinished: set[str] = set()  # of those that have arrived
        # by id, who held memory at the newest hold(), and has not ended: its ranges, as given and as kept
        self._seen: dict[str, tuple[Ranges, Ranges]] = {}
        self._reached: dict[str, int] = {}  # how far each of the unfinished was ever computed

    @classmethod
    def of(cls, stage: str, scheduler, keep: int | None = None) -> "Trace":
        """An empty trace of a scheduler's sizes, and of its memory's."""
        memory, by_priority = scheduler.memory, getattr(scheduler, "policy", None) == "priority"
        sizes = scheduler.max_num_seqs, memory.n_slots, memory.block_size, memory.contiguous
        return cls(stage, *sizes, by_priority=by_priority, keep=keep)

    def __repr__(self) -> str:
        counts = f"{len(self.requests)} requests, {len(self.iterations)} iterations"
        counts += f" after {self.forgotten} forgotten" if self.forgotten else ""
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

    def queues(self) -> Iterator[tuple[str, ...]]:
        """For each iteration the ids, in queue order, of the requests that had arrived and did not run; the same tuple
        again where nothing has changed."""
        queue: tuple[str, ...] = ()
        for standing, changed in self._standings():
            if changed:
                queue = tuple(standing.queue)
                if self.by_priority:
                    queue = tuple(sorted(queue, key=lambda request_id: self.requests[request_id].urgency))
            yield queue

    def queue_lengths(self) -> Iterator[int]:
        """How many requests waited, for each iteration."""
        return (len(standing.front) + len(standing.back) for standing, _ in self._standings())

    def arrive(self, request: Request, prompt: str | None = None):
        if self.keep == 0:
            return
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
        self._unfinished.add(request.request_id)
        self.event("arrive", request.request_id)

    def hold(self, holders: dict[str, Request]):
        """Notes which requests have been admitted or preempted since the last time; holders: of the memory, in order of
        admission. To be called before each schedule(), or a request that was preempted in an iteration that came to
        nothing, and admitted again in the next one, would not be seen."""
        if self.keep == 0:
            self.pieces.clear()
            return
        if holders.keys() == self._seen.keys():
            return
        for request_id in reversed(self._seen):  # the last one in is the first one out
            if request_id not in holders:
                self.event("preempt", request_id)
        for request_id, request in holders.items():
            if request_id not in self._seen:  # all that it has computed by now came from the prefix cache
                self.event("admit", request_id, cached=request.computed)
        self._seen = {request_id: self._seen.get(request_id, ((), ())) for request_id in holders}

    def iteration(
        self,
        plan: list[tuple[Request, int]],
        tokens: Sequence[int | Sequence[int] | None],
        memory: Arena,
        *,
        time: float,
        duration: float,
        padding: int = 0,
        budget: int | None = None,
    ) -> Iteration:
        """The record of an iteration, made before its plan is committed and added by `append` when it is. A request
        that ends is to be told to `event`: one that holds memory no more, without that, counts as preempted.

        tokens: as for Scheduler.commit.
        """
        if self.keep == 0:
            return Iteration(time, duration, ())
        self.hold(memory.holders)
        each = zip(plan, tokens, strict=True)
        spans = {request.request_id: self._span(request, n_tokens, token) for (request, n_tokens), token in each}
        before = self.iterations[-1].memory if self.iterations else {}
        held = {}
        for request_id, (ranges, used) in memory.holdings().items():
            ran = spans.get(request_id)
            holding = Holding(self._kept(request_id, ranges), ran.end if ran else used)
            held[request_id] = before[request_id] if before.get(request_id) == holding else holding
        return Iteration(time, duration, tuple(spans.values()), padding, budget, held)

    def append(self, iteration: Iteration) -> int:
        """Adds an iteration when its plan is committed; returns its number, of all that ever were."""
        if self.keep == 0:
            self.forgotten += 1
            return self.forgotten - 1
        if self.keep is not None:
            old = len(self.iterations) - self.keep
            if old >= self.keep and old >= len(self._unfinished) // 64:  # a cut looks at each of these
                self.forget(old)
        for span in iteration.spans:
            if span.request_id in self._seen:  # else it has ended meanwhile
                self._reached[span.request_id] = max(self._reached.get(span.request_id, 0), span.end)
        self.iterations.append(iteration)
        return self.forgotten + len(self.iterations) - 1

    def record(self, plan, tokens, memory: Arena, **fields) -> int:
        """`iteration` and `append` in one, before the commit: where nothing can come between them."""
        return self.append(self.iteration(plan, tokens, memory, **fields))

    def landed(self, number: int, tokens: dict[str, int], time: float, duration: float):
        """The tokens of iteration `number` (as append() counts), by request id, that were not known yet when it was
        recorded, and its times: from when it had the device for itself."""
        if number < self.forgotten:
            return
        old = self.iterations[number - self.forgotten]
        spans = tuple(
            span._replace(tokens=(tokens[span.request_id],)) if span.request_id in tokens else span
            for span in old.spans
        )
        self.iterations[number - self.forgotten] = replace(old, spans=spans, time=time, duration=duration)

    def withdraw(self, request_id: str):
        """The request had ended before the last token of its newest span: that one never came out."""
        for number in range(len(self.iterations) - 1, -1, -1):
            old = self.iterations[number]
            for place, span in enumerate(old.spans):
                if span.request_id == request_id and span.tokens:
                    shorter = span._replace(tokens=span.tokens[:-1])
                    spans = (*old.spans[:place], shorter, *old.spans[place + 1 :])
                    memory = {**old.memory, request_id: Holding(old.memory[request_id].ranges, shorter.end)}
                    self.iterations[number] = replace(old, spans=spans, memory=memory)
                    return

    def event(self, kind: str, request_id: str, detail: str | None = None, cached: int = 0):
        """Something that happens now: at the end of the newest iteration (finish, abort), else before the next one."""
        ends = kind in ENDS
        if self.keep != 0:
            self.events.append(Event(len(self.iterations) - ends, kind, request_id, detail, cached))
        if ends:
            self._unfinished.discard(request_id)
            self._seen.pop(request_id, None)
            self._reached.pop(request_id, None)

    def to_json(self) -> dict:
        record = _fields(self)
        record["requests"] = {key: _fields(request) for key, request in self.requests.items()}
        record["iterations"] = [_iteration_to_json(iteration) for iteration in self.iterations]
        record["events"] = [_fields(event) for event in self.events]
        record["pieces"] = {key: list(pieces) for key, pieces in self.pieces.items()}
        record["earlier"] = {key: earlier._asdict() for key, earlier in self.earlier.items()}
        return record

    @classmethod
    def from_json(cls, data: dict) -> "Trace":
        """The inverse of to_json, also after a passage through JSON text (tuples come back as lists)."""
        parts = {
            "requests": {key: RequestRecord(**record) for key, record in data["requests"].items()},
            "iterations": [_iteration_from_json(record) for record in data["iterations"]],
            "events": [Event(**event) for event in data["events"]],
            "pieces": {key: list(pieces) for key, pieces in data["pieces"].items()},
            "earlier": {key: Earlier(**earlier) for key, earlier in data["earlier"].items()},
        }
        return cls(**(data | parts))

    def save(self, path: str | Path):
        """Writes JSON. A file that is there already stays as it is until the new one is whole."""
        _write(Path(path), json.dumps(self.to_json(), ensure_ascii=False))

    def to_perfetto(self, path: str | Path) -> Path:
        """Writes Chrome trace JSON, which ui.perfetto.dev opens."""
        from tinyengine.perfetto import chrome_events  # which reads traces, so it imports this module

        path = Path(path)
        _write(path, json.dumps(chrome_events(self)))
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))

    def _span(self, request: Request, n_tokens: int, token: int | Sequence[int] | None) -> Span:
        emitted = () if token is None else tuple(token) if isinstance(token, list | tuple) else (int(token),)
        reached, start = self._reached.get(request.request_id, 0), request.computed
        lost = min(n_tokens, reached - start) if reached > start else 0
        return Span(request.request_id, start, n_tokens, emitted, request.guesses, lost)

    def _kept(self, request_id: str, ranges: Ranges) -> Ranges:
        """The same ranges, made of those that older iterations have: a table only grows, and that at its end."""
        given, kept = self._seen[request_id]
        if ranges is not given:
            pairs = enumerate(zip(kept, ranges))
            same = next((place for place, (old, new) in pairs if old != new), min(len(kept), len(ranges)))
            kept = kept[:same] + ranges[same:]
            self._seen[request_id] = ranges, kept
        return kept

    def _standings(self) -> Iterator[tuple["Standing", bool]]:
        """The requests that wait and run in each iteration, and whether that has changed; it is one object, that goes
        on to the next iteration."""
        standing, place = Standing(), 0
        events = sorted(self.events, key=lambda event: event.before)  # stable: those in one gap stay in order
        for number in range(len(self.iterations)):
            since = place
            while place < len(events) and events[place].before <= number:
                standing.take(events[place])
                place += 1
            yield standing, place > since

    def forget(self, count: int):
        """Forgets the first `count` iterations, and the requests that had ended by then."""
        gone = {event.request_id for event in self.events if event.ends and event.before <= count}
        for iteration in self.iterations[:count]:
            for span in iteration.spans:
                if span.tokens and span.request_id not in gone:
                    tokens, first, _ = self.earlier.get(span.request_id, (0, iteration.end, 0.0))
                    self.earlier[span.request_id] = Earlier(tokens + len(span.tokens), first, iteration.end)
        standing, later = Standing(), []
        for event in self.events:
            if event.request_id in gone:
                continue
            if event.before < count:
                standing.take(event)
            else:
                later.append(replace(event, iteration=event.iteration - count))
        self.events = [
            *(Event(0, kind, request_id) for request_id in standing.running for kind in ("arrive", "admit")),
            *(Event(0, "arrive", request_id) for request_id in standing.queue),
            *later,
        ]
        for records in (self.requests, self.pieces, self.earlier):
            for request_id in gone:
                records.pop(request_id, None)
        del self.iterations[:count]
        self.forgotten += count


class Standing:
    """The requests that run, and those that wait: the preempted ones in front, the newest of them first, and behind
    them the others as they came. Three dicts in place of a list, so that any request can leave at once."""

    def __init__(self):
        self.running: dict[str, None] = {}
        self.front: dict[str, None] = {}  # the first in the queue is the last one here
        self.back: dict[str, None] = {}

    @property
    def queue(self) -> list[str]:
        return [*reversed(self.front), *self.back]

    def take(self, event: Event):
        for group in (self.running, self.front, self.back):
            group.pop(event.request_id, None)
        group = {"arrive": self.back, "admit": self.running, "preempt": self.front}.get(event.kind)
        if group is not None:
            group[event.request_id] = None


def _fields(record) -> dict:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _iteration_to_json(iteration: Iteration) -> dict:
    spans = [span._asdict() for span in iteration.spans]
    memory = {key: held._asdict() for key, held in iteration.memory.items()}
    return _fields(iteration) | {"spans": spans, "memory": memory}


def _iteration_from_json(record: dict) -> Iteration:
    memory = {
        key: Holding(tuple(tuple(part) for part in held["ranges"]), held["used"])
        for key, held in record["memory"].items()
    }
    spans = tuple(Span(**{**span, "tokens": tuple(span["tokens"])}) for span in record["spans"])
    return Iteration(**{**record, "spans": spans, "memory": memory})


def _write(path: Path, text: str):
    """In one move: an existing file stays as it is until the new one is whole."""
    data = text.encode("utf-8", "backslashreplace")  # half of a surrogate pair becomes \udxxx, which is JSON's own way
    if path.exists() and not path.is_file():  # a device or a pipe has nothing to lose, and must not be replaced
        path.write_bytes(data)
        return
    path = path.resolve()  # through a link, to the file
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
