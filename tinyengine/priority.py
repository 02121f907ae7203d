"""Urgent requests first: vLLM's priority scheduling, with deadlines."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count
from math import inf

from tinyengine.queue import Queue
from tinyengine.request import Request
from tinyengine.scheduler import Plan

POLICIES = ("fcfs", "priority")


def deadline(request: Request) -> float:
    """When its first token is due, on the engine's clock. A request without a promise has no deadline."""
    return inf if request.slo.ttft is None else request.arrival + request.slo.ttft


def urgency(request: Request) -> tuple:
    """The smaller, the sooner; of equals, the one that was added first."""
    return request.priority, deadline(request), request.arrival


class UrgentQueue(Queue):
    """A queue that is always in order of urgency, however long it is. Of equals, one that was put to the end stands
    behind the others, and one that was put to the front stands before them."""

    def __init__(self):
        super().__init__()
        self._entries: list[tuple] = []  # sorted: (urgency, place among equals, request)
        self._entry_of: dict[Request, tuple] = {}
        self._places = count(1)

    def append(self, request: Request):
        self._insert(request, next(self._places))

    def appendleft(self, request: Request):
        self._insert(request, -next(self._places))

    def popleft(self) -> Request:
        request = self[0]
        self.remove(request)
        return request

    def remove(self, request: Request):
        super().remove(request)
        del self._entries[bisect_left(self._entries, self._entry_of.pop(request))]

    def __iter__(self) -> Iterator[Request]:
        return (request for *_, request in self._entries)

    def _insert(self, request: Request, place: int):
        super().append(request)
        self._entry_of[request] = urgency(request), place, request
        insort(self._entries, self._entry_of[request])


class Prioritised:
    """Goes before a `Chunked`. policy: "fcfs" changes nothing; "priority" serves by priority, then by the deadline of
    the first token, then by arrival. The order decides three things: which request is admitted first, which gets tokens
    of the budget first, and, from its end, which gives its memory back where there is none. A request without a promise
    waits for as long as others of its priority come that have one.

    Raises ValueError for an unknown policy.
    """

    def __init__(self, *args, policy: str, **options):
        super().__init__(*args, **options)
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}, but the policies are {', '.join(POLICIES)}")
        self.policy = policy
        self.waiting = UrgentQueue() if policy == "priority" else self.waiting
        self._places: dict[Request, int] = {}

    def schedule(self) -> Plan:
        if self.policy == "fcfs":
            return super().schedule()
        self._places = {request: place for place, request in enumerate(self.running)}
        plan = super().schedule()
        if self.running and self.running[-1] not in self._places:
            self.running.sort(key=urgency)  # newcomers stand at its end
        return plan

    def share(self, request: Request, budget: int) -> int:
        """One token is left for each running request behind this one, whose decode would stall while an urgent prompt
        takes all."""
        if self.policy == "fcfs":
            return super().share(request, budget)
        behind = len(self.running) - 1 - self._places.get(request, len(self.running) - 1)
        return super().share(request, max(1, budget - behind))
