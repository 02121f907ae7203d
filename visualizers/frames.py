"""Trace -> the compact dict that every picture is drawn from (JavaScript and matplotlib alike). Pure Python.

What is sent, and nothing else is drawn:

    {"palette": [colour, ...], "phases": PHASES,
     "requests": [[id, label], ...],          all engines together, so that one request has one colour everywhere
     "engines": [{
        "name", "slots",                      slots: batch slots, the rows of the picture
        "time", "duration",                   seconds, one per iteration
        "padding", "budget",                  tokens, one per iteration; a budget may be None
        "runs": [[row, request, phase, iteration, length, start, n_tokens, tokens, draft, recomputed], ...],
        "held": [[row, request, first, end], ...],       in the batch, but no tokens of the budget were left for it
        "preempted": [[row, request, first, end], ...],  its old row, until it or another request runs there
        "waiting": [[iteration, left, [request, ...]], ...],  the queue, where it differs from the iteration before:
                                                         its first `left` requests are gone, these stand at its end
        "events": [[iteration, kind, request, detail], ...],
        "records": {request: [prompt tokens, max_tokens, arrival, priority]},
        "pieces": {request: [text of each emitted token]},
        "captions": [sentence per iteration]}]}

`request` is an index into `requests`, `phase` one into `phases`. A run is `length` iterations in which one request
went on in the same way: `n_tokens` tokens each, the first at position `start`, of which the last `draft` were guesses
and `recomputed` had been computed before. `tokens` has what each iteration emitted: a token id, a list of several, or
None. Runs, and not cells, because 64 slots x 2,000 iterations must stay below 2 MB.
"""

import heapq
import json
from collections import defaultdict
from itertools import chain

from tinyengine.trace import Event, Iteration, Trace
from visualizers.captions import captions, label

PHASES = ("prefill", "chunk", "decode", "recompute")
# Okabe and Ito's colour-blind-safe hues, ordered so that neighbours differ in lightness too.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def build(traces: dict[str, Trace]) -> dict:
    """The data of one picture: one engine per named trace."""
    # Of the events too: a request can be aborted before it has arrived.
    ids = list(dict.fromkeys(chain.from_iterable(_ids(trace) for trace in traces.values())))
    index = {request_id: number for number, request_id in enumerate(ids)}
    return {
        "palette": list(PALETTE),
        "phases": list(PHASES),
        "requests": [[request_id, label(request_id)] for request_id in ids],
        "engines": [_engine(name, trace, index) for name, trace in traces.items()],
    }


def _ids(trace: Trace) -> list[str]:
    return [*trace.requests, *(event.request_id for event in trace.events)]


