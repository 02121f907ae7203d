"""One attention for prompt, chunk and decode, whose bits for a query depend on its own tokens alone.

Three things could betray the batch, and each is fixed:
- where the keys are cut into portions that are summed one by one: at absolute positions 0, SPLIT, 2 * SPLIT, ..., never
  at the end of a chunk, of a cached prefix or of a block, and never into a number of portions that the length decides;
- in which order the portions come together: by position;
- which shape the products have: SPLIT keys, masked where there are none yet, and a multiple of TILE_ROWS query rows.
Keys and values are read back from the arena, also those of this very iteration: they have one dtype and one path.

In float32 on a CPU, numba's loops take each query by itself, so none of the three comes up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import inf, prod

import torch
import torch.nn.functional as F

from tinyengine.attention import Attend, PagedAttention, in_blocks
from tinyengine.batch import Batch, on_device
from tinyengine.invariant.operators import TILE_ROWS

SPLIT = 128  # keys that one product sums
SHARED = 8  # requests with at most so many new tokens, equally many of them, are computed side by side
TILE_QUERIES = 64  # of a longer one; the keys behind a tile are left out
HIDDEN = -1e38  # far below any score, so the weight is exactly 0; -inf would leave a split with nothing to see no size


class InvariantAttention(PagedAttention):
    """`PagedAttention` with its sums in fixed portions. split: keys of a portion, a power of two."""

    split = SPLIT

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._rooms: dict[str, torch.Tensor] = {}

    def kernel_options(self, batch: Batch) -> dict:
        """On a GPU: one height of tiles, and a request's keys never shared out, since both would follow the batch. The
        kernel's key tiles begin at absolute positions, so they need no splits of ours. A later token in a query's tile
        leaves no trace, finite or not."""
        return {"tile_rows": 16, "prefix_pure": True}

    def _on_cpu(self, batch: Batch) -> Attend:
        if self.backend == "numba":
            return self._with_numba(batch)
        contexts = [Context(batch, requests, self.split) for requests in side_by_side(batch.counts)]  # for all layers
        begun = begun_blocks(batch)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            for arena in (self.cache.keys, self.cache.values) if len(begun) else ():
                in_blocks(arena[layer], batch.block_size).index_fill_(0, begun, 0)
            self.cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            for context in contexts:
                keys, values = self._read(layer, context)
                for tile in context.tiles:
                    out[tile.rows] = attend_tile(q[tile.rows], keys, values, tile)
            if not out.sum(dtype=torch.float32).isfinite():
                for context in contexts:
                    keys, values = self._read(layer, context)
                    for tile in context.tiles:
                        out[tile.rows] = mended(out[tile.rows], q[tile.rows], keys, values, tile)
            return out.add_(0)  # no -0: beside a hidden split it would be 0

        return attend

    def _read(self, layer: int, context: "Context") -> list[torch.Tensor]:
        """The context's keys and values, [items, split, kv_heads, head_dim] in float32. They are copied to the same
        room time and again: fresh memory would cost as much as the copy."""
        return [
            self._copies("keys", self.cache.keys[layer], context),
            self._copies("values", self.cache.values[layer], context),
        ]

    def _with_numba(self, batch: Batch) -> Attend:
        """Each query by itself, key after key where they lie, of a prompt as of a decode."""
        cache, loops = self.cache, self.cache.loops
        queries = loops.Queries(batch, inf)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            loops.paged_attention(q, *cache.arrays[layer], queries, out)
            return out

        return attend

    def _copies(self, name: str, arena: torch.Tensor, context: "Context") -> torch.Tensor:
        blocks = in_blocks(arena, context.piece)
        shape = len(context.pieces), *blocks.shape[1:]
        copies = torch.index_select(blocks, 0, context.pieces, out=self._room(name, shape, arena.dtype))
        if arena.dtype != torch.float32:
            copies = self._room(name + " in float32", shape, torch.float32).copy_(copies)
        return copies.view(-1, context.split, *arena.shape[1:])

    def _room(self, name: str, shape: tuple, dtype: torch.dtype) -> torch.Tensor:
        size = prod(shape)
        if name not in self._rooms or len(self._rooms[name]) < size:
            self._rooms[name] = torch.empty(size, dtype=dtype, device=self.cache.keys.device)
        return self._rooms[name][:size].view(shape)


def begun_blocks(batch: Batch) -> torch.Tensor:
    """The blocks that end a request's context and are first written in this iteration. They are cleared before, so that
    no NaN that a former owner left behind a context is met, and mended, over and over."""
    size = batch.block_size
    each = zip(batch.tables, batch.lengths, batch.counts)
    begun = [table[(n - 1) // size] for table, n, new in each if n % size and (n - 1) % size < new]
    return torch.tensor(begun, dtype=torch.long, device=batch.tokens.device)


def side_by_side(counts: list[int]) -> list[list[int]]:
    """Which requests share a computation: the short ones with equally many new tokens, the others each alone. It is a
    matter of speed only."""
    groups: dict[int, list[int]] = {}
    for index, count in enumerate(counts):
        groups.setdefault(count if count <= SHARED else -index - 1, []).append(index)
    return list(groups.values())


@dataclass
class Tile:
    """`queries` of m requests, equally many of each, over the first `items` splits of their context.

    rows: where they stand in the batch, request by request. owner [items]: whose split it is. alive[j]: how many of
    the m requests, the longest first, have a split j. hidden [items, 1, queries, split]: 0, or HIDDEN for a key that a
    query must not see, also one that is not there.
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

    def spread(self, own: torch.Tensor) -> torch.Tensor:
        """What each request has, for each of its splits: [m, ...] -> [items, ...]."""
        if self.alive[0] == 1:
            return own.expand(len(self.alive), *own.shape[1:])
        return own if len(self.alive) == 1 else own.index_select(0, self.owner)


