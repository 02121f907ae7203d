"""Where K/V live: who holds which slots of the arena. Numbers only, no torch: the tensors are in attention.KVCache."""

from tinyengine.request import Request
from tinyengine.trace import Holding


class Slots:
    """An arena of `n_slots` K/V slots, reserved whole: prompt + max_tokens, from admission to the end.

    contiguous: a request gets one unbroken range, first fit, as an attention kernel that takes a base address needs it.
        Then the arena can have enough free slots in all, and no hole that is large enough (external fragmentation).
        False is the bare counter of Orca's Algorithm 1: any free slots will do, only their number matters.

    Source: Orca (OSDI 2022), Algorithm 1, n_slots and n_rsrv.
    """

    block_size = 1  # a slot is a block of one: block tables and slots are read by the same code

    def __init__(self, n_slots: int, contiguous: bool = True):
        if n_slots < 1:
            raise ValueError(f"n_slots is {n_slots}, but an arena has at least 1 slot")
        self.n_slots = n_slots
        self.contiguous = contiguous
        self.holes = [range(n_slots)]  # free ranges, by address, never touching each other
        self.holders: dict[str, Request] = {}

    @classmethod
    def for_arena(cls, num_slots: int, block_size: int) -> "Slots":
        """The engine's way to build any memory; slots have no use for `block_size`."""
        return cls(num_slots)

    @property
    def n_rsrv(self) -> int:
        """Slots reserved now."""
        return self.n_slots - sum(map(len, self.holes))

    def can_ever_hold(self, request: Request) -> bool:
        return request.max_slots <= self.n_slots

    def reserve(self, request: Request) -> bool:
        """Gives the request the slots for its prompt and its longest output, or changes nothing and returns False."""
        wanted = request.max_slots
        taken = self._find(wanted)
        if taken is None:
            return False
        request.table = taken[0] if self.contiguous else [slot for part in taken for slot in part]
        self.holders[request.request_id] = request
        for part in taken:
            self._cut(part)
        return True

    def release(self, request: Request):
        """Takes all slots of the request back; a request that holds none is left as it is."""
        if self.holders.get(request.request_id) is not request:
            return
        del self.holders[request.request_id]
        self.holes = _merge(self.holes + _ranges(request.table))
        request.table = []

    def slots(self, request: Request, first: int, end: int) -> range | list[int]:
        """The slots of the request's positions first .. end - 1; a range where they are one piece."""
        return request.table[first:end]

    def holdings(self) -> dict[str, Holding]:
        """Who holds what now, by request id, in order of admission: the memory map of a trace."""
        return {
            key: Holding(tuple((part.start, part.stop) for part in _ranges(request.table)), request.computed)
            for key, request in self.holders.items()
        }

    def check(self):
        """Raises AssertionError unless every slot is either free or held by exactly one request."""
        held = [slot for request in self.holders.values() for slot in request.table]
        free = [slot for hole in self.holes for slot in hole]
        assert sorted(held + free) == list(range(self.n_slots)), "a slot is lost, or held twice"
        for request in self.holders.values():
            assert len(request.table) == request.max_slots, f"{request.request_id!r} holds other than it reserved"
            assert request.computed <= len(request.table), f"{request.request_id!r} computed past its slots"

    def _find(self, wanted: int) -> list[range] | None:
        if self.contiguous:
            return next(([hole[:wanted]] for hole in self.holes if len(hole) >= wanted), None)
        parts = []
        for hole in self.holes:
            parts.append(hole[:wanted])
            wanted -= len(parts[-1])
            if not wanted:
                return parts
        return None

    def _cut(self, part: range):
        """Takes `part`, the beginning of a hole, out of the free ranges."""
        index = next(i for i, hole in enumerate(self.holes) if hole.start == part.start)
        rest = self.holes[index][len(part) :]
        self.holes[index : index + 1] = [rest] if rest else []


def _ranges(table: range | list[int]) -> list[range]:
    """The table as unbroken ranges, in its order."""
    if isinstance(table, range):
        return [table] if table else []
    parts: list[range] = []
    for slot in table:
        if parts and parts[-1].stop == slot:
            parts[-1] = range(parts[-1].start, slot + 1)
        else:
            parts.append(range(slot, slot + 1))
    return parts


def _merge(parts: list[range]) -> list[range]:
    """Sorted by address, neighbours joined."""
    merged: list[range] = []
    for part in sorted(parts, key=lambda part: part.start):
        if merged and merged[-1].stop == part.start:
            merged[-1] = range(merged[-1].start, part.stop)
        else:
            merged.append(part)
    return merged
