"""Paged attention in Triton: one kernel for prefill, chunk and decode.

Sources: PagedAttention (SOSP 2023), section 4.1, for blocks; FlashAttention-2 (2023), algorithm 1, for the online
softmax; the query group in the rows of a tile is vLLM's and FlashAttention's way to read K/V once for all its heads.
"""

import math

import torch
import triton
import triton.language as tl

from tinyengine.fast.kernels.cuda import DTYPES

TILE_ROWS = (16, 64, 128)  # 16 is the least that tl.dot takes


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    *,
    max_seqlen_q: int | None = None,
    tile_rows: int | None = None,
    split_size: int | None = None,
    prefix_pure: bool = False,
) -> torch.Tensor:
    """Causal attention as `attention.paged_attention` defines it, its keys read where they lie in the arena; in
    bfloat16, float16 or float32, summed in float32.

    keys, values: one layer of an arena that `check_arena` takes; the new tokens are already in it.
    cu_seqlens_q, seqused_k, block_table: contiguous, int32. Table entries past a request's keys are never read.
    max_seqlen_q: the most queries of any request; a request's queries past it would stay uncomputed. None looks for
        it, which stops the GPU.
    tile_rows: rows of a tile, one of TILE_ROWS; None takes what suits max_seqlen_q. Tiles of different height may use
        different instructions of the GPU, so only with a fixed height are a request's bits free of its neighbours'.
    split_size: keys of one program, a multiple of 64; None gives all keys to one. With few long requests most of a GPU
        idles unless several programs share a request's keys. A fixed SIZE keeps bits free of the batch, a fixed number
        of splits would not. Costs float32 memory [splits, N, heads, head_dim], so it is for decodes and short chunks.
    prefix_pure: keeps a NaN or infinite value out of the queries before it. Its weight is 0 there, but 0 * NaN is NaN,
        so without this it may spoil them. A query that sees such a value gets NaN in that dimension. Every value is
        looked at, which costs time, so it is for a stage that promises bits.

    Whatever lies in slots that a request does not own, NaN included, has no influence. Raises ValueError for tensors of
    another kind than the arena; what the integers say is not looked at, as that would stop the GPU.
    """
    _check_like(keys, q=q)
    if not cu_seqlens_q.dtype == seqused_k.dtype == block_table.dtype == torch.int32:
        raise ValueError("cu_seqlens_q, seqused_k and block_table must be int32: the kernel reads four bytes of each")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    (n_tokens, heads, head_dim), (_, block_size, kv_heads, _) = q.shape, keys.shape
    if n_tokens == 0:
        return out
    max_seqlen_q = int(cu_seqlens_q.diff().max()) if max_seqlen_q is None else max_seqlen_q
    group = heads // kv_heads
    config = tile_config(max_seqlen_q * group, head_dim, q.dtype, tile_rows)
    splits, sums, stats = 1, out, out  # without splits the kernel leaves `sums` and `stats` alone
    if split_size:
        # The table's width bounds every length, and reading a length itself would stop the GPU.
        splits = triton.cdiv(block_table.shape[1] * block_size, split_size)
        sums = torch.empty(splits, n_tokens, heads, head_dim, dtype=torch.float32, device=q.device)
        stats = torch.empty(splits, n_tokens, heads, 2, dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(max_seqlen_q * group, config["TILE_ROWS"])
    _attend[(tiles * splits, kv_heads, len(seqused_k))](
        out,
        sums,
        stats,
        q,
        keys,
        values,
        cu_seqlens_q,
        seqused_k,
        block_table,
        math.log2(math.e) / math.sqrt(head_dim),
        n_tokens,
        splits,
        *out.stride()[:2],
        *q.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        block_table.stride(0),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        SPLIT_SIZE=split_size or 0,
        PREFIX_PURE=prefix_pure,
        **config,
    )
    if split_size:
        _combine[(max_seqlen_q, heads, len(seqused_k))](
            out,
            sums,
            stats,
            cu_seqlens_q,
            seqused_k,
            n_tokens,
            *out.stride()[:2],
            HEAD_DIM=head_dim,
            DIM=config["DIM"],
            SPLIT_SIZE=split_size,
        )
    return out


def write_kv(keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
    """Puts k and v [N, kv_heads, head_dim] into slots slot_mapping [N] (int32 or int64) of one layer of the arena.

    keys, values [blocks, block_size, kv_heads, head_dim]; slot s is block s // block_size, offset s % block_size. No
    slot may occur twice. Raises ValueError for tensors of another kind than the arena.
    """
    _check_like(keys, k=k, v=v)
    if not slot_mapping.shape == k.shape[:1] == v.shape[:1]:
        raise ValueError(f"slot_mapping has {len(slot_mapping)} slots for {len(k)} keys and {len(v)} values")
    (n_tokens, kv_heads, head_dim), block_size = k.shape, keys.shape[1]
    if n_tokens == 0:
        return
    _write[(n_tokens,)](
        keys,
        values,
        slot_mapping.contiguous(),
        k,
        v,
        *keys.stride()[:3],
        *values.stride()[:3],
        *k.stride()[:2],
        *v.stride()[:2],
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        ELEMENTS=triton.next_power_of_2(kv_heads * head_dim),
    )


def tile_config(rows: int, head_dim: int, dtype: torch.dtype, tile_rows: int | None = None) -> dict[str, int]:
    """What the kernel is compiled for: tile sizes, warps and stages, for `rows` query rows (queries x group).

    The height of a key tile depends on the model alone (head_dim, dtype), never on the batch: a request's keys are
    summed in the same portions in any company.
    """
    dim = max(16, triton.next_power_of_2(head_dim))  # tl.dot takes no fewer than 16, and only powers of two
    row_bytes = dim * dtype.itemsize
    tile_keys = max(16, min(64, 16384 // row_bytes))  # 16 KiB of keys and 16 of values: several such stages fit
    if tile_rows is None:
        # A row's sums live in registers, and float32 has no tensor cores to hold them: higher tiles would spill.
        most = 128 if row_bytes <= 256 and dtype != torch.float32 else 64 if row_bytes <= 512 else 16
        tile_rows = next((height for height in TILE_ROWS if min(rows, most) <= height), most)
    warps = 4 if tile_rows == 16 or (tile_rows == 64 and row_bytes <= 256 and dtype != torch.float32) else 8
    return {"DIM": dim, "TILE_ROWS": tile_rows, "TILE_KEYS": tile_keys, "num_warps": warps, "num_stages": 3}


# Triton compiles anew for an integer that is 1 or a multiple of 16; these three change with every batch.
@triton.jit(do_not_specialize=["n_tokens", "splits", "table_row"])
def _attend(
    out,
    sums_out,  # [splits, N, heads, head_dim] and
    stats_out,  # [splits, N, heads, 2]: used with SPLIT_SIZE only
    q,
    keys,
    values,
    cu_seqlens_q,
    seqused_k,
    block_table,
    scale,  # log2(e) / sqrt(head_dim): softmax is computed with exp2, which is one instruction
    n_tokens,
    splits,
    out_row,  # from here on: strides
    out_head,
    q_row,
    q_head,
    key_block,
    key_slot,
    key_head,
    value_block,
    value_slot,
    value_head,
    table_row,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT_SIZE: tl.constexpr,
    PREFIX_PURE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """One program: TILE_ROWS query rows of one request that share a key head, against all keys that they may see, or
    against those of one split."""
    tile, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    kv_head, request = tl.program_id(1), tl.program_id(2)
    start = tl.load(cu_seqlens_q + request)
    n = tl.load(cu_seqlens_q + request + 1) - start
    length = tl.load(seqused_k + request)
    if tile * TILE_ROWS >= n * GROUP:  # the grid is as high as the longest request needs
        return

    # Row r is query r // GROUP and head r % GROUP of the group: a key tile, once read, serves the whole group.
    row = tile * TILE_ROWS + tl.arange(0, TILE_ROWS)  # [TILE_ROWS]
    query, head = row // GROUP, kv_head * GROUP + row % GROUP
    # The last key that a row sees. Rows past the queries see what the last one sees: a row without keys would be 0 / 0.
    position = length - n + tl.minimum(query, n - 1)
    end = length - n + tl.minimum((tile * TILE_ROWS + TILE_ROWS - 1) // GROUP, n - 1) + 1  # keys that the tile sees
    if SPLIT_SIZE:
        end = tl.minimum(end, (split + 1) * SPLIT_SIZE)
        if split * SPLIT_SIZE >= end:
            return
    dim = tl.arange(0, DIM)
    real_dim = dim < HEAD_DIM
    real = (query < n)[:, None] & real_dim[None, :]
    token = (start + query).to(tl.int64)[:, None]  # int64: N x heads x head_dim may pass 2**31
    q_tile = tl.load(q + token * q_row + head[:, None] * q_head + dim[None, :], mask=real, other=0.0)
    block_table += request.to(tl.int64) * table_row
    keys += kv_head * key_head
    values += kv_head * value_head

    # The running maximum of a row's scores. It begins finite: -inf - -inf would be NaN for a row that a split hides.
    best = tl.full([TILE_ROWS], -1e38, tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)  # the sum of its weights, relative to `best`
    sums = tl.zeros([TILE_ROWS, DIM], tl.float32)  # the sum of weighted values, relative to `best`
    spoilt = tl.zeros([DIM], tl.int32) + length  # from which key on a value that is not finite is seen: none so far
    # Key tiles begin at absolute positions 0, TILE_KEYS, ..., so a query meets its keys in the same portions whether it
    # comes in a prompt, a chunk or alone. A tile that a row does not see leaves that row as it is, to the bit.
    for first in range(split * SPLIT_SIZE, end, TILE_KEYS):
        key = first + tl.arange(0, TILE_KEYS)  # [TILE_KEYS]
        seen = key < end
        # int64: block x stride passes 2**31 in an arena of 4 GiB
        block = tl.load(block_table + key // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        slot = key % BLOCK_SIZE
        # Masked loads give 0 where the request has nothing: a masked weight is 0, but 0 * NaN from a free block is NaN.
        k_tile = tl.load(
            keys + (block * key_block + slot * key_slot)[None, :] + dim[:, None],
            mask=seen[None, :] & real_dim[:, None],
            other=0.0,
        )  # [DIM, TILE_KEYS]
        scores = tl.dot(q_tile, k_tile, input_precision="ieee") * scale  # [TILE_ROWS, TILE_KEYS]; ieee: no TF32
        scores = tl.where(key[None, :] <= position[:, None], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        v_tile = tl.load(
            values + (block * value_block + slot * value_slot)[:, None] + dim[None, :],
            mask=seen[:, None] & real_dim[None, :],
            other=0.0,
        )  # [TILE_KEYS, DIM]
        if PREFIX_PURE:  # it would be NaN for every row of the tile, also for those that do not see it: 0 * infinity
            finite = tl.abs(v_tile) < float("inf")
            spoilt = tl.minimum(spoilt, tl.min(tl.where(finite, length, key[:, None]), 0))
            v_tile = tl.where(finite, v_tile, 0.0)
        sums = tl.dot(weights.to(v_tile.dtype), v_tile, sums * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        best = higher
    if PREFIX_PURE:  # a query that sees a key sees all before it, so the first one that spoils decides
        sums = tl.where(spoilt[None, :] <= position[:, None], float("nan"), sums)
    if SPLIT_SIZE:
        part = (split * n_tokens + token) * (tl.num_programs(1) * GROUP) + head[:, None]
        tl.store(sums_out + part * HEAD_DIM + dim[None, :], sums, mask=real)
        tl.store(stats_out + part * 2, best[:, None], mask=(query < n)[:, None])
        tl.store(stats_out + part * 2 + 1, total[:, None], mask=(query < n)[:, None])
    else:
        result = (sums / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + token * out_row + head[:, None] * out_head + dim[None, :], result, mask=real)


@triton.jit(do_not_specialize=["n_tokens"])
def _combine(
    out,
    sums_in,
    stats_in,
    cu_seqlens_q,
    seqused_k,
    n_tokens,
    out_row,
    out_head,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT_SIZE: tl.constexpr,
):
    """One program: one head of one query adds up its splits, always from the first to the last that it sees.

    Source: Flash-Decoding (2023); splits of a fixed size: Thinking Machines, "Defeating Nondeterminism in LLM
    Inference" (2025)."""
    query, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(cu_seqlens_q + request)
    n = tl.load(cu_seqlens_q + request + 1) - start
    length = tl.load(seqused_k + request)
    if query >= n:
        return
    token = (start + query).to(tl.int64)
    dim = tl.arange(0, DIM)
    best = tl.full([1], float("-inf"), tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    sums = tl.full([DIM], 0.0, tl.float32)
    for split in range(0, (length - n + query) // SPLIT_SIZE + 1):
        part = (split * n_tokens + token) * tl.num_programs(1) + head
        new_best = tl.load(stats_in + part * 2)
        higher = tl.maximum(best, new_best)
        shrink, new_shrink = tl.exp2(best - higher), tl.exp2(new_best - higher)
        new_sums = tl.load(sums_in + part * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0)
        sums = sums * shrink + new_sums * new_shrink
        total = total * shrink + tl.load(stats_in + part * 2 + 1) * new_shrink
        best = higher
    result = (sums / total).to(out.dtype.element_ty)
    tl.store(out + token * out_row + head * out_head + dim, result, mask=dim < HEAD_DIM)


@triton.jit
def _write(
    keys,
    values,
    slot_mapping,
    k,
    v,
    key_block,  # from here on: strides
    key_slot,
    key_head,
    value_block,
    value_slot,
    value_head,
    k_row,
    k_head,
    v_row,
    v_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """One program: all heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    element = tl.arange(0, ELEMENTS)
    head, dim = element // HEAD_DIM, element % HEAD_DIM
    real = element < KV_HEADS * HEAD_DIM
    new_k = tl.load(k + token * k_row + head * k_head + dim, mask=real)
    tl.store(keys + block * key_block + offset * key_slot + head * key_head + dim, new_k, mask=real)
    new_v = tl.load(v + token * v_row + head * v_head + dim, mask=real)
    tl.store(values + block * value_block + offset * value_slot + head * value_head + dim, new_v, mask=real)


def check_arena(keys: torch.Tensor, values: torch.Tensor):
    """Raises ValueError unless these, one layer of an arena, are as the kernels read them. It is asked once, when a
    backend is made; what a step brings with it is only compared with the arena."""
    if keys.ndim != 4 or keys.shape != values.shape:
        raise ValueError(
            f"keys have shape {list(keys.shape)} and values {list(values.shape)}, but both must be "
            "[blocks, block_size, kv_heads, head_dim]: pass one layer of the arena"
        )
    _, block_size, _, head_dim = keys.shape
    if block_size < 1 or block_size & (block_size - 1):
        raise ValueError(
            f"block_size is {block_size}, but the kernel needs a power of two: build the arena with 16, say"
        )
    if not 16 <= head_dim <= 256:
        raise ValueError(
            f"head_dim is {head_dim}, but the kernel takes 16 to 256: use the torch attention for this model"
        )
    if keys.dtype not in DTYPES:
        raise ValueError(
            f"keys are {keys.dtype}, but the kernel takes bfloat16, float16 and float32: cast the arena to one of them"
        )
    if not keys.is_cuda and isinstance(_attend, triton.runtime.JITFunction):
        raise ValueError(
            f"keys are on {keys.device}, but a Triton kernel runs on CUDA: move the arena there, or set "
            "TRITON_INTERPRET=1 before the import to try the kernel out without a GPU"
        )
    kinds = [(arena.dtype, arena.device, arena.stride(-1)) for arena in (keys, values)]
    if kinds[0] != kinds[1] or keys.stride(-1) != 1:
        raise ValueError(
            f"keys are {kinds[0]} and values {kinds[1]} (dtype, device, stride in head_dim), but both must be of one "
            "kind, with stride 1: the kernel reads neighbours"
        )


def _check_like(arena: torch.Tensor, **rows: torch.Tensor):
    """In every layer of every step, so a sentence is only built where it is raised."""
    for name, x in rows.items():
        if x.dtype != arena.dtype or x.device != arena.device or x.shape[2:] != arena.shape[3:] or x.stride(-1) != 1:
            raise ValueError(
                f"{name} is {x.dtype} {list(x.shape)} on {x.device} with strides {x.stride()}, but the arena is "
                f"{arena.dtype} {list(arena.shape)} on {arena.device}: {name} must be [rows, heads, "
                f"{arena.shape[3]}] of its dtype, contiguous in head_dim"
            )
