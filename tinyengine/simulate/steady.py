"""Steady decodes: requests that will do nothing but decode for a while are set aside, and only counted.

Chunked gives every running decode its token, whatever else runs. So, while memory is plenty, it plans the others as if
the steady ones were not there, with one batch slot and one token of the budget less for each. The scheduler itself is
asked, about the smaller problem, and an iteration costs what changes in it. Where blocks may run short, all of them are
back in the batch before the scheduler looks.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush

from tinyengine.priority import urgency
from tinyengine.scheduler import Chunked, Scheduler
from tinyengine.simulate.schedulers import by_priority, is_known, learns, takes_turns


class Steady:
    """The requests of a scheduler that are set aside, each up to the iteration in which it ends.

    size: how many they are. contexts: K/V positions that they read in the next iteration.
    """

    def __init__(self, scheduler: Scheduler, enabled: bool):
        self.size = self.contexts = 0
        self._scheduler = scheduler
        self._enabled = enabled and _serves_every_decode(scheduler)
        self._max_num_seqs, self._budget = scheduler.max_num_seqs, scheduler.token_budget
        self._by_priority = by_priority(scheduler)
        self._most_blocks = 0  # that an iteration can ask for
        self._held = 0  # of the contexts, those that have their blocks
        self._iteration = 0
        self._back: list[tuple] = []  # heap of (iteration that has it back, number, iteration it was set aside for, it)
        self._gaps: list[tuple[int, float]] = []  # (iteration, gap), longest first: no later gap was as long

    @property
    def until_next(self) -> float:
        """Iterations until one of them is back."""
        return self._back[0][0] - self._iteration if self._back else float("inf")

    @property
    def owed(self) -> int:
        """Blocks that they should have by now, and get when they are back; at most one too many for each."""
        return (self.contexts - self._held) // self._scheduler.memory.block_size + self.size

    def meet(self, request):
        """A step can ask for the blocks of the whole budget, for one begun by each request, and for those of a prompt
        that it may let in."""
        if self._enabled:
            blocks = self._scheduler.memory.blocks
            most = blocks(self._budget) + self._max_num_seqs + blocks(request.max_slots)
            self._most_blocks = max(self._most_blocks, most)

    def exchange(self, now: float):
        """Before an iteration: takes back each request that is about to end, and sets aside each other one that got its
        newest token at `now`, when the newest iteration ended. That leaves the scheduler its smaller problem."""
        if not self._enabled:
            return
        scheduler = self._scheduler
        short = len(scheduler.memory.free) < self.owed + self._most_blocks
        while self._back and (short or self._back[0][0] == self._iteration):
            self._take_back(*heappop(self._back), now)
        if not short:
            steady = [r for r in scheduler.running if r.last == now and r.max_slots - len(r.tokens) > 1]
            for request in steady:
                self._set_aside(request)
        scheduler.max_num_seqs = self._max_num_seqs - self.size
        scheduler.max_num_batched_tokens = self._budget - self.size

    def advance(self, times: int, gap: float):
        """After `times` iterations, the longest of which took `gap`."""
        self._iteration += times
        if self.size:
            self.contexts += times * self.size
            while self._gaps and self._gaps[-1][1] <= gap:
                self._gaps.pop()
            self._gaps.append((self._iteration, gap))

    def _set_aside(self, request):
        length = len(request.tokens)
        self._scheduler.running.remove(request)
        back = self._iteration + request.max_slots - length - 1
        heappush(self._back, (back, request.number, self._iteration, request))
        self.size += 1
        self.contexts += length
        self._held += length

    def _take_back(self, back: int, number: int, since: int, request, now: float):
        """Puts a request into its place in the batch. What the commits since then would have done to it (`tokens`,
        `computed`) is done here at once, since none of them had it in its plan."""
        times = self._iteration - since
        self.size -= 1
        self.contexts -= len(request.tokens) + times
        self._held -= len(request.tokens)
        request.tokens += [0] * times
        request.computed += times
        request.last = now
        request.worst_gap = max(request.worst_gap, self._gaps[bisect_left(self._gaps, (since + 1,))][1])
        self._scheduler.memory.grow(request, request.computed)
        insort(self._scheduler.running, request, key=self._place)

    def _place(self, request):
        """What the batch is sorted by; of equals, the one that came first."""
        return (urgency(request), request.number) if self._by_priority else request.number


def _serves_every_decode(scheduler: Scheduler) -> bool:
    """Whether every running request gets a token in every iteration, whatever else is in it: none is admitted that the
    budget has no token for. (A budget that learns from every iteration is not the smaller one of the smaller
    problem.)"""
    known = isinstance(scheduler, Chunked) and is_known(type(scheduler))
    return known and not takes_turns(scheduler) and not learns(scheduler)
