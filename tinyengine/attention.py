"""How rows meet: the only place where a transformer notices that it serves a batch.

An attention is made once around the K/V arena. `layout` says how it wants a plan laid out as rows, `operators` with
which arithmetic the model treats each row, and calling it with a batch gives the `attend(layer, q, k, v)` that the
model calls in every layer:

    q [R, heads, head_dim], k and v [R, kv_heads, head_dim]  ->  [R, heads, head_dim]
"""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F

from tinyengine.batch import Batch, flat, rectangle
from tinyengine.operators import by_torch

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class KVCache:
    """The arena: `keys` and `values`, each [layers, blocks, block_size, kv_heads, head_dim]."""

    def __init__(self, config, n_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype):
        shape = (config.num_hidden_layers, n_blocks, block_size, config.num_key_value_heads, config.head_dim)
        # Uninitialised: a slot is written before its value counts, and on a CPU a page counts only when it is written.
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)

    def write(self, layer: int, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        """k and v [N, kv_heads, head_dim] go to slots slot_mapping [N]."""
        self.keys[layer].flatten(0, 1)[slot_mapping] = k  # [blocks, block_size, ...] -> [slots, ...]
        self.values[layer].flatten(0, 1)[slot_mapping] = v

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values of these slots [...]: each [..., kv_heads, head_dim]."""
        return self.keys[layer].flatten(0, 1)[slots], self.values[layer].flatten(0, 1)[slots]


class Padded:
    """Attention over a rectangle: every request has as many queries as the longest has new tokens, and as many keys as
    the longest has context. The mask hides what is not there; the arithmetic is done all the same."""

    layout = staticmethod(rectangle)
    operators = staticmethod(by_torch)

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __call__(self, batch: Batch) -> Attend:
        width = max(batch.counts)
        height, longest = len(batch.tokens) // width, max(batch.lengths)
        table = torch.zeros(height, longest, dtype=torch.long, device=batch.tokens.device)
        for index, length in enumerate(batch.lengths):
            slots = batch.slots(index)
            # Past its tokens a request's own first slot stands in, never a foreign one: a masked value still takes part
            # as 0 * value, and 0 * NaN is NaN.
            table[index] = slots[0]
            table[index, :length] = slots
        # A query sees the keys up to its own position: [height, 1, width, longest]. Positions count within a request,
        # so this holds for a prompt, for one new token, and for a chunk behind older context.
        key_position = torch.arange(longest, device=batch.tokens.device)
        mask = (batch.positions.view(height, 1, width, 1) >= key_position).expand(height, 1, width, longest)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if batch.real is not None:
                k, v = k[batch.real], v[batch.real]  # [R, ...] -> [N, ...]: padding rows leave nothing in the arena
            self.cache.write(layer, batch.slot_mapping, k, v)
            keys, values = self.cache.read(layer, table)  # [height, longest, kv_heads, head_dim]
            q = q.view(height, width, *q.shape[1:]).transpose(1, 2)  # [height, heads, width, head_dim]
            out = F.scaled_dot_product_attention(
                q, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, enable_gqa=True
            )
            return out.transpose(1, 2).flatten(0, 1)  # [R, heads, head_dim]

        return attend


class PerRequest:
    """Selective batching: all requests' rows go through the model as one stream, and only attention takes them apart,
    request by request, so that nothing is padded. Source: Orca (OSDI 2022), section 3.2, figure 5."""

    layout = staticmethod(flat)
    operators = staticmethod(by_torch)

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __call__(self, batch: Batch) -> Attend:
        slots = [batch.slots(index) for index in range(len(batch.plan))]  # where each request's keys are

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            for (start, end), held in zip(pairwise(batch.starts), slots):
                out[start:end] = one_request(q[start:end], *self.cache.read(layer, held))
            return out

        return attend


class PagedAttention:
    """The stream of `PerRequest`, over K/V in blocks: each request finds its keys through its block table."""

    layout = staticmethod(flat)
    operators = staticmethod(by_torch)

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __call__(self, batch: Batch) -> Attend:
        where = batch.cu_seqlens_q, batch.seqused_k, batch.block_table

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            return paged_attention(q, self.cache.keys[layer], self.cache.values[layer], *where)

        return attend


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """Causal attention of B requests' newest tokens over their K/V in blocks: the definition that kernels are held to.

    q [N, heads, head_dim]: all requests' new tokens, one request behind the other.
    keys, values [blocks, block_size, kv_heads, head_dim]: one layer of the arena.
    cu_seqlens_q [B + 1]: where each request's queries begin. seqused_k [B]: how many keys it has, the new ones
    included. block_table [B, most blocks]: where they are.
    -> [N, heads, head_dim]. Query i of n sees the keys up to its own position, length - n + i.

    Source: PagedAttention (SOSP 2023), section 4.1; the argument names are FlashAttention's.
    """
    out = torch.empty_like(q)
    for (start, end), length, table in zip(pairwise(cu_seqlens_q.tolist()), seqused_k.tolist(), block_table.long()):
        blocks = table[: -(-length // keys.shape[1])]
        own_keys = keys[blocks].flatten(0, 1)[:length]  # [blocks, block_size, ...] -> [length, kv_heads, head_dim]
        own_values = values[blocks].flatten(0, 1)[:length]
        out[start:end] = one_request(q[start:end], own_keys, own_values)
    return out


def one_request(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention of one request's newest tokens over all its keys.

    q [n, heads, head_dim], keys and values [length, kv_heads, head_dim], n <= length -> [n, heads, head_dim]
    """
    n, length = len(q), len(keys)
    # The last query sees every key: the mask is aligned to the bottom right. `is_causal=True` would align it to the top
    # left, which is wrong as soon as there is older context.
    mask = torch.ones(n, length, dtype=torch.bool, device=q.device).tril(length - n)  # [n, length]
    q, keys, values = (x.transpose(0, 1)[None] for x in (q, keys, values))  # [1, heads or kv_heads, n or length, ...]
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)  # [1, heads, n, head_dim]
    return out[0].transpose(0, 1)
