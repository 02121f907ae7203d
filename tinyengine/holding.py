"""Which request holds which slots, as ranges: what a memory map is drawn from."""

from typing import NamedTuple

from tinyengine.request import Request


class Holding(NamedTuple):
    """The K/V that one request holds: slot ranges [first, end) of the arena, and how many of those slots are filled."""

    ranges: tuple[tuple[int, int], ...]
    used: int

    @property
    def reserved(self) -> int:
        return sum(end - first for first, end in self.ranges)


class Holders:
    """What every memory knows of the requests that hold slots of it. holders: by id, in order of admission."""

    block_size: int

    def __init__(self):
        self.holders: dict[str, Request] = {}
        self._known: dict[str, tuple] = {}  # by id: a table, how long it was, and its ranges

    def holdings(self) -> dict[str, Holding]:
        """What each request holds now, by id, in order of admission; a block of several requests appears with each."""
        known, size = {}, self.block_size
        for key, request in self.holders.items():
            table, length, ranges = self._known.get(key, (None, 0, ()))
            if table is not request.table or length != len(table):  # a table only grows
                ranges = tuple((part.start * size, part.stop * size) for part in as_ranges(request.table))
            known[key] = request.table, len(request.table), ranges
        self._known = known
        return {key: Holding(known[key][2], request.computed) for key, request in self.holders.items()}


def as_ranges(table: range | list[int]) -> list[range]:
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


def merge(parts: list[range]) -> list[range]:
    """Sorted by address, neighbours joined."""
    merged: list[range] = []
    for part in sorted(parts, key=lambda part: part.start):
        if merged and merged[-1].stop == part.start:
            merged[-1] = range(merged[-1].start, part.stop)
        else:
            merged.append(part)
    return merged
