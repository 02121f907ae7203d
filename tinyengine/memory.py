"""Where K/V live: which request holds which slots of the arena. Numbers only: the tensors are in attention.KVCache."""

from collections import deque

from tinyengine.holding import Holders, Holding, as_ranges, merge
from tinyengine.request import Request

__all__ = ["Blocks", "Holding", "Slots"]


class Slots(Holders):
    """An arena of `n_slots` K/V slots, reserved whole: prompt + max_tokens, from admission to the end.
    contiguous: a request gets one unbroken range, first fit, as an attention kernel that takes a base address needs it.
        Then the arena can have enough free slots in all, and no hole that is large enough (external fragmentation).
        False is the bare counter of Orca's Algorithm 1: any free slots will do, only their number matters.

    Raises ValueError for an arena without a slot. Source: Orca (OSDI 2022), Algorithm 1, n_slots and n_rsrv.
    """

    block_size = 1  # a slot is a block of one: block tables and slots are read by the same code

    def __init__(self, n_slots: int, contiguous: bool = True):
        if n_slots < 1:
            raise ValueError(f"n_slots is {n_slots}, but an arena has at least 1 slot")
        super().__init__()
        self.n_slots = n_slots
        self.contiguous = contiguous
        self.holes = [range(n_slots)]  # free ranges, by address, never touching each other

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
        taken = self._find(request.max_slots)
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
        self.holes = merge(self.holes + as_ranges(request.table))
        request.table = []

    def slots(self, request: Request, first: int, end: int) -> range | list[int]:
        """The slots of the request's positions first .. end - 1; a range where they are one piece."""
        return request.table[first:end]

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


class Blocks(Holders):
    """A pool of `n_blocks` blocks of `block_size` K/V slots, given out one by one as a request grows.

    A request's positions b * block_size .. (b + 1) * block_size - 1 live in block `table[b]`, wherever that is. So
    nothing is reserved, no hole is too small, and what is lost is the rest of each request's last block.

    Raises ValueError for a block_size that is not a power of two, and for a pool without a block.
    Source: PagedAttention (SOSP 2023), sections 4.1 to 4.3.
    """

    contiguous = False

    def __init__(self, n_blocks: int, block_size: int = 16):
        if block_size < 1 or block_size & (block_size - 1):
            raise ValueError(f"block_size is {block_size}, but must be a power of two, such as 1, 8 or 16")
        if n_blocks < 1:
            raise ValueError(f"n_blocks is {n_blocks}, but a pool has at least 1 block")
        super().__init__()
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.free = deque(range(n_blocks))

    @classmethod
    def for_arena(cls, num_slots: int, block_size: int) -> "Blocks":
        """As many blocks as fit into `num_slots`. Raises ValueError where that is none."""
        if num_slots < block_size:
            raise ValueError(f"num_slots is {num_slots}, but a block has {block_size} slots: raise num_slots")
        return cls(num_slots // block_size, block_size)

    @property
    def n_slots(self) -> int:
        return self.n_blocks * self.block_size

    def blocks(self, n_slots: int) -> int:
        """How many blocks `n_slots` positions take."""
        return -(-n_slots // self.block_size)

    def missing(self, request: Request, n_slots: int) -> int:
        """How many blocks the request lacks for its first `n_slots` positions."""
        return max(0, self.blocks(n_slots) - len(request.table))

    def can_ever_hold(self, request: Request) -> bool:
        return self.blocks(request.max_slots - 1) <= self.n_blocks  # no token attends to the last one

    def admit(self, request: Request, kept_free: int = 0) -> bool:
        """Registers a request if the blocks of all its tokens are free, and `kept_free` more. `grow` gives them."""
        if self.blocks(len(request.tokens)) > len(self.free) - kept_free:
            return False
        self.holders[request.request_id] = request
        return True

    def grow(self, request: Request, n_slots: int) -> bool:
        """Gives a request the blocks that its first `n_slots` positions lack, or changes nothing and returns False."""
        if n_slots <= len(request.table) * self.block_size:
            return True
        n_blocks = self.missing(request, n_slots)
        if n_blocks > len(self.free):
            return False
        request.table += self.take(n_blocks)
        return True

    def release(self, request: Request):
        """Takes all blocks of the request back; one that holds none is left as it is."""
        if self.holders.get(request.request_id) is not request:
            return
        del self.holders[request.request_id]
        blocks, request.table = request.table, []
        self.give_back(reversed(blocks))  # the beginning of a text stays longest

    def slots(self, request: Request, first: int, end: int) -> list[int]:
        """The slots of the request's positions first .. end - 1."""
        table, size = request.table, self.block_size
        return [table[position // size] * size + position % size for position in range(first, end)]

    def check(self):
        """Raises AssertionError unless every block is either free or held by exactly one request."""
        held = [block for request in self.holders.values() for block in request.table]
        assert sorted([*held, *self.free]) == list(range(self.n_blocks)), "a block is lost, or held twice"
        for request in self.holders.values():
            room = len(request.table) * self.block_size
            assert request.computed <= room, f"{request.request_id!r} has outgrown its blocks"

    def take(self, n_blocks: int) -> list[int]:
        return [self.free.popleft() for _ in range(n_blocks)]

    def give_back(self, blocks):
        self.free.extend(blocks)
