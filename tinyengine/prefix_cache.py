"""Prefix caching: a full block keeps its K/V after its owner has gone, and a request that begins with the same tokens
takes it over instead of computing it, also while the owner still runs. Source: vLLM's automatic prefix caching."""

from array import array
from collections import OrderedDict
from hashlib import blake2b

from tinyengine.memory import Blocks
from tinyengine.request import Request


class CachedBlocks(Blocks):
    """Blocks that are filed under the hash of their tokens and of the block before, until their place is needed. Of the
    free blocks the least recently freed is given out first.

    A block is filed late: when its request grows, or any looks for a block or gives one back. So `commit` need not know
    of the cache.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.free = OrderedDict.fromkeys(self.free)  # in order of freeing; a cached block is taken from its middle
        self.references = [0] * self.n_blocks  # in how many tables a block stands
        self.block_of: dict[bytes, int] = {}  # hash -> the block that has these tokens' K/V
        self.hash_of: dict[int, bytes] = {}  # its inverse
        self._chains: dict[str, list[bytes]] = {}  # hashes of a request's full blocks, as far as they were asked for
        self._filed: dict[str, int] = {}  # how many blocks of a request have been filed

    def admit(self, request: Request, kept_free: int = 0) -> bool:
        """As `Blocks.admit`; the request then holds the cached blocks, and `computed` begins behind them."""
        self.file_full_blocks()
        cached = self.cached_prefix(request)
        idle = sum(not self.references[block] for block in cached)  # these are free until they are taken over
        if self.blocks(len(request.tokens)) - len(cached) + idle > len(self.free) - kept_free:
            return False
        for block in cached:
            self.references[block] += 1
            self.free.pop(block, None)
        self.holders[request.request_id] = request
        request.table, request.computed = cached, len(cached) * self.block_size
        return True

    def grow(self, request: Request, n_slots: int) -> bool:
        if request.computed // self.block_size > self._filed.get(request.request_id, 0):
            self.file_full_blocks()
        return super().grow(request, n_slots)

    def release(self, request: Request):
        self.file_full_blocks()
        self._chains.pop(request.request_id, None)
        self._filed.pop(request.request_id, None)
        super().release(request)

    def file_full_blocks(self):
        """Files the blocks that have become full since it was last called, of all requests that hold any."""
        for request in self.holders.values():
            full, filed = request.computed // self.block_size, self._filed.get(request.request_id, 0)
            if full == filed:
                continue
            for block, key in zip(request.table[filed:full], self.chain(request, full)[filed:]):
                if key not in self.block_of:  # else another block has the same K/V, and this one stays private
                    self.block_of[key], self.hash_of[block] = block, key
            self._filed[request.request_id] = full

    def check(self):
        """Raises AssertionError unless free and held blocks are all blocks, every reference is counted, a block stands
        in two tables only where it holds the same tokens at the same place, and what is cached was computed."""
        places: dict[int, list[tuple[Request, int]]] = {}
        for request in self.holders.values():
            room = len(request.table) * self.block_size
            assert request.computed <= room, f"{request.request_id!r} has outgrown its blocks"
            for place, block in enumerate(request.table):
                places.setdefault(block, []).append((request, place))
        known = {*places, *self.free, *self.hash_of}
        assert known == set(range(self.n_blocks)), "a block is lost, or is none of the pool's"
        for block, references in enumerate(self.references):
            self._check_block(block, references, places.get(block, []))
        inverse = {block: key for key, block in self.block_of.items()}
        assert inverse == self.hash_of, "the prefix cache contradicts itself"
        for block, key in self.hash_of.items():
            for request, place in places.get(block, []):
                computed = request.computed >= (place + 1) * self.block_size
                assert computed, f"block {block} is cached, but not computed"
                assert self.chain(request, place + 1)[place] == key, f"block {block} is cached under another text"

    def _check_block(self, block: int, references: int, holders: list[tuple[Request, int]]):
        assert references == len(holders), f"block {block} counts {references} references, but has {len(holders)}"
        assert (block in self.free) == (not holders), f"block {block} is lost, or both free and held"
        contents = {tuple(request.tokens[: (place + 1) * self.block_size]) for request, place in holders}
        assert len(contents) <= 1, f"block {block} is shared, but not its tokens"
        if len(holders) > 1:
            assert block in self.hash_of, f"block {block} is shared, but was never cached"
            ids = {request.request_id for request, _ in holders}
            assert len(ids) == len(holders), f"block {block} is twice in a table"

    def cached_prefix(self, request: Request) -> list[int]:
        """The cached blocks that the request can begin with. The last token is always left to be computed: without it
        there would be no logits to sample from."""
        cached = []
        for key in self.chain(request, (len(request.tokens) - 1) // self.block_size):
            if key not in self.block_of:
                break
            cached.append(self.block_of[key])
        return cached

    def chain(self, request: Request, n_blocks: int) -> list[bytes]:
        """The hashes of the request's first `n_blocks` blocks; each covers all tokens up to the end of its block."""
        chain, size = self._chains.setdefault(request.request_id, []), self.block_size
        for index in range(len(chain), n_blocks):
            before = chain[-1] if chain else b""
            tokens = array("q", request.tokens[index * size : (index + 1) * size])
            chain.append(blake2b(before + tokens.tobytes(), digest_size=16).digest())
        return chain[:n_blocks]

    def take(self, n_blocks: int) -> list[int]:
        """The blocks that have been free for longest."""
        blocks = [self.free.popitem(last=False)[0] for _ in range(n_blocks)]
        for block in blocks:
            self.references[block] = 1
            if block in self.hash_of:  # evicted: its K/V are about to be overwritten
                del self.block_of[self.hash_of.pop(block)]
        return blocks

    def give_back(self, blocks):
        for block in blocks:
            self.references[block] -= 1
            if not self.references[block]:
                self.free[block] = None
