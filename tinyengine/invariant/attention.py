"""One attention for prompt, chunk and decode, whose bits for a query depend on its own tokens alone.

Three things could betray the batch, and each is fixed:
- where the keys are cut into portions that are summed one by one: at absolute positions 0, SPLIT, 2 * SPLIT, ..., never
  at the end of a chunk, of a cached prefix or of a block, and never into a number of portions that the length decides;
- in which order the portions come together: by position;
- which shape the products have: SPLIT keys, masked where there are none yet, and a multiple of TILE_ROWS query rows.
Keys and values are read back from the arena, also those of this very iteration: they have one dtype and one path.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tinyengine.attention import Attend, PagedAttention
from tinyengine.batch import Batch
from tinyengine.invariant.operators import TILE_ROWS

SPLIT = 64  # keys that one product sums
SHARED = 8  # requests with at most so many new tokens, equally many of them, are computed side by side
TILE_QUERIES = 64  # of a longer one; the keys behind a tile are left out
HIDDEN = -1e30  # swallows any score, so the weight is exactly 0; with -inf, a split with nothing to see would be NaN


class InvariantAttention(PagedAttention):
    """`PagedAttention` with its sums in fixed portions. split: keys of a portion."""

    split = SPLIT

    def kernel_options(self, batch: Batch) -> dict:
        """On a GPU: one height of tiles, and a request's keys never shared out, since both would follow the batch. The
        kernel's key tiles begin at absolute positions, so they need no splits of ours."""
        return {"tile_rows": 16}

    def _on_cpu(self, batch: Batch) -> Attend:
        contexts = [Context(batch, requests, self.split) for requests in side_by_side(batch.counts)]
        kv_heads = self.cache.keys.shape[2]
        places = [context.places(kv_heads) for context in contexts]  # once, for all layers

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            for context, place in zip(contexts, places, strict=True):
                keys, values = (read(arena[layer], place) for arena in (self.cache.keys, self.cache.values))
                for tile in context.tiles:
                    out[tile.rows] = attend_tile(q[tile.rows], keys, values, tile)
            return out

        return attend


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

    rows: where they stand in the batch, request by request. owner [items]: whose split it is. alive[j]: how many of the
    m requests, the longest first, have a split j. hidden [items, queries, split]: 0, or HIDDEN for a key that a query
    must not see, also one that is not there.
    """

    rows: slice | torch.Tensor
    queries: int
    owner: torch.Tensor
    alive: list[int]
    hidden: torch.Tensor

    def spread(self, own: torch.Tensor) -> torch.Tensor:
        """What each request has, for each of its splits: [m, ...] -> [items, ...]."""
        if self.alive[0] == 1:
            return own.expand(len(self.alive), *own.shape[1:])
        return own if len(self.alive) == 1 else own[self.owner]


class Context:
    """The keys of m requests cut into splits, and the tiles of queries that look at them.

    Items are splits of requests: the first split of each, then the second of each that has one, and so on.
    """

    def __init__(self, batch: Batch, requests: list[int], split: int):
        requests = sorted(requests, key=lambda index: -batch.lengths[index])
        device = batch.tokens.device
        lengths = [batch.lengths[index] for index in requests]
        splits = [-(-length // split) for length in lengths]
        alive = [sum(own > number for own in splits) for number in range(splits[0])]
        items = [(rank, number * split) for number, n in enumerate(alive) for rank in range(n)]
        owner, begin = torch.tensor(items, device=device).unbind(1)  # [items]
        which, length = torch.tensor([requests, lengths], device=device)
        position = begin[:, None] + torch.arange(split, device=device)  # [items, split], of each key
        # Where a request has no key yet, its first one stands in: a foreign one would take part as 0 * value, and
        # 0 * NaN is NaN.
        own = torch.where(position < length[owner, None], position, 0)
        table = batch.block_table.long()[which][owner]  # [items, most blocks]
        size = batch.block_size
        self.slots = table.gather(1, own // size) * size + own % size  # [items, split]
        self.tiles = []
        count = batch.counts[requests[0]]
        first = batch.cu_seqlens_q.long()[which]  # the first row of each request
        for start in range(0, count, TILE_QUERIES):
            end = min(start + TILE_QUERIES, count)
            query = torch.arange(start, end, device=device)
            seen = -(-(lengths[0] - count + end) // split)  # splits that any of them may see
            items = sum(alive[:seen])
            at = (length - count)[:, None] + query  # [m, queries], the position of each query
            hidden = torch.where(position[:items, None] > at[owner[:items]][:, :, None], HIDDEN, 0.0)
            rows = slice(int(first[0]) + start, int(first[0]) + end)
            if len(requests) > 1:
                rows = (first[:, None] + query).flatten()
            self.tiles.append(Tile(rows, end - start, owner[:items], alive[:seen], hidden))

    def places(self, kv_heads: int) -> torch.Tensor:
        """The rows of [slots * kv_heads, head_dim] to read: [items, kv_heads, split]."""
        return self.slots[:, None] * kv_heads + torch.arange(kv_heads, device=self.slots.device)[:, None]


def read(arena: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """One layer's arena [slots, kv_heads, head_dim] -> [items, kv_heads, split, head_dim] in float32."""
    rows = arena.flatten(0, 1).index_select(0, places.flatten())
    return rows.float().view(*places.shape, arena.shape[-1])


