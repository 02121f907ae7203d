"""How rows meet: the only place where a transformer notices that it serves a batch.

A backend is made once around the K/V arena. `layout` says how it wants a plan laid out as rows, `operators(model)` with
which arithmetic the model treats each row, and calling it with a batch gives the `attend(layer, q, k, v)` that the
model calls in every layer:

    q [R, heads, head_dim], k and v [R, kv_heads, head_dim]  ->  [R, heads, head_dim]
"""

from collections.abc import Callable, Sequence
from functools import cache
from inspect import signature
from itertools import accumulate

import torch
import torch.nn.functional as F

from tinyengine.batch import Batch, flat, paged, rectangle
from tinyengine.kernels import loops, why_not_numba, why_not_triton
from tinyengine.operators import plain

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

BACKENDS = ("auto", "torch", "numba", "triton", "varlen")
FEW = 4  # new tokens up to which a request's rows are cheapest one by one, in loops that numba compiles
SPLIT_SIZE = 256  # keys of one program, where several share a request's keys


class KVCache:
    """The arena: `keys` and `values`, each [layers, slots, kv_heads, head_dim]."""

    def __init__(self, config, num_slots: int, device: torch.device, dtype: torch.dtype):
        shape = (config.num_hidden_layers, num_slots, config.num_key_value_heads, config.head_dim)
        # Not zeroed: on a CPU a page counts only when it is first written. Nobody reads what he has not written.
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.loops = loops(device, dtype)
        # for the loops, layer by layer: as numpy's arrays, which is a matter of microseconds, twice in every layer
        self.arrays = [(k.numpy(), v.numpy()) for k, v in zip(self.keys, self.values)] if self.loops else []

    def write(self, layer: int, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        """k and v [N, kv_heads, head_dim] go to slots slot_mapping [N]."""
        if self.loops:
            self.loops.write_kv(*self.arrays[layer], slot_mapping, k, v)
        else:
            self.keys[layer, slot_mapping] = k
            self.values[layer, slot_mapping] = v


class Padded:
    """Attention over a rectangle: every request has as many queries as the longest has new tokens, and as many keys as
    the longest has context. The mask hides what is not there; the arithmetic is done all the same."""

    layout = staticmethod(rectangle)
    operators = staticmethod(plain)

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __call__(self, batch: Batch) -> Attend:
        width = max(batch.counts)
        rows, longest = len(batch.tokens) // width, max(batch.lengths)
        table = torch.zeros(rows, longest, dtype=torch.long)
        for row, length in enumerate(batch.lengths):
            slots = _as_tensor(batch.slots(row))
            # Past its tokens a request's own first slot stands in, never a foreign one: a masked value still takes part
            # as 0 * value, and 0 * NaN is NaN.
            table[row] = slots[0]
            table[row, :length] = slots
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
    operators = staticmethod(plain)

    def __init__(self, cache: KVCache):
        self.cache = cache

    def __call__(self, batch: Batch) -> Attend:
        cache, loops = self.cache, self.cache.loops
        few = FEW if loops else 0
        queries = loops.Queries(batch, few) if loops else None
        ends = accumulate(batch.counts)
        longer = [  # the rows of each other request, where its keys are, and which of them a row sees
            (slice(end - count, end), batch.slots(index), causal_mask(count, batch.lengths[index], cache.keys))
            for index, (count, end) in enumerate(zip(batch.counts, ends))
            if count > few
        ]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            if queries:
                loops.paged_attention(q, *cache.arrays[layer], queries, out)
            for rows, slots, mask in longer:
                out[rows] = one_request(q[rows], cache.keys[layer, slots], cache.values[layer, slots], mask)
            return out

        return attend


class PagedAttention:
    """The stream of `PerRequest`, over K/V in blocks: each request finds its keys through its block table.

    backend: "triton" (kernels.paged), "varlen" (kernels.varlen, torch's own FlashAttention), "numba" (kernels.cpu),
        "torch" (from copies of the blocks, on any device), or "auto": triton or numba where they can run, else torch.
    split_kv: lets several programs of the Triton kernel share the keys of a request, in decodes of few long ones.

    Raises ValueError for a backend that cannot serve this arena here.
    """

    layout = staticmethod(flat)
    operators = staticmethod(plain)

    def __init__(self, cache: KVCache, backend: str = "auto", split_kv: bool = True):
        self.cache = cache
        self.backend = choose_backend(backend, cache.keys)
        self.split_kv = split_kv
        if self.backend != "torch":
            self.layout = paged

    def __call__(self, batch: Batch) -> Attend:
        return self._on_cuda(batch) if self.backend in ("triton", "varlen") else self._on_cpu(batch)

    def _on_cpu(self, batch: Batch) -> Attend:
        if self.backend == "numba":
            return self._with_numba(batch)
        shared = side_by_side(batch.counts, batch.lengths, batch.block_size)
        groups = [Group(batch, requests, self.cache.keys) for requests in shared]  # once, for all layers

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            keys, values = (in_blocks(arena[layer], batch.block_size) for arena in (self.cache.keys, self.cache.values))
            out = torch.empty_like(q)
            for group in groups:
                out[group.rows] = group.attend(q[group.rows], keys, values)
            return out

        return attend

    def _with_numba(self, batch: Batch) -> Attend:
        """A few queries read their keys where they lie; the many of a chunk share a copy of its keys."""
        cache, loops = self.cache, self.cache.loops
        queries = loops.Queries(batch, FEW)
        chunks = [Group(batch, [index], cache.keys) for index, count in enumerate(batch.counts) if count > FEW]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            cache.write(layer, batch.slot_mapping, k, v)
            out = torch.empty_like(q)
            loops.paged_attention(q, *cache.arrays[layer], queries, out)
            for chunk in chunks:
                keys, values = (in_blocks(arena[layer], batch.block_size) for arena in (cache.keys, cache.values))
                out[chunk.rows] = chunk.attend(q[chunk.rows], keys, values)
            return out

        return attend

    def _on_cuda(self, batch: Batch) -> Attend:
        if self.backend == "varlen":
            return self._with_varlen(batch)
        from tinyengine.kernels import paged  # imported here: Triton is an extra that a CPU does not need

        longest, options = max(batch.counts), self.kernel_options(batch)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = (in_blocks(arena[layer], batch.block_size) for arena in (self.cache.keys, self.cache.values))
            paged.write_kv(keys, values, batch.slot_mapping, k, v)
            return paged.paged_attention(q, keys, values, *batch.varlen, longest, **options)

        return attend

    def _with_varlen(self, batch: Batch) -> Attend:
        from tinyengine.kernels import varlen  # imported here: not every torch has what it needs

        longest = max(batch.counts)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            keys, values = (in_blocks(arena[layer], batch.block_size) for arena in (self.cache.keys, self.cache.values))
            return varlen.paged_attention(q, keys, values, *batch.varlen, longest)

        return attend

    def kernel_options(self, batch: Batch) -> dict:
        """How the Triton kernel cuts its work (its `tile_rows` and `split_size`).

        A decode has one program for each request and key head. Where that leaves multiprocessors of the GPU without
        any, and the table is longer than a split, the keys are cut into splits of SPLIT_SIZE.
        """
        requests, width = batch.block_table.shape
        programs = requests * self.cache.keys.shape[2]
        is_long = width * batch.block_size > SPLIT_SIZE
        if self.split_kv and max(batch.counts) == 1 and is_long and programs < _multiprocessors(self.cache.keys.device):
            return {"split_size": SPLIT_SIZE}
        return {}


def choose_backend(wanted: str, arena: torch.Tensor) -> str:
    """The attention that `wanted` of BACKENDS means for K/V in this arena. Raises ValueError, with the reason, for one
    that cannot run."""
    if wanted not in BACKENDS:
        raise ValueError(f"attention_backend is {wanted!r}, but the backends are {', '.join(BACKENDS)}")
    lacking = {
        "triton": why_not_triton(arena.device, arena.dtype, arena.shape[-1]),
        "numba": why_not_numba(arena.device, arena.dtype),
        "torch": None,
    }
    if wanted == "auto":
        return next(backend for backend, reason in lacking.items() if reason is None)
    if wanted == "varlen":
        from tinyengine.kernels import varlen  # imported here: not every torch has what it needs

        lacking["varlen"] = varlen.missing()
    if lacking[wanted]:
        raise ValueError(f"attention_backend is {wanted!r}, but {lacking[wanted]}")
    return wanted


def side_by_side(counts: Sequence[int], lengths: Sequence[int], block_size: int) -> list[list[int]]:
    """Which requests of a batch share a call of attention: decodes of nearly one length (one block more, or an eighth),
    since a call costs more than the few keys that are padded; anybody else is alone."""
    blocks = [-(-length // block_size) for length in lengths]
    groups = [[index] for index, count in enumerate(counts) if count > 1]
    shortest = 0
    for index in sorted((index for index, count in enumerate(counts) if count == 1), key=blocks.__getitem__):
        if shortest and blocks[index] <= max(shortest + 1, shortest * 9 // 8):
            groups[-1].append(index)
        else:
            shortest = blocks[index]
            groups.append([index])
    return groups


class Group:
    """m requests of a batch that share a call of attention, and where their K/V are.

    rows: their rows in the batch. blocks [m * w]: their blocks, one request behind the other; w is as many as the
    longest has, and the others' own first block stands in for the rest. For m = 1: mask, the request's `causal_mask`.
    For m > 1: unused, which of the m * w * block_size slots hold nothing of theirs; hidden [m, 1, 1, w * block_size],
    0, or -inf for a key that is not there.
    """

    def __init__(self, batch: Batch, requests: list[int], arena: torch.Tensor):
        device = batch.tokens.device
        starts = [0, *accumulate(batch.counts)]
        self.lengths = [batch.lengths[index] for index in requests]
        tables = [batch.tables[index][: -(-batch.lengths[index] // batch.block_size)] for index in requests]
        width = max(map(len, tables))
        filled = [[*table, *[table[0]] * (width - len(table))] for table in tables]
        self.blocks = torch.tensor(filled, device=device).flatten()
        if len(requests) == 1:
            self.rows = slice(starts[requests[0]], starts[requests[0] + 1])
            self.mask = causal_mask(batch.counts[requests[0]], self.lengths[0], arena)
            return
        self.rows = torch.tensor([starts[index] for index in requests], device=device)  # only decodes share a call
        missing = torch.arange(width * batch.block_size) >= torch.tensor(self.lengths)[:, None]
        self.unused = missing.flatten().nonzero()[:, 0].to(device)
        hidden = torch.zeros(missing.shape, dtype=arena.dtype).masked_fill(missing, -torch.inf)
        self.hidden = hidden[:, None, None].to(device)

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """q [rows, heads, head_dim]; keys, values [blocks, block_size, kv_heads, head_dim], one layer of the arena ->
        [rows, heads, head_dim]"""
        m, kv_heads, head_dim = len(self.lengths), *keys.shape[2:]
        # block by block: fewer and longer pieces to copy than slot by slot
        keys, values = (arena.index_select(0, self.blocks).flatten(0, 1) for arena in (keys, values))
        if m == 1:
            return one_request(q, keys[: self.lengths[0]], values[: self.lengths[0]], self.mask)
        for copy in (keys, values):
            copy.index_fill_(0, self.unused, 0)  # a masked value takes part as 0 * value, and may be somebody's NaN
        keys, values = (copy.view(m, -1, kv_heads, head_dim).transpose(1, 2) for copy in (keys, values))
        grouped = q.view(m, kv_heads, -1, head_dim)  # as in one_request: the group is rows of one product
        return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self.hidden).reshape(q.shape)


def in_blocks(arena: torch.Tensor, block_size: int) -> torch.Tensor:
    """One layer's arena, block by block: [slots, kv_heads, head_dim] -> [blocks, block_size, kv_heads, head_dim]."""
    return arena.view(-1, block_size, *arena.shape[1:])


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
    block_size, lengths = keys.shape[1], seqused_k.tolist()
    slots = block_table.long()[:, :, None] * block_size + torch.arange(block_size, device=q.device)
    slots = torch.cat([own[:length] for own, length in zip(slots.flatten(1), lengths)])  # [sum of lengths]
    keys, values = keys.flatten(0, 1)[slots].split(lengths), values.flatten(0, 1)[slots].split(lengths)
    queries = q.split(cu_seqlens_q.diff().tolist())
    return torch.cat([one_request(*own) for own in zip(queries, keys, values, strict=True)])


def causal_mask(n: int, length: int, like: torch.Tensor) -> torch.Tensor | None:
    """What keeps the newest n of `length` tokens from seeing those behind them: [n, length] of the dtype and on the
    device of `like`, 0, or -inf for a key that a query must not see; None where `one_request` needs none.

    The last query sees every key: the mask is aligned to the bottom right. `is_causal=True` alone aligns it to the top
    left, which is wrong as soon as there is older context.
    """
    if n in (1, length):
        return None
    return torch.full((n, length), -torch.inf, dtype=like.dtype, device=like.device).triu(length - n + 1)


def one_request(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention of one request's newest tokens over all its keys.

    q [n, heads, head_dim], keys and values [length, kv_heads, head_dim], n <= length -> [n, heads, head_dim]
    mask: their `causal_mask`, which is the same in every layer; made here if None.
    """
    (n, heads, head_dim), (length, kv_heads, _) = q.shape, keys.shape
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [kv_heads, length, head_dim]
    if n == 1:
        # One query sees everything, so there is no mask, and the query heads that share a key head can be the rows of
        # one product instead of copies of the keys: about 4x on bf16, and never slower.
        group = q.view(kv_heads, heads // kv_heads, head_dim)
        return F.scaled_dot_product_attention(group, keys, values).view(1, heads, head_dim)
    mask = causal_mask(n, length, q) if mask is None else mask
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )  # [1, heads, n, head_dim]
    return out[0].transpose(0, 1)


def make_attention(kind: type, cache: KVCache, backend: str = "auto", split_kv: bool = True):
    """A stage's attention around an arena. Raises ValueError for a choice where the stage leaves none."""
    if backend == "auto" and split_kv:
        return kind(cache)
    if "backend" not in signature(kind).parameters:
        name, value = ("split_kv", split_kv) if backend == "auto" else ("attention_backend", backend)
        raise ValueError(f"{name} is {value!r}, but {kind.__name__} computes in one way only: leave it out")
    return kind(cache, backend, split_kv)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _as_tensor(slots: slice | torch.Tensor) -> torch.Tensor:
    return torch.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