class Context:
    """The keys of m requests cut into splits, and the tiles of queries that look at them.

    Items are splits of requests: the first split of each, then the second of each that has one, and so on. pieces:
    where in the arena they are, in pieces of `piece` slots, which is a block or a split, whatever is smaller.
    """

    def __init__(self, batch: Batch, requests: list[int], split: int):
        requests = sorted(requests, key=lambda index: -batch.lengths[index])
        device = batch.tokens.device
        lengths = [batch.lengths[index] for index in requests]
        splits = [-(-length // split) for length in lengths]
        alive = [sum(own > number for own in splits) for number in range(splits[0])]
        items = [(rank, number * split) for number, n in enumerate(alive) for rank in range(n)]
        self.split, self.piece = split, min(batch.block_size, split)
        own = [pieces(batch, index, self.piece, split) for index in requests]
        per = split // self.piece
        self.pieces, owner, begin, which, length, first = on_device(
            [
                [piece for rank, start in items for piece in own[rank][start // self.piece :][:per]],
                *zip(*items),
                requests,
                lengths,
                [0, *accumulate(batch.counts)],
            ],
            device,
        )
        position = begin[:, None] + torch.arange(split, device=device)  # [items, split], of each key
        self.tiles = []
        count = batch.counts[requests[0]]
        first = first[which]  # the first row of each request
        for start in range(0, count, TILE_QUERIES):
            end = min(start + TILE_QUERIES, count)
            query = torch.arange(start, end, device=device)
            seen = -(-(lengths[0] - count + end) // split)  # splits that any of them may see
            n = sum(alive[:seen])
            at = (length - count)[:, None] + query  # [m, queries], the position of each query
            hidden = torch.where(position[:n, None] > at[owner[:n]][:, :, None], HIDDEN, 0.0)
            rows = slice(int(first[0]) + start, int(first[0]) + end)
            if len(requests) > 1:
                rows = (first[:, None] + query).flatten()
            self.tiles.append(Tile(rows, end - start, owner[:n], alive[:seen], hidden[:, None]))


def pieces(batch: Batch, index: int, piece: int, split: int) -> list[int]:
    """A request's pieces by position, up to a full split. Behind its last one its first stands in: a foreign one would
    take part as 0 * value, and 0 * NaN is NaN."""
    table, per_block = batch.tables[index], batch.block_size // piece
    n_pieces = -(-batch.lengths[index] // piece)
    own = list(table[:n_pieces])
    if per_block > 1:
        own = [table[n // per_block] * per_block + n % per_block for n in range(n_pieces)]
    return own + [own[0]] * (-len(own) % (split // piece))


def attend_tile(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile) -> torch.Tensor:
    """q [m * queries, heads, head_dim], keys and values [items or more, split, kv_heads, head_dim] -> as q.

    Every split is a softmax of its own, and those are weighed by what each would have had of the whole. That is
    flash-decoding's arithmetic (Dao et al., 2023), with splits that stay where they are.
    """
    items, m, queries = tile.hidden.shape[0], tile.alive[0], tile.queries
    (_, heads, head_dim), kv_heads = q.shape, keys.shape[2]
    wide, hidden = tile.rectangle(kv_heads, heads // kv_heads, head_dim)
    rows = queries * (heads // kv_heads)
    # The query heads that share a key head are rows of one product, query by query
    wide[:, :, :rows].unflatten(2, (queries, -1)).copy_(q.view(m, queries, kv_heads, -1, head_dim).transpose(1, 2))
    out, size = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        tile.spread(wide), keys[:items].transpose(1, 2), values[:items].transpose(1, 2), attn_mask=hidden
    )  # [items, kv_heads, height, head_dim], and log(sum(exp(scores))) [items, kv_heads, height]
    out, size = out[:, :, :rows], size[:, :, :rows, None]
    if len(tile.alive) > 1:
        share = (size - tile.spread(in_order(torch.maximum, size, tile.alive))).exp_()
        out = in_order(torch.add, out * share, tile.alive).div_(in_order(torch.add, share, tile.alive))
    out = out.unflatten(2, (queries, -1))  # [m, kv_heads, queries, group, head_dim]
    return out.transpose(1, 2).reshape(q.shape).to(q.dtype)


def mended(out: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile) -> torch.Tensor:
    """The tile's output, where it is not finite computed anew: each query by itself, with 0 in place of what it must
    not see. A hidden key has weight 0, but 0 * NaN is NaN, and 0 * infinity too."""
    for row in (~out.isfinite()).flatten(1).any(1).nonzero()[:, 0].tolist():
        rank, query = divmod(row, tile.queries)
        hidden = tile.hidden[:, :, query : query + 1]  # [items, 1, 1, split]
        seen = (tile.owner == rank) & (hidden == 0).flatten(1).any(1)
        own, unseen = hidden[seen], (hidden[seen] != 0).view(-1, keys.shape[1], 1, 1)
        alone = Tile(slice(row, row + 1), 1, tile.owner[seen], [1] * len(own), own)
        clean = (x[: len(seen)][seen].masked_fill(unseen, 0) for x in (keys, values))
        out[row : row + 1] = attend_tile(q[row : row + 1], *clean, alone)
    return out


def in_order(combine: Callable, parts: torch.Tensor, alive: list[int]) -> torch.Tensor:
    """Puts the splits' parts [items, ...] together, one after the other: [m, ...]."""
    total, start = parts[: alive[0]].clone(), alive[0]
    for count in alive[1:]:
        combine(total[:count], parts[start : start + count], out=total[:count])
        start += count
    return total
