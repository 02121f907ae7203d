"""Reservations of the PagedAttention paper's baselines: how much is set aside at admission, by a buddy allocator."""

from tinyengine.holding import Holders
from tinyengine.memory import Slots
from tinyengine.request import Request

SIZES = {
    # name: slots that are asked for, of a request, and the model's longest sequence
    "max": lambda request, longest: longest,
    "pow2": lambda request, longest: min(longest, request.num_prompt_tokens + _power_of_two(request.params.max_tokens)),
    "oracle": lambda request, longest: request.max_slots,
}


def _power_of_two(n: int) -> int:
    """The smallest that is not below `n`."""
    return 1 << (n - 1).bit_length()


class Reserved(Slots):
    """An arena whose requests get one piece of a power of two of slots, from admission to the end.

    size: "max" sets aside the model's longest sequence for each; "pow2" the prompt and the output's length rounded up
        to a power of two, which is never more than the longest; "oracle" exactly what the request will need. The piece
        is the next power of two of that.
    longest: the model's longest sequence, in slots.

    Pieces are cut in halves and joined with their other half again, so a free slot may be of no use: in a piece
    that is too small (external fragmentation), or in one that is too large (internal).
    Raises ValueError for an unknown size, and for a longest sequence that does not fit into the arena.
    Source: PagedAttention (SOSP 2023), sections 3.1 and 6.1, Orca (Max), (Pow2), (Oracle); Knowlton, CACM 1965.
    """

    def __init__(self, n_slots: int, size: str, longest: int = 2048):
        if size not in SIZES:
            raise ValueError(f"size is {size!r}, but the sizes are {', '.join(SIZES)}")
        if not 1 <= longest <= n_slots:
            raise ValueError(
                f"longest is {longest} (--max-model-len), but must be at least 1 and at most the arena's {n_slots} "
                "slots (--num-slots)"
            )
        Holders.__init__(self)
        self.n_slots = n_slots
        self.contiguous = True
        self.longest = longest
        self.size = SIZES[size]
        self.free: dict[int, set[int]] = {1 << order: set() for order in range(n_slots.bit_length())}
        start = 0
        for order in reversed(range(n_slots.bit_length())):  # the arena as powers of two, the largest first
            if n_slots >> order & 1:
                self.free[1 << order].add(start)
                start += 1 << order

    @property
    def holes(self) -> list[range]:
        """The free pieces, by address."""
        pieces = [range(start, start + size) for size, starts in self.free.items() for start in starts]
        return sorted(pieces, key=lambda piece: piece.start)

    def piece(self, request: Request) -> int:
        """Slots that the request is given: the next power of two."""
        return _power_of_two(self.size(request, self.longest))

    def can_ever_hold(self, request: Request) -> bool:
        return request.max_slots <= self.longest and self.piece(request) < 1 << self.n_slots.bit_length()

    def reserve(self, request: Request) -> bool:
        wanted = self.piece(request)
        size = next((size for size, starts in self.free.items() if size >= wanted and starts), None)
        if size is None:
            return False
        start = min(self.free[size])
        self.free[size].remove(start)
        while size > wanted:
            size //= 2
            self.free[size].add(start + size)
        request.table = range(start, start + size)
        self.holders[request.request_id] = request
        return True

    def release(self, request: Request):
        if self.holders.get(request.request_id) is not request:
            return
        del self.holders[request.request_id]
        start, size = request.table.start, len(request.table)
        while start ^ size in self.free.get(size, ()):  # its other half is free as well
            self.free[size].remove(start ^ size)
            start, size = start & ~size, 2 * size
        self.free[size].add(start)
        request.table = []

    def check(self):
        """Raises AssertionError unless every slot is free or held once, in pieces that lie on multiples of their size,
        and no two free halves are left apart."""
        pieces = [*self.holes, *(request.table for request in self.holders.values())]
        slots = sorted(slot for piece in pieces for slot in piece)
        assert slots == list(range(self.n_slots)), "a slot is lost, or held twice"
        assert all(piece.start % len(piece) == 0 for piece in pieces), "a piece lies across two"
        for size, starts in self.free.items():
            assert not any(start ^ size in starts for start in starts), f"two halves of {2 * size} are free, but apart"
        assert all(len(request.table) == self.piece(request) for request in self.holders.values())
