"""Requests whose time has not come."""

import heapq
from itertools import count

from tinyengine.request import Request


class Arrivals:
    """Requests by arrival; of two that arrive together, the one that was added first. A request that ends before its
    time has come is passed over."""

    def __init__(self):
        self._heap: list[tuple[float, int, Request]] = []
        self._number = count()
        self._most = 64  # entries at which the ended ones are thrown out

    def __len__(self) -> int:
        return sum(not request.finished for _, _, request in self._heap)

    def add(self, request: Request):
        if len(self._heap) >= self._most:
            self._heap = sorted(entry for entry in self._heap if not entry[2].finished)
            self._most = max(64, 2 * len(self._heap))
        heapq.heappush(self._heap, (request.arrival, next(self._number), request))

    @property
    def first(self) -> Request | None:
        while self._heap and self._heap[0][2].finished:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self):
        """Takes out the first."""
        heapq.heappop(self._heap)
