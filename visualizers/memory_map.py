"""Which request holds which part of the arena, and when: from a Trace to what is sent, and from that to numbers. Pure
Python.

A holding is what one request holds from its admission to its end (or its preemption):

    [request, first, end, [[iteration, slot, past], ...], [[iteration, used], ...]]

in iterations [first, end). It got the slots [slot, past) at `iteration`, in the order of its positions. Of these slots
as many are filled as the request has computed tokens after its latest iteration; `used` lists only where a trace says
otherwise.
"""

from collections import Counter
from itertools import pairwise

from tinyengine.trace import Holding, Trace


def holdings(trace: Trace, index: dict[str, int]) -> list[list]:
    """All holdings of a trace, in order of their beginning."""
    found: list[list] = []
    live: dict[str, _Live] = {}
    for number, iteration in enumerate(trace.iterations):
        ends = {span.request_id: span.end for span in iteration.spans}
        for request_id, held in iteration.memory.items():
            mine = live.get(request_id)
            if mine is None or not mine.grow(held, number, ends.get(request_id)):
                mine = live[request_id] = _Live(held, number, ends.get(request_id), index[request_id])
                found.append(mine.record)
        for request_id in [request_id for request_id in live if request_id not in iteration.memory]:
            del live[request_id]
    return found


class _Live:
    """A holding that still goes on."""

    def __init__(self, held: Holding, number: int, computed: int | None, request: int):
        self.ranges: tuple[tuple[int, int], ...] = ()
        self.filled = 0
        self.record = [request, number, number, [], []]
        self.grow(held, number, computed)

    def grow(self, held: Holding, number: int, computed: int | None) -> bool:
        """Goes on for an iteration; False, and nothing changed, where the new ranges do not begin with the old."""
        _, _, _, parts, used = self.record
        more = self._more(held.ranges)
        if more is None:
            return False
        self.record[2] = number + 1
        parts.extend([number, first, past] for first, past in more)
        self.ranges = held.ranges
        self.filled = self.filled if computed is None else computed
        if held.used != self.filled:
            used.append([number, held.used])
            self.filled = held.used
        return True

    def _more(self, ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]] | None:
        if ranges == self.ranges:
            return []
        *whole, (first, past) = self.ranges or ((0, 0),)
        kept = len(whole)
        if list(ranges[:kept]) != whole or len(ranges) <= kept:
            return None
        if not self.ranges:
            return list(ranges)
        begin, reach = ranges[kept]  # the last range may have grown at its end
        if begin != first or reach < past:
            return None
        return [*([(past, reach)] if reach > past else []), *ranges[kept + 1 :]]


class MemoryMap:
    """The arena of an engine, from the dict that is drawn.

    used: of each holding, the filled slots in each of its iterations.
    """

    def __init__(self, engine: dict):
        self.holdings = engine["memory"]
        self.num_slots, self.block_size = engine["num_slots"], engine["block_size"]
        self.contiguous = engine["contiguous"]
        computed = _computed(engine)
        self.used = [_used(holding, computed.get(holding[0], {})) for holding in self.holdings]
        self._live: list[list[int]] = [[] for _ in engine["time"]]
        for number, (_, first, end, *_) in enumerate(self.holdings):
            for iteration in range(first, end):
                self._live[iteration].append(number)

    def at(self, iteration: int) -> dict[int, Holding]:
        """What each request holds at an iteration, by request."""
        found = {}
        for number in self._live[iteration]:
            request, first, _, parts, _ = self.holdings[number]
            ranges = tuple((slot, past) for since, slot, past in parts if since <= iteration)
            found[request] = Holding(ranges, self.used[number][iteration - first])
        return found

    @property
    def shown(self) -> int:
        """Addresses worth a picture: an arena of which the run needs a small part is not drawn to its end."""
        reach = max((past for *_, parts, _ in self.holdings for _, _, past in parts), default=1)
        return self.num_slots if reach * 2 > self.num_slots else -(-reach // self.block_size) * self.block_size

    def shared(self, iteration: int) -> list[tuple[int, int]]:
        """Ranges that more than one request holds, by address."""
        edges = Counter()
        for holding in self.at(iteration).values():
            for slot, past in holding.ranges:
                edges[slot] += 1
                edges[past] -= 1
        found, depth = [], 0
        for (slot, change), (past, _) in pairwise([*sorted(edges.items()), (0, 0)]):
            depth += change
            if depth < 2:
                continue
            if found and found[-1][1] == slot:
                found[-1] = (found[-1][0], past)
            else:
                found.append((slot, past))
        return found

    def holes(self, iteration: int) -> list[tuple[int, int]]:
        """Free ranges, by address."""
        free, end = [], 0
        for slot, past in sorted(part for holding in self.at(iteration).values() for part in holding.ranges):
            if slot > end:
                free.append((end, slot))
            end = max(end, past)
        return [*free, (end, self.num_slots)] if end < self.num_slots else free

    def figures(self, iteration: int) -> dict[str, int]:
        """In slots. held: by at least one request. filled: with K/V in it, shared ones once. lost: free, but outside
        the largest hole, in an arena where a request's slots must be one piece."""
        holes = [past - slot for slot, past in self.holes(iteration)]
        here = self.at(iteration).values()
        held = self.num_slots - sum(holes)
        again = sum(holding.reserved for holding in here) - held  # only full blocks are shared: filled as often as held
        lost = sum(holes) - max(holes, default=0) if self.contiguous else 0
        return {"held": held, "filled": sum(holding.used for holding in here) - again, "lost": lost}


def _computed(engine: dict) -> dict[int, dict[int, int]]:
    """{request: {iteration: tokens computed when it is done}}."""
    found: dict[int, dict[int, int]] = {}
    for _, request, _, first, _, start, n_tokens, tokens, draft, _ in engine["runs"]:
        for number, emitted in enumerate(tokens, first):
            right = len(emitted) - 1 if isinstance(emitted, list) else 0
            start += n_tokens - (draft - right)
            found.setdefault(request, {})[number] = start
    return found


def _used(holding: list, computed: dict[int, int]) -> list[int]:
    _, first, end, _, told = holding
    known, now, used = dict(told), 0, []
    for number in range(first, end):
        now = known.get(number, computed.get(number, now))
        used.append(now)
    return used
