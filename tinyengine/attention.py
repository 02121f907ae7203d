"""How rows meet: the only place where a transformer notices that it serves a batch.

A backend is made once around the K/V arena. `layout` says how it wants a plan laid out as rows, and calling it with a
batch gives the `attend(layer, q, k, v)` that the model calls in every layer:

    q [R, heads, head_dim], k and v [R, kv_heads, head_dim]  ->  [R, heads, head_dim]
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tinyengine.batch import Batch, flat, rectangle

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class KVCache:
    """The arena: `keys` and `values`, each [layers, slots, kv_heads, head_dim]."""

    def __init__(self, config, num_slots: int, device: torch.device, dtype: torch.dtype):
        shape = (config.num_hidden_layers, num_slots, config.num_key_value_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def write(self, layer: int, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        """k and v [N, kv_heads, head_dim] go to slots slot_mapping [N]."""
        self.keys[layer, slot_mapping] = k
        self.values[layer, slot_mapping] = v


class Padded:
    """Attention over a rectangle: every request has as many queries as the longest has new tokens, and as many keys as
    the longest has context. The mask hides what is not there; the arithmetic is done all the same."""

    layout = staticmethod(rectangle)

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __call__(self, batch: Batch) -> Attend:
        width = max(batch.counts)
        rows, longest = len(batch.tokens) // width, max(batch.lengths)
        table = torch.zeros(rows, longest, dtype=torch.long)
        for row, slots in enumerate(batch.tables):
            # Past its tokens a request's own first slot stands in, never a foreign one: a masked value still takes part
            # as 0 * value, and 0 * NaN is NaN.
            table[row] = slots[0]
            table[row, : len(slots)] = _as_tensor(slots)
        table = table.to(batch.tokens.device)
        # A query sees the keys up to its own position: [rows, 1, width, longest]. Positions count within a request, so
        # this holds for a prompt, for one new token, and for a chunk behind older context.
        key_position = torch.arange(longest, device=batch.tokens.device)
        mask = (batch.positions.view(rows, 1, width, 1) >= key_position).expand(rows, 1, width, longest)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if batch.real is not None:
                k, v = k[batch.real], v[batch.real]  # [R, ...] -> [N, ...]: padding rows leave nothing in the arena
            self.cache.write(layer, batch.slot_mapping, k, v)
            q = q.view(rows, width, *q.shape[1:]).transpose(1, 2)  # [rows, heads, width, head_dim]
            keys = self.cache.keys[layer][table].transpose(1, 2)  # [rows, kv_heads, longest, head_dim]
            values = self.cache.values[layer][table].transpose(1, 2)
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
            return out.transpose(1, 2).flatten(0, 1)  # [R, heads, head_dim]

        return attend


class PerRequest:
    """Selective batching: all requests' rows go through the model as one stream, and only attention takes them apart,
    request by request, so that nothing is padded. Source: Orca (OSDI 2022), section 3.2, figure 5."""

    layout = staticmethod(flat)

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __call__(self, batch: Batch) -> Attend:
        device = batch.tokens.device
        views = [_as_index(table, device) for table in batch.tables]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            out, offset = torch.empty_like(q), 0
            for count, slots in zip(batch.counts, views, strict=True):
                rows = slice(offset, offset + count)
                out[rows] = one_request(q[rows], self.cache.keys[layer, slots], self.cache.values[layer, slots])
                offset += count
            return out

        return attend


def one_request(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of one request's newest tokens over all its keys.

    q [n, heads, head_dim], keys and values [length, kv_heads, head_dim], n <= length -> [n, heads, head_dim]
    The last query sees every key: the mask is aligned to the bottom right. `is_causal=True` alone aligns it to the top
    left, which is wrong as soon as there is older context.
    """
    (n, heads, head_dim), (length, kv_heads, _) = q.shape, keys.shape
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [kv_heads, length, head_dim]
    if n == 1:
        # One query sees everything, so there is no mask, and the query heads that share a key head can be the rows of
        # one product instead of copies of the keys: about 4x on bf16, and never slower.
        group = q.view(kv_heads, heads // kv_heads, head_dim)
        return F.scaled_dot_product_attention(group, keys, values).view(1, heads, head_dim)
    mask = None if n == length else q.new_ones(n, length, dtype=torch.bool).tril(length - n)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )  # [1, heads, n, head_dim]
    return out[0].transpose(0, 1)


def _as_index(table: range | list[int], device: torch.device) -> slice | torch.Tensor:
    """One piece of the arena is a view of it; scattered slots must be gathered."""
    if isinstance(table, range):
        return slice(table.start, table.stop)
    return _as_tensor(table).to(device)


def _as_tensor(table: range | list[int]) -> torch.Tensor:
    if isinstance(table, range):  # torch.tensor would walk through it in Python
        return torch.arange(table.start, table.stop)
    return torch.tensor(table, dtype=torch.long)