def attend_tile(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile) -> torch.Tensor:
    """q [m * queries, heads, head_dim], keys and values [items or more, kv_heads, split, head_dim] -> as q.

    Every split is a softmax of its own, and those are weighed by what each would have had of the whole. That is
    flash-decoding's arithmetic (Dao et al., 2023), with splits that stay where they are.
    """
    items, m, queries = tile.hidden.shape[0], tile.alive[0], tile.queries
    (_, heads, head_dim), (_, kv_heads, split, _) = q.shape, keys.shape
    group = heads // kv_heads
    rows = queries * group
    height = -(-rows // TILE_ROWS) * TILE_ROWS
    # The query heads that share a key head are rows of one product, query by query: [m, kv_heads, rows, head_dim]
    wide = (q.float() * head_dim**-0.5).view(m, queries, kv_heads, group, head_dim).transpose(1, 2)
    wide = F.pad(wide.reshape(m, kv_heads, rows, head_dim), (0, 0, 0, height - rows))
    wide = tile.spread(wide).reshape(items * kv_heads, height, head_dim)
    keys, values = keys[:items].flatten(0, 1), values[:items].flatten(0, 1)  # [items * kv_heads, split, head_dim]
    scores = torch.bmm(wide, keys.transpose(1, 2)).view(items, kv_heads, height, split)
    scores[:, :, :rows].unflatten(2, (queries, group)).add_(tile.hidden[:, None, :, None])
    weights = scores.softmax(-1)
    out = torch.bmm(weights.flatten(0, 1), values).view(items, kv_heads, height, head_dim)
    if len(tile.alive) > 1:
        # The likeliest key's weight is 1 / sum(exp(scores - best)), so this is log(sum(exp(scores))).
        size = scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()  # [items, kv_heads, height, 1]
        share = (size - tile.spread(in_order(torch.maximum, size, tile.alive))).exp()
        out = in_order(torch.add, out * share, tile.alive) / in_order(torch.add, share, tile.alive)
    out = out[:, :, :rows].unflatten(2, (queries, group))  # [m, kv_heads, queries, group, head_dim]
    return out.transpose(1, 2).reshape(q.shape).to(q.dtype) + 0  # no -0: beside a hidden split it would be 0


def in_order(combine: Callable, parts: torch.Tensor, alive: list[int]) -> torch.Tensor:
    """Puts the splits' parts [items, ...] together, one after the other: [m, ...]."""
    total, start = parts[: alive[0]].clone(), alive[0]
    for count in alive[1:]:
        combine(total[:count], parts[start : start + count], out=total[:count])
        start += count
    return total
