"""What `accelerate` puts in place of a stage's attention: the same, over keys where they lie, or in as few calls as it
takes. Each class has its name as an option in `backend`, and says with `why_not` where it cannot run."""

from functools import cache as once

import torch
import torch.nn.functional as F

from tinyengine.attention import Attend, KVCache, Padded
from tinyengine.batch import Batch
from tinyengine.fast.batch import block_table, flat, flat_with_tables, rectangle
from tinyengine.fast.kernels import cpu, cuda
from tinyengine.fast.kernels.cuda import varlen
from tinyengine.fast.operators import fastest

FEW_QUERIES = 4  # new tokens up to which a request's rows are cheapest one by one, in loops that numba compiles
SPLIT_SIZE = 256  # keys of one program of the Triton kernel, where several share a request's keys


class LoopCache(KVCache):
    """An arena that a loop writes. layers: keys and values of each, [blocks, block_size, kv_heads, head_dim]."""

    def __init__(self, cache: KVCache):
        from tinyengine.fast.kernels.cpu import loops  # needs numba

        self.loops = loops
        self.keys, self.values = cache.keys, cache.values
        self.layers = list(zip(self.keys, self.values))  # an index costs a microsecond, four times in every layer

    def write(self, layer: int, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        self.loops.write_kv(*self.layers[layer], slot_mapping, k, v)


def by_loop(cache: KVCache) -> KVCache:
    """The same arena, written by a loop where one can."""
    return LoopCache(cache) if cpu.why_not(cache.keys.device, cache.keys.dtype) is None else cache


class FastPadded(Padded):
    """`Padded` as it is, but for what is done row by row."""

    backend = "torch"
    layout = staticmethod(rectangle)
    operators = staticmethod(fastest)

    def __init__(self, cache: KVCache, split_kv: bool = True):
        super().__init__(by_loop(cache))

    @staticmethod
    def why_not(arena: torch.Tensor) -> str | None:
        """What keeps this class from serving an arena [layers, blocks, block_size, kv_heads, head_dim], as a
        sentence; None where nothing does."""
        return None


class ByTorch:
    """On any device: from copies of the keys, request by request, but decodes of nearly one length side by side."""

    backend = "torch"
    layout = staticmethod(flat)
    operators = staticmethod(fastest)

    def __init__(self, cache: KVCache, split_kv: bool = True):
        self.cache = by_loop(cache)

    @staticmethod
    def why_not(arena: torch.Tensor) -> str | None:
        return None

    def __call__(self, batch: Batch) -> Attend:
        groups = side_by_side(batch.counts, batch.lengths, batch.block_size)
        dtype = self.cache.keys.dtype
        parts = [(SideBySide if len(group) > 1 else Alone)(batch, group, dtype) for group in groups]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            keys, values = self.cache.keys[layer], self.cache.values[layer]
            out = torch.empty_like(q)
            for part in parts:
                out[part.rows] = part.attend(q[part.rows], keys, values)
            return out

        return attend


class ByLoops:
    """In float32 on a CPU: a few queries read their keys where they lie, the many of a chunk share a copy of them."""

    backend = "numba"
    layout = staticmethod(flat_with_tables)
    operators = staticmethod(fastest)
    most_queries = FEW_QUERIES  # of a request that the loops serve

    def __init__(self, cache: KVCache, split_kv: bool = True):
        self.cache = LoopCache(cache)

    @staticmethod
    def why_not(arena: torch.Tensor) -> str | None:
        return cpu.why_not(arena.device, arena.dtype)

    def __call__(self, batch: Batch) -> Attend:
        cache, loops, most = self.cache, self.cache.loops, self.most_queries
        where = batch.cu_seqlens_q, batch.seqused_k, batch.block_table
        has_few = min(batch.counts) <= most
        chunks = [Alone(batch, [index], torch.float32) for index, count in enumerate(batch.counts) if count > most]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            cache.write(layer, batch.slot_mapping, k, v)
            keys, values = cache.layers[layer]
            out = torch.empty_like(q)
            if has_few:
                loops.paged_attention(q, keys, values, *where, most_queries=most, out=out)
            for chunk in chunks:
                out[chunk.rows] = chunk.attend(q[chunk.rows], keys, values)
            return out

        return attend


class ByTriton:
    """On a GPU, in one kernel for prompt, chunk and decode (`kernels.cuda.paged`).

    split_kv: lets several programs share the keys of a request, in decodes of few long ones.
    """

    backend = "triton"
    layout = staticmethod(flat_with_tables)
    operators = staticmethod(fastest)

    def __init__(self, cache: KVCache, split_kv: bool = True):
        from tinyengine.fast.kernels.cuda import paged  # needs Triton

        paged.check_arena(cache.keys[0], cache.values[0])
        self.kernels, self.cache, self.split_kv = paged, cache, split_kv

    @staticmethod
    def why_not(arena: torch.Tensor) -> str | None:
        return cuda.why_not(arena.device, arena.dtype, arena.shape[-1])

    def __call__(self, batch: Batch) -> Attend:
        where = batch.cu_seqlens_q, batch.seqused_k, batch.block_table
        options = dict(max_seqlen_q=max(batch.counts), **self.options(batch))

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = self.cache.keys[layer], self.cache.values[layer]
            self.kernels.write_kv(keys, values, batch.slot_mapping, k, v)
            return self.kernels.paged_attention(q, keys, values, *where, **options)

        return attend

    def options(self, batch: Batch) -> dict:
        """How the kernel cuts its work.

        A decode has one program for each request and key head. Where that leaves multiprocessors of the GPU without
        any, and the table is longer than a split, the keys are cut into splits of SPLIT_SIZE.
        """
        requests, width = batch.block_table.shape
        programs = requests * self.cache.keys.shape[3]
        is_long = width * batch.block_size > SPLIT_SIZE
        if self.split_kv and max(batch.counts) == 1 and is_long and programs < _multiprocessors(self.cache.keys.device):
            return {"split_size": SPLIT_SIZE}
        return {}


class ByVarlen:
    """On a GPU, by torch's own FlashAttention (`kernels.cuda.varlen`)."""

    backend = "varlen"
    layout = staticmethod(flat_with_tables)
    operators = staticmethod(fastest)

    def __init__(self, cache: KVCache, split_kv: bool = True):
        self.cache = cache

    @staticmethod
    def why_not(arena: torch.Tensor) -> str | None:
        return varlen.why_not(arena)

    def __call__(self, batch: Batch) -> Attend:
        where, longest = (batch.cu_seqlens_q, batch.seqused_k, batch.block_table), max(batch.counts)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.cache.write(layer, batch.slot_mapping, k, v)
            keys, values = self.cache.keys[layer], self.cache.values[layer]
            return varlen.paged_attention(q, keys, values, *where, max_seqlen_q=longest)

        return attend


def side_by_side(counts: list[int], lengths: list[int], block_size: int) -> list[list[int]]:
    """Which requests of a batch share a call of torch's attention: decodes of nearly one length (one block more, or an
    eighth), since a call costs more than the few keys that are padded; each other request is alone."""
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


class Alone:
    """One request of a batch: its rows, where its keys are, and which of them its queries see, once for all layers."""

    def __init__(self, batch: Batch, requests: list[int], dtype: torch.dtype):
        (index,) = requests
        self.rows = slice(batch.starts[index], batch.starts[index + 1])
        self.length, device = batch.lengths[index], batch.tokens.device
        table = batch.tables[index]
        self.is_one_piece = isinstance(table, range) and batch.block_size == 1
        self.blocks = slice(table.start, table.stop) if self.is_one_piece else torch.tensor(table, device=device)
        self.mask = additive_mask(batch.counts[index], self.length, dtype, device)

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """q [n, heads, head_dim], keys and values [blocks, block_size, kv_heads, head_dim], one layer of the arena ->
        as q"""
        return one_request(q, self._copy(keys), self._copy(values), self.mask)

    def _copy(self, arena: torch.Tensor) -> torch.Tensor:
        """[length, kv_heads, head_dim], copied block by block, which are fewer and longer pieces than slots"""
        if self.is_one_piece:
            return arena[self.blocks, 0]  # no copy
        return arena.index_select(0, self.blocks).flatten(0, 1)[: self.length]


class SideBySide:
    """m decodes of a batch in one call, their keys filled up to the longest's.

    rows [m]: theirs in the batch. blocks [m * width]: their blocks, one request behind the other; a request's own last
    block stands in for those that it has not. unused: which of the slots in them hold none of its keys. hidden [m, 1,
    1, width * block_size]: 0, or -inf for a key that is not there.
    """

    def __init__(self, batch: Batch, requests: list[int], dtype: torch.dtype):
        device = batch.tokens.device
        blocks = block_table([batch.tables[index] for index in requests])
        self.blocks = torch.from_numpy(blocks.ravel()).to(device)
        self.rows = torch.tensor([batch.starts[index] for index in requests], device=device)
        lengths = torch.tensor([batch.lengths[index] for index in requests])
        missing = torch.arange(blocks.shape[1] * batch.block_size) >= lengths[:, None]
        self.unused = missing.flatten().nonzero()[:, 0].to(device)
        self.hidden = torch.zeros(missing.shape, dtype=dtype).masked_fill(missing, -torch.inf)[:, None, None].to(device)

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """As `Alone.attend`, for m rows of q."""
        m, kv_heads, head_dim = len(self.rows), *keys.shape[2:]
        keys, values = (arena.index_select(0, self.blocks).flatten(0, 1) for arena in (keys, values))
        for copy in (keys, values):
            copy.index_fill_(0, self.unused, 0)  # a masked value takes part as 0 * value, and may be another's NaN
        keys, values = (copy.view(m, -1, kv_heads, head_dim).transpose(1, 2) for copy in (keys, values))
        grouped = q.view(m, kv_heads, -1, head_dim)  # as in one_request: the group is rows of one product
        return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self.hidden).reshape(q.shape)


def additive_mask(n: int, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """The mask of `attention.one_request` as it is added to scores, 0 or -inf [n, length]; None where none need be."""
    if n in (1, length):
        return None
    return torch.full((n, length), -torch.inf, dtype=dtype, device=device).triu(length - n + 1)


def one_request(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """As `attention.one_request`, with the request's `additive_mask`, which is the same in every layer."""
    (n, heads, head_dim), kv_heads = q.shape, keys.shape[1]
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [kv_heads, length, head_dim]
    if n == 1:
        # One query sees everything, and the query heads that share a key head can be the rows of one product instead
        # of copies of the keys: about 4x on bf16, and never slower.
        group = q.view(kv_heads, heads // kv_heads, head_dim)
        return F.scaled_dot_product_attention(group, keys, values).view(1, heads, head_dim)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )  # [1, heads, n, head_dim]
    return out[0].transpose(0, 1)


@once
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
