"""Urgent requests first: vLLM's priority scheduling, with deadlines."""

from itertools import pairwise
from math import inf

from tinyengine.queue import Queue
from tinyengine.request import Request
from tinyengine.scheduler import Plan

POLICIES = ("fcfs", "priority")


def deadline(request: Request) -> float:
    """When its first token is due, on the engine's clock. A request without a promise has no deadline."""
    return inf if request.slo.ttft is None else request.arrival + request.slo.ttft


def urgency(request: Request) -> tuple:
    """The smaller, the sooner. Sorting is stable: of equals, the one that was added first."""
    return request.priority, deadline(request), request.arrival


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
        self._places: dict[Request, int] = {}

    def schedule(self) -> Plan:
        if self.policy == "fcfs":
            return super().schedule()
        self._sort()
        self._places = {request: place for place, request in enumerate(self.running)}
        plan = super().schedule()
        self._sort()
        return plan

    def _sort(self):
        self.running.sort(key=urgency)
        order = [urgency(request) for request in self.waiting]
        if any(later < sooner for sooner, later in pairwise(order)):
            self.waiting = Queue(sorted(self.waiting, key=urgency))

    def _share(self, request: Request, budget: int) -> int:
        """One token is left for each running request behind this one, whose decode would stall while an urgent prompt
        takes all."""
        if self.policy == "fcfs":
            return super()._share(request, budget)
        behind = len(self.running) - 1 - self._places.get(request, len(self.running) - 1)
        return super()._share(request, max(1, budget - behind))
