"""Which row of the picture each request lies in. Pure Python."""

import heapq
from collections import defaultdict

from tinyengine.trace import Event, Iteration, Trace


class Rows:
    """Which row of the picture each span lies in. A trace does not say: a batch slot is a place in a picture.

    A request takes the lowest free row at its first span and keeps it until it finishes, aborts or is preempted. So
    the holes of static batching need no rule of their own: no request takes a row before the batch has ended.

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
