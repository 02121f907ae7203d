"""One attention for prompt, chunk and decode, whose bits for a query depend on its own tokens alone.

Three things could betray the batch, and each is fixed:
- where the keys are cut into portions that are summed one by one: at absolute positions 0, SPLIT, 2 * SPLIT, ..., never
  at the end of a chunk, of a cached prefix or of a block, and never into a number of portions that the length decides;
- in which order the portions come together: by position;
- which shape the products have: SPLIT keys, filled up with zeros, and a multiple of TILE_ROWS query rows.
Keys and values are read back from the arena, also those of this very iteration: they have one dtype and one path.

Here every query is computed by itself, so no other one could reach its bits anyway. The fixed shapes are what lets many
queries, of many requests, share a call and keep these bits: `tinyengine.fast.invariant` does that.
"""

from itertools import pairwise

import torch

from tinyengine.attention import Attend, KVCache
from tinyengine.batch import Batch, flat
from tinyengine.invariant.operators import TILE_ROWS, pad_rows

SPLIT = 128  # keys that one product sums


class InvariantAttention:
    """Requests in blocks, as `PagedAttention` serves them, query by query. split: keys of a portion, a power of two."""

    layout = staticmethod(flat)
    split = SPLIT

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __call__(self, batch: Batch) -> Attend:
        slots = [batch.slots(index) for index in range(len(batch.plan))]  # where each request's keys are
        positions = batch.positions.tolist()

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            for (start, end), held in zip(pairwise(batch.starts), slots):
                keys, values = self.cache.read(layer, held)  # [length, kv_heads, head_dim]
                for row in range(start, end):
                    seen = positions[row] + 1  # a query sees the keys up to its own position
                    out[row] = one_query(q[row], keys[:seen], values[:seen], self.split)
            return out

        return attend


def one_query(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, split: int = SPLIT) -> torch.Tensor:
    """Attention of one query over the n keys that it sees, split by split: the definition that the sixth stage's faster
    forms are held to, bit by bit where they call torch.

    q [heads, head_dim], keys and values [n, kv_heads, head_dim] -> [heads, head_dim], computed in float32.

    Every split is a softmax of its own, and those are weighed by their sizes: what each would have had of the whole.
    Source: flash-decoding (Dao et al., 2023), here with splits that stay where they are.
    """
    (heads, head_dim), (n, kv_heads, _) = q.shape, keys.shape
    # The query heads that share a key head are rows of one product
    rows = pad_rows(q.float().view(kv_heads, -1, head_dim) * head_dim**-0.5, TILE_ROWS)
    keys, values = keys.float().transpose(0, 1), values.float().transpose(0, 1)  # [kv_heads, n, head_dim]
    parts, sizes = [], []
    for start in range(0, n, split):
        k, v = (pad_rows(x[:, start : start + split], split) for x in (keys, values))
        scores = rows @ k.transpose(1, 2)  # [kv_heads, TILE_ROWS, split], however many keys there are
        scores[..., n - start :] = -torch.inf  # there are no more
        weights = scores.softmax(-1)
        parts.append(weights @ v)
        # = scores.logsumexp(-1) without another exponential of each score: the best one's weight is exp(best) / sum
        sizes.append(scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log())
    largest = torch.stack(sizes).amax(0)
    shares = [(size - largest).exp() for size in sizes]
    out = sum(share * part for share, part in zip(shares, parts)) / sum(shares)  # in order of position
    return out[:, : heads // kv_heads].reshape(heads, head_dim)