def to_json(data: dict) -> str:
    """ASCII text, safe inside a <script> element: no "<" is left in it."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _engine(name: str, trace: Trace, index: dict[str, int]) -> dict:
    rows = Rows(trace)
    records = trace.requests.values()
    return {
        "name": name,
        "slots": max(trace.max_num_seqs, rows.count),
        "time": [iteration.time for iteration in trace.iterations],
        "duration": [iteration.duration for iteration in trace.iterations],
        "padding": [iteration.padding for iteration in trace.iterations],
        "budget": [iteration.budget for iteration in trace.iterations],
        "runs": _runs(trace, rows, index),
        "held": [[row, index[who], first, end] for row, who, first, end in rows.held],
        "preempted": [[row, index[who], first, end] for row, who, first, end in rows.preempted],
        "waiting": _waiting(trace.iterations, index),
        "events": [[event.iteration, event.kind, index[event.request_id], event.detail] for event in trace.events],
        "records": {index[r.request_id]: [r.num_prompt_tokens, r.max_tokens, r.arrival, r.priority] for r in records},
        "pieces": {index[request_id]: pieces for request_id, pieces in trace.pieces.items()},
        "captions": captions(trace, rows.entered),
    }


class Rows:
    """Which row of the picture each span lies in. A trace does not say: a batch slot is a place in a picture.

    A request takes the lowest free row at its first span and keeps it until it finishes, aborts or is preempted. So
    the holes of static batching need no rule of their own: nobody takes a row before the batch has ended.

    of: per iteration, the row of each span, in the order of the spans.
    entered: per iteration, {request id: (row, id of the request that had the row before, or None)}.
    held, preempted: (row, request id, first iteration, end iteration) stretches without a span.
    """

    def __init__(self, trace: Trace):
        self.count = 0
        self.of: list[list[int]] = []
        self.entered: list[dict[str, tuple[int, str | None]]] = []
        self.held: list[tuple[int, str, int, int]] = []
        self.preempted: list[tuple[int, str, int, int]] = []
        self._free: list[int] = []
        self._row: dict[str, int] = {}
        self._owner: dict[int, str] = {}  # the last request in each row, also after it has left
        self._ran: dict[str, int] = {}  # the iteration after its latest span
        self._lost: dict[str, tuple[int, int]] = {}  # preempted and not back: (row, since)
        events = _by_iteration(trace.events)
        for number, iteration in enumerate(trace.iterations):
            self._step(number, iteration, events[number])
        for request_id in list(self._row):
            self._leave(request_id, len(trace.iterations))
        for request_id in list(self._lost):
            self._found(request_id, len(trace.iterations))

    def _step(self, number: int, iteration: Iteration, events: list[Event]):
        for event in events:
            if event.kind == "preempt" and event.request_id in self._row:
                self._lost[event.request_id] = (self._leave(event.request_id, number), number)
        self.entered.append({})
        for span in iteration.spans:
            if span.request_id not in self._row:
                self._enter(span.request_id, number)
            elif (ran := self._ran[span.request_id]) < number:
                self.held.append((self._row[span.request_id], span.request_id, ran, number))
            self._ran[span.request_id] = number + 1
        self.of.append([self._row[span.request_id] for span in iteration.spans])
        for event in events:
            if event.kind in ("finish", "abort"):
                self._leave(event.request_id, number + 1)
                self._found(event.request_id, number + 1)

    def _enter(self, request_id: str, number: int):
        if self._free:
            row = heapq.heappop(self._free)
        else:
            row, self.count = self.count, self.count + 1
        before = self._owner.get(row)
        self._found(request_id, number)
        self._found(before, number)
        self._row[request_id], self._owner[row] = row, request_id
        self.entered[-1][request_id] = (row, before)

    def _leave(self, request_id: str, number: int) -> int | None:
        """Free its row from iteration `number` on."""
        row = self._row.pop(request_id, None)
        if row is None:
            return None
        heapq.heappush(self._free, row)
        if (ran := self._ran[request_id]) < number:
            self.held.append((row, request_id, ran, number))
        return row

    def _found(self, request_id: str | None, number: int):
        """Its old row no longer stands empty for it: it is back, or another request has the row."""
        row, since = self._lost.pop(request_id, (None, number))
        if since < number:
            self.preempted.append((row, request_id, since, number))


def _by_iteration(events: list[Event]) -> dict[int, list[Event]]:
    found = defaultdict(list)
    for event in events:
        found[event.iteration].append(event)
    return found


def _runs(trace: Trace, rows: Rows, index: dict[str, int]) -> list[list]:
    runs: list[list] = []
    latest: dict[str, tuple[tuple, list]] = {}  # of each request: how its run would go on, and the run
    for number, iteration in enumerate(trace.iterations):
        for span, row in zip(iteration.spans, rows.of[number], strict=True):
            phase = PHASES.index(trace.phase(span))
            way = (row, phase, span.n_tokens, span.draft, span.recomputed)
            goes_on, run = latest.get(span.request_id, (None, []))
            if goes_on != (*way, number, span.start):
                run = [row, index[span.request_id], phase, number, 0, span.start, span.n_tokens, [], *way[3:]]
                runs.append(run)
            run[4] += 1
            run[7].append(_short(span.tokens))
            latest[span.request_id] = ((*way, number + 1, span.end), run)
    return runs


def _short(tokens: tuple[int, ...]) -> int | list[int] | None:
    return list(tokens) if len(tokens) > 1 else next(iter(tokens), None)


def _waiting(iterations: list[Iteration], index: dict[str, int]) -> list[list]:
    changes, before = [], ()
    for number, iteration in enumerate(iterations):
        now = iteration.waiting
        if now != before:
            left = before.index(now[0]) if now and now[0] in before else len(before)
            if now[: len(before) - left] != before[left:]:
                left = len(before)  # not first come, first served: send the whole queue
            changes.append([number, left, [index[request_id] for request_id in now[len(before) - left :]]])
            before = now
    return changes


# What a picture says in numbers, from the very dict that it is drawn from.


def running(engine: dict) -> list[int]:
    """Requests that ran, per iteration."""
    counts = [0] * len(engine["time"])
    for _, _, _, first, length, *_ in engine["runs"]:
        for number in range(first, first + length):
            counts[number] += 1
    return counts


def waiting(engine: dict) -> list[list[int]]:
    """The queue, per iteration."""
    queues, queue = [], []
    changes = {first: (left, more) for first, left, more in engine["waiting"]}
    for number in range(len(engine["time"])):
        left, more = changes.get(number, (0, []))
        queue = queue[left:] + more
        queues.append(queue)
    return queues


def tokens_out(engine: dict) -> list[int]:
    """Tokens emitted, per iteration."""
    counts = [0] * len(engine["time"])
    for _, _, _, first, _, _, _, tokens, *_ in engine["runs"]:
        for number, emitted in enumerate(tokens, first):
            counts[number] += 0 if emitted is None else len(emitted) if isinstance(emitted, list) else 1
    return counts


def figures(engine: dict, iteration: int | None = None) -> dict:
    """The readout at the playhead: iterations 0 to `iteration`, that one included (None: all of them).

    occupancy: busy slot-steps / slot-steps, 0 to 1, or None where no iteration ran.
    """
    stop = len(engine["time"]) if iteration is None else iteration + 1
    busy, slot_steps = sum(running(engine)[:stop]), engine["slots"] * min(stop, len(engine["time"]))
    return {
        "iterations": min(stop, len(engine["time"])),
        "running": running(engine)[:stop][-1] if slot_steps else 0,
        "waiting": len(waiting(engine)[:stop][-1]) if slot_steps else 0,
        "idle_slot_steps": slot_steps - busy,
        "padding": sum(engine["padding"][:stop]),
        "tokens_out": sum(tokens_out(engine)[:stop]),
        "occupancy": busy / slot_steps if slot_steps else None,
    }
