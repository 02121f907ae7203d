"""Where K/V live: who holds which slots of the arena. Numbers only, no torch: the tensors are in attention.KVCache."""

from array import array
from collections import OrderedDict, deque
from hashlib import blake2b

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
    enable_prefix_caching = False  # a range that one request owns whole cannot be shared

    def __init__(self, n_slots: int, contiguous: bool = True):
        if n_slots < 1:
            raise ValueError(f"n_slots is {n_slots}, but an arena has at least 1 slot")
        self.n_slots = n_slots
        self.contiguous = contiguous
        self.holes = [range(n_slots)]  # free ranges, by address, never touching each other
        self.holders: dict[str, Request] = {}

    @classmethod
    def for_arena(cls, num_slots: int, block_size: int, enable_prefix_caching: bool = False) -> "Slots":
        """The engine's way to build any memory; slots have no use for `block_size`. Raises ValueError for a prefix
        cache: a range that one request owns whole cannot be shared."""
        if enable_prefix_caching:
            raise ValueError("enable_prefix_caching is True, but only stages with blocks can share a prefix: use paged")
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


class Blocks:
    """A pool of `n_blocks` blocks of `block_size` K/V slots, given out one by one as a request grows.

    A request's positions b * block_size .. (b + 1) * block_size - 1 live in block `table[b]`, wherever that is. So
    nothing is reserved, no hole is too small, and what is lost is the rest of each request's last block.
    Source: PagedAttention (SOSP 2023), sections 4.1 to 4.3.

    enable_prefix_caching: a full block keeps its K/V after its owner has gone, under the hash of its tokens and of the
        block before it, until its place is needed; a request that begins with the same tokens takes it over instead of
        computing it, also while the owner still runs. Of the free blocks the least recently freed is given out first.
        Source: vLLM's automatic prefix caching.

    Raises ValueError for a block_size that is not a power of two, and for a pool without a block.
    """

    contiguous = False

    def __init__(self, n_blocks: int, block_size: int = 16, enable_prefix_caching: bool = False):
        if block_size < 1 or block_size & (block_size - 1):
            raise ValueError(f"block_size is {block_size}, but must be a power of two, such as 1, 8 or 16")
        if n_blocks < 1:
            raise ValueError(f"n_blocks is {n_blocks}, but a pool has at least 1 block")
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        # the least recently freed first; out of its middle come only blocks that are cached
        self.free = OrderedDict.fromkeys(range(n_blocks)) if enable_prefix_caching else deque(range(n_blocks))
        self.references = [0] * n_blocks  # in how many tables a block stands; counted where there can be several
        self.holders: dict[str, Request] = {}
        self._block_of: dict[bytes, int] = {}  # hash -> the block that has these tokens' K/V
        self._hash_of: dict[int, bytes] = {}  # its inverse
        self._chains: dict[str, list[bytes]] = {}  # hashes of a request's full blocks, as far as they were asked for
        self._ranges: dict[str, tuple[int, tuple[tuple[int, int], ...]]] = {}  # table length -> ranges, for holdings

    @classmethod
    def for_arena(cls, num_slots: int, block_size: int, enable_prefix_caching: bool = False) -> "Blocks":
        """As many blocks as fit into `num_slots`. Raises ValueError where that is none."""
        if num_slots < block_size:
            raise ValueError(f"num_slots is {num_slots}, but a block has {block_size} slots: raise num_slots")
        return cls(num_slots // block_size, block_size, enable_prefix_caching)

    @property
    def n_slots(self) -> int:
        return self.n_blocks * self.block_size

    def blocks(self, n_slots: int) -> int:
        """How many blocks `n_slots` positions take."""
        return -(-n_slots // self.block_size)

    def missing(self, request: Request, n_slots: int) -> int:
        """How many blocks the request lacks for its first `n_slots` positions."""
        missing = -(-n_slots // self.block_size) - len(request.table)
        return missing if missing > 0 else 0

    def can_ever_hold(self, request: Request) -> bool:
        return self.blocks(request.max_slots - 1) <= self.n_blocks  # nothing attends to the last token

    def admit(self, request: Request, n_slots: int, owed: int = 0) -> int | None:
        """Takes in a request that holds nothing, if the blocks of its first `n_slots` positions are free beside `owed`
        that others are still to get; returns how many of its tokens the prefix cache has, or None: there is no room.

        It gets the cached blocks; the others come with `grow`.
        """
        cached = self._cached_prefix(request)
        idle = sum(not self.references[block] for block in cached)  # these are free until they are taken over
        if self.blocks(n_slots) - len(cached) + idle > len(self.free) - owed:
            return None
        for block in cached:
            self.references[block] += 1
            self.free.pop(block, None)
        request.table = cached
        self.holders[request.request_id] = request
        return len(cached) * self.block_size

    def grow(self, request: Request, n_slots: int) -> bool:
        """Gives a request the blocks that its first `n_slots` positions lack, or changes nothing and returns False."""
        if n_slots <= len(request.table) * self.block_size:
            return True  # what is so nearly always is looked at first
        missing = self.missing(request, n_slots)
        if missing > len(self.free):
            return False
        request.table += self._take(missing)
        return True

    def release(self, request: Request):
        """Takes back the blocks of the request that nobody shares; one that holds none is left as it is."""
        self._chains.pop(request.request_id, None)
        if self.holders.get(request.request_id) is not request:
            return
        del self.holders[request.request_id]
        self._ranges.pop(request.request_id, None)
        blocks = reversed(request.table)  # the end of a text is wanted again less often than its beginning
        request.table = []
        if not self.enable_prefix_caching:
            self.free.extend(blocks)
            return
        for block in blocks:
            self.references[block] -= 1
            if not self.references[block]:
                self.free[block] = None

    def filled(self, request: Request, since: int):
        """To be called, with the cache, when `computed` has moved from `since`: what has become full can be shared."""
        if not self.enable_prefix_caching:
            return
        full = request.computed // self.block_size
        chain = self._chain(request, full)
        for index in range(since // self.block_size, full):
            if chain[index] not in self._block_of:  # else another block has the same K/V, and this one stays private
                self._block_of[chain[index]] = request.table[index]
                self._hash_of[request.table[index]] = chain[index]

    def slots(self, request: Request, first: int, end: int) -> list[int]:
        """The slots of the request's positions first .. end - 1."""
        table, size = request.table, self.block_size
        return [table[position // size] * size + position % size for position in range(first, end)]

    def holdings(self) -> dict[str, Holding]:
        """Who holds what now, by request id, in order of admission; a shared block appears with each of its holders."""
        return {key: Holding(self._ranges_of(request), request.computed) for key, request in self.holders.items()}

    def check(self):
        """Raises AssertionError unless free and held blocks are all blocks, every reference is counted, a block stands
        in two tables only where it holds the same tokens at the same place, and what is cached was computed."""
        places: dict[int, list[tuple[Request, int]]] = {}
        for request in self.holders.values():
            room = len(request.table) * self.block_size
            assert request.computed <= room, f"{request.request_id!r} has outgrown its blocks"
            for place, block in enumerate(request.table):
                places.setdefault(block, []).append((request, place))
        free = set(self.free)
        assert len(free) == len(self.free), "a block is free twice"
        known = {*places, *free, *self._hash_of}
        assert known == set(range(self.n_blocks)), "a block is lost, or is none of the pool's"
        for block, references in enumerate(self.references):
            holders = places.get(block, [])
            counted = references == len(holders) or not self.enable_prefix_caching
            assert counted, f"block {block} counts {references} references, but has {len(holders)}"
            assert (block in free) == (not holders), f"block {block} is lost, or both free and held"
            contents = {tuple(who.tokens[: (place + 1) * self.block_size]) for who, place in holders}
            assert len(contents) <= 1, f"block {block} is shared, but not its tokens"
            if len(holders) > 1:
                assert block in self._hash_of, f"block {block} is shared, but was never cached"
                assert len({who.request_id for who, _ in holders}) == len(holders), f"block {block} is twice in a table"
        inverse = {block: key for key, block in self._block_of.items()}
        assert inverse == self._hash_of, "the prefix cache contradicts itself"
        for block, key in self._hash_of.items():
            for who, place in places.get(block, []):
                assert who.computed >= (place + 1) * self.block_size, f"block {block} is cached, but not computed"
                assert self._chain(who, place + 1)[place] == key, f"block {block} is cached under another text"

    def _cached_prefix(self, request: Request) -> list[int]:
        """The cached blocks that the request can begin with. The last token is always left to be computed: without it
        there would be no logits to sample from."""
        if not self.enable_prefix_caching:
            return []
        cached = []
        for key in self._chain(request, (len(request.tokens) - 1) // self.block_size):
            if key not in self._block_of:
                break
            cached.append(self._block_of[key])
        return cached

    def _chain(self, request: Request, n_blocks: int) -> list[bytes]:
        """The hashes of the request's first `n_blocks` blocks; each covers all tokens up to the end of its block."""
        chain = self._chains.setdefault(request.request_id, [])
        size = self.block_size
        for index in range(len(chain), n_blocks):
            before = chain[-1] if chain else b""
            tokens = array("q", request.tokens[index * size : (index + 1) * size])
            chain.append(blake2b(before + tokens.tobytes(), digest_size=16).digest())
        return chain[:n_blocks]

    def _take(self, n_blocks: int) -> list[int]:
        """The blocks that have been free for longest."""
        if not self.enable_prefix_caching:
            take = self.free.popleft
            return [take() for _ in range(n_blocks)]
        blocks = [self.free.popitem(last=False)[0] for _ in range(n_blocks)]
        for block in blocks:
            self._forget(block)
            self.references[block] = 1
        return blocks

    def _forget(self, block: int):
        """Evicts: the block's K/V are about to be overwritten."""
        if block in self._hash_of:
            del self._block_of[self._hash_of.pop(block)]

    def _ranges_of(self, request: Request) -> tuple[tuple[int, int], ...]:
        """A table only grows, so its ranges are made anew only when it has."""
        length, ranges = self._ranges.get(request.request_id, (0, ()))
        if length != len(request.table):
            size = self.block_size
            ranges = tuple((part.start * size, part.stop * size) for part in _ranges(request.table))
            self._ranges[request.request_id] = len(request.table), ranges
        return ranges


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
