"""Paged attention through torch's own FlashAttention, `torch.nn.attention.varlen`, of torch >= 2.12 on CUDA.

The same signature as `paged.paged_attention`: another backend, and a second opinion for its tests.
"""

import inspect

import torch

BLOCK_MULTIPLE = 256  # FlashAttention-2 reads pages of whole 256-key tiles
WANTED = {"seqused_k", "block_table", "num_splits", "enable_gqa"}  # what torch 2.12 added


def missing() -> str | None:
    """What keeps this backend from running here, as a sentence; None where nothing does."""
    try:
        from torch.nn.attention.varlen import varlen_attn

        known = set(inspect.signature(varlen_attn).parameters)
    except ImportError:
        known = set()
    if not known >= WANTED:
        return f"torch is {torch.__version__}, but paged varlen_attn came with 2.12: update torch, or use kernels.paged"
    if not torch.cuda.is_available():
        return "there is no CUDA GPU, but varlen_attn runs on nothing else: use the torch attention"
    if torch.cuda.get_device_capability() < (8, 0):
        name = torch.cuda.get_device_name()
        return f"the GPU is a {name}, but FlashAttention-2 needs compute capability 8.0: use the torch attention"
    return None


def is_available() -> bool:
    """Whether `paged_attention` can run here."""
    return missing() is None


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
) -> torch.Tensor:
    """Causal attention of all requests' new tokens over all their keys: see `paged.paged_attention` for the arguments.

    q [N, heads, head_dim], keys and values [n_blocks, block_size, kv_heads, head_dim], in float16 or bfloat16;
    block_size a multiple of 256, head_dim a multiple of 8 up to 256; cu_seqlens_q [B + 1], seqused_k [B] and
    block_table [B, max_blocks] int32 -> [N, heads, head_dim].
    Raises ValueError where torch or the GPU is not there, or will not take these inputs.
    """
    _check(q, keys)
    lacking = missing()
    if lacking:
        raise ValueError(lacking)
    from torch.nn.attention.varlen import varlen_attn

    # Of cu_seq_k only the presence counts beside seqused_k; the longest key length may be any upper bound, and this one
    # is known without waiting for the GPU.
    cu_seqlens_k = torch.nn.functional.pad(seqused_k.cumsum(0, dtype=torch.int32), (1, 0))
    return varlen_attn(
        q,
        keys,
        values,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        block_table.shape[1] * keys.shape[1],
        window_size=(-1, 0),  # causal, aligned to the bottom right
        enable_gqa=True,
        seqused_k=seqused_k,
        block_table=block_table,
        num_splits=1,  # any other number leaves rows unwritten (pytorch #194167), and 1 makes bits free of the batch
    )


def _check(q: torch.Tensor, keys: torch.Tensor):
    if q.dtype not in (torch.float16, torch.bfloat16) or keys.dtype != q.dtype:
        raise ValueError(
            f"q is {q.dtype} and the arena {keys.dtype}, but varlen_attn takes both in float16 or both in bfloat16: "
            "cast them, or use kernels.paged"
        )
    block_size, _, head_dim = keys.shape[1:]
    if block_size % BLOCK_MULTIPLE:
        raise ValueError(
            f"block_size is {block_size}, but FlashAttention reads blocks of a multiple of {BLOCK_MULTIPLE}: "
            f"build the engine with block_size={BLOCK_MULTIPLE}, or use kernels.paged"
        )
    if head_dim > 256 or head_dim % 8:
        raise ValueError(
            f"head_dim is {head_dim}, but FlashAttention takes multiples of 8 up to 256: use kernels.paged"
        )
