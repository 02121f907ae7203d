"""`invariant.attention.one_query` for many queries of many requests in one call: bit for bit the same, since a product
of fixed shape treats each query's rows alike whatever stands beside them. That is how the libraries at hand behave and
no law, so the self-test (`invariant.envelope`) looks whether it holds here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F

from tinyengine.attention import Attend, KVCache
from tinyengine.batch import Batch
from tinyengine.invariant.attention import SPLIT, one_query
from tinyengine.invariant.operators import TILE_ROWS

SHARED = 8  # requests with at most so many new tokens, equally many of them, are computed side by side
TILE_QUERIES = 64  # of a longer one; the keys behind a tile are left out
LOWEST = torch.finfo(torch.float32).min  # added to a score: its weight is exactly 0 beside any other's


class InSplits:
    """`InvariantAttention` with as few calls as it takes. split: keys of a portion, a power of two."""

    split = SPLIT

    def __init__(self, cache: KVCache):
        self.cache = cache
        self._rooms: dict[str, torch.Tensor] = {}

    def __call__(self, batch: Batch) -> Attend:
        contexts = [Context(batch, requests, self.split) for requests in of_one_count(batch.counts)]  # for all layers
        begun = begun_blocks(batch)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            for arena in (self.cache.keys, self.cache.values) if len(begun) else ():
                arena[layer].index_fill_(0, begun, 0)
            self.cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            for context in contexts:
                keys = self._copies("keys", self.cache.keys[layer], context)
                values = self._copies("values", self.cache.values[layer], context)
                for tile in context.tiles:
                    out[tile.rows] = attend_tile(q[tile.rows], keys, values, tile)
            if not out.sum(dtype=torch.float32).isfinite():
                self._mend(batch, layer, q, out)
            return out

        return attend

    def _copies(self, name: str, arena: torch.Tensor, context: "Context") -> torch.Tensor:
        """The context's keys or values, [items, kv_heads, split, head_dim] in float32. They are copied to the same room
        time and again: fresh memory would cost as much as the copy."""
        pieces = arena.view(-1, context.piece, *arena.shape[2:])
        shape = len(context.pieces), *pieces.shape[1:]
        copies = torch.index_select(pieces, 0, context.pieces, out=self._room(name, shape, arena.dtype))
        copies = copies.view(-1, context.split, *arena.shape[2:]).transpose(1, 2)
        return self._room(name + " by head", copies.shape, torch.float32).copy_(copies)

    def _room(self, name: str, shape: tuple, dtype: torch.dtype) -> torch.Tensor:
        size = prod(shape)
        if name not in self._rooms or len(self._rooms[name]) < size:
            self._rooms[name] = torch.empty(size, dtype=dtype, device=self.cache.keys.device)
        return self._rooms[name][:size].view(shape)

    def _mend(self, batch: Batch, layer: int, q: torch.Tensor, out: torch.Tensor):
        """Computes anew the rows that are not finite, each by itself. A key that a query must not see has weight 0, but
        0 * NaN is NaN, and 0 * infinity too."""
        for row in (~out.isfinite()).flatten(1).any(1).nonzero()[:, 0].tolist():
            index = next(index for index, end in enumerate(batch.starts[1:]) if row < end)
            seen = batch.slots(index)[: batch.positions[row] + 1]
            out[row] = one_query(q[row], *self.cache.read(layer, seen), self.split)


def begun_blocks(batch: Batch) -> torch.Tensor:
    """The blocks that end a request's context and are first written in this iteration. They are cleared before, so that
    no NaN that a former owner left behind a context is met, and mended, over and over."""
    size = batch.block_size
    each = zip(batch.tables, batch.lengths, batch.counts)
    begun = [table[(n - 1) // size] for table, n, new in each if n % size and (n - 1) % size < new]
    return torch.tensor(begun, dtype=torch.long, device=batch.tokens.device)


def of_one_count(counts: list[int]) -> list[list[int]]:
    """Which requests share a computation: those of few new tokens with equally many of them, the others each alone. It
    is a matter of speed only."""
    groups: dict[int, list[int]] = {}
    for index, count in enumerate(counts):
        groups.setdefault(count if count <= SHARED else -index - 1, []).append(index)
    return list(groups.values())


@dataclass
class Tile:
    """`queries` of m requests, equally many of each, over the first `items` splits of their context.

    rows: where they stand in the batch, request by request. owner [items]: whose split it is. alive[j]: how many of
    the m requests, the longest first, have a split j. hidden [items, 1, queries, split]: 0, or -inf for a key that a
    query must not see, also one that is not there; LOWEST where it sees none of the split, which must have a size.
    """

    rows: slice | torch.Tensor
    queries: int
    owner: torch.Tensor
    alive: list[int]
    hidden: torch.Tensor
    _rectangle: tuple[torch.Tensor, torch.Tensor] | None = None

    def rectangle(self, kv_heads: int, group: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for the queries, [m, kv_heads, height, head_dim], the rows behind them 0, and what is hidden from each
        of the rows (or from all of them): [items, 1, height or 1, split]. Made once, for all layers."""
        if self._rectangle is None:
            rows = self.queries * group
            height = -(-rows // TILE_ROWS) * TILE_ROWS
            hidden = self.hidden
            if self.queries > 1:
                hidden = F.pad(hidden.repeat_interleave(group, 2), (0, 0, 0, height - rows))
            self._rectangle = hidden.new_zeros(self.alive[0], kv_heads, height, head_dim), hidden
        return self._rectangle

    def spread(self, each: torch.Tensor) -> torch.Tensor:
        """What each request has, for each of its splits: [m, ...] -> [items, ...]."""
        if self.alive[0] == 1:
            return each.expand(len(self.alive), *each.shape[1:])
        return each if len(self.alive) == 1 else each.index_select(0, self.owner)


class Context:
    """The keys of m requests with `count` new tokens each, cut into splits, and the tiles of queries that look at them.

    Items are splits of requests: the first split of each, then the second of each that has one, and so on. owner
    [items]: whose it is, of the requests by falling length. begin [items]: the position at which it begins. pieces:
    where in the arena they are, in pieces of `piece` slots, which is a block or a split, whatever is smaller.
    """

    def __init__(self, batch: Batch, requests: list[int], split: int):
        requests = sorted(requests, key=lambda index: -batch.lengths[index])
        lengths = [batch.lengths[index] for index in requests]
        self.first_row, self.longest, self.count = batch.starts[requests[0]], lengths[0], batch.counts[requests[0]]
        self.split, self.piece = split, min(batch.block_size, split)
        splits = [-(-length // split) for length in lengths]
        self.alive = [sum(count > number for count in splits) for number in range(splits[0])]
        items = [(rank, number * split) for number, n in enumerate(self.alive) for rank in range(n)]
        tables = [pieces(batch, index, self.piece, split) for index in requests]
        per = split // self.piece
        self.pieces, self.owner, self.begin, self.rows, self.positions = integers(
            [
                [piece for rank, start in items for piece in tables[rank][start // self.piece :][:per]],
                *zip(*items),
                [batch.starts[index] for index in requests],
                [length - self.count for length in lengths],
            ],
            batch.tokens.device,
        )  # rows, positions [m]: of each request's first query
        offsets = torch.arange(split, device=batch.tokens.device)
        self.key_positions = self.begin[:, None, None] + offsets  # [items, 1, split]
        self.tiles = [
            self._tile(start, min(start + TILE_QUERIES, self.count)) for start in range(0, self.count, TILE_QUERIES)
        ]

    def _tile(self, start: int, end: int) -> "Tile":
        """The queries start .. end - 1 of each request."""
        query = torch.arange(start, end, device=self.pieces.device)
        seen = -(-(self.longest - self.count + end) // self.split)  # splits that any of them may see
        items = sum(self.alive[:seen])
        owner = self.owner[:items]
        at = (self.positions[:, None] + query)[owner][:, :, None]  # [items, queries, 1], the position of each query
        hidden = torch.where(self.key_positions[:items] > at, -torch.inf, 0.0)  # [items, queries, split]
        if end - start > 1:
            hidden.masked_fill_(self.begin[:items, None, None] > at, LOWEST)
        if len(self.rows) > 1:
            rows = (self.rows[:, None] + query).flatten()
        else:
            rows = slice(self.first_row + start, self.first_row + end)
        return Tile(rows, end - start, owner, self.alive[:seen], hidden[:, None])


def integers(columns: list, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Each column as a tensor, in one copy to the device."""
    whole = torch.tensor([number for column in columns for number in column], device=device)
    return whole.split([len(column) for column in columns])


def pieces(batch: Batch, index: int, piece: int, split: int) -> list[int]:
    """A request's pieces by position, up to a full split. Behind its last one its first stands in: a foreign one would
    take part as 0 * value, and 0 * NaN is NaN."""
    table, per_block = batch.tables[index], batch.block_size // piece
    n_pieces = -(-batch.lengths[index] // piece)
    found = list(table[:n_pieces])
    if per_block > 1:
        found = [table[n // per_block] * per_block + n % per_block for n in range(n_pieces)]
    return found + [found[0]] * (-len(found) % (split // piece))


def attend_tile(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile) -> torch.Tensor:
    """q [m * queries, heads, head_dim], keys and values [items or more, kv_heads, split, head_dim] -> as q."""
    items, m, queries = tile.hidden.shape[0], tile.alive[0], tile.queries
    (_, heads, head_dim), kv_heads = q.shape, keys.shape[1]
    group = heads // kv_heads
    wide, hidden = tile.rectangle(kv_heads, group, head_dim)
    # The query heads that share a key head are rows of one product, query by query
    grouped = q.view(m, queries, kv_heads, group, head_dim).transpose(1, 2)
    wide[:, :, : queries * group].unflatten(2, (queries, group)).copy_(grouped).mul_(head_dim**-0.5)
    keys, values = keys[:items].flatten(0, 1), values[:items].flatten(0, 1)
    scores = torch.bmm(tile.spread(wide).flatten(0, 1), keys.transpose(1, 2)).unflatten(0, (items, kv_heads))
    scores += hidden
    weights = scores.softmax(-1)
    out = torch.bmm(weights.flatten(0, 1), values)  # [items * kv_heads, height, head_dim]
    out = out.unflatten(0, (items, kv_heads))
    if len(tile.alive) > 1:
        size = scores.amax(-1, keepdim=True).sub_(weights.amax(-1, keepdim=True).log_())
        share = size.sub_(tile.spread(in_order(torch.maximum, size, tile.alive))).exp_()
        out = in_order(torch.add, out.mul_(share), tile.alive).div_(in_order(torch.add, share, tile.alive))
    else:
        out.add_(0)
    out = out[:, :, : queries * group].unflatten(2, (queries, group))  # [m, kv_heads, queries, group, head_dim]
    return out.transpose(1, 2).reshape(q.shape).to(q.dtype)


def in_order(combine: Callable, parts: torch.Tensor, alive: list[int]) -> torch.Tensor:
    """Puts the splits' parts [items, ...] together, one after the other: [m, ...]. A sum begins with 0, so it is never
    -0."""
    total, start = parts[: alive[0]] + 0, alive[0]
    for count in alive[1:]:
        combine(total[:count], parts[start : start + count], out=total[:count])
        start += count
    return total
