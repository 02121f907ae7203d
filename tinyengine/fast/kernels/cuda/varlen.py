"""Paged attention through torch's own FlashAttention, `torch.nn.attention.varlen`, of torch >= 2.12 on CUDA.

Another backend, and a second opinion for the tests of `paged`.
"""

import inspect

import torch

BLOCK_MULTIPLE = 256  # FlashAttention-2 reads pages of whole 256-key tiles
WANTED = {"seqused_k", "block_table", "num_splits", "enable_gqa"}  # what torch 2.12 added


def why_not(arena: torch.Tensor) -> str | None:
    """What keeps this backend from serving an arena [..., block_size, kv_heads, head_dim] here, as a sentence; None
    where nothing does."""
    if reason := _why_not_here():
        return reason
    block_size, _, head_dim = arena.shape[-3:]
    if arena.dtype not in (torch.float16, torch.bfloat16):
        return f"the model is in {arena.dtype}, and varlen_attn takes float16 and bfloat16: use 'triton'"
    if block_size % BLOCK_MULTIPLE:
        return (
            f"block_size is {block_size}, and FlashAttention reads blocks of a multiple of {BLOCK_MULTIPLE}: build the "
            f"engine with block_size={BLOCK_MULTIPLE}, or use 'triton'"
        )
    if head_dim > 256 or head_dim % 8:
        return f"head_dim is {head_dim}, and FlashAttention takes multiples of 8 up to 256: use 'triton'"
    return None


def _why_not_here() -> str | None:
    try:
        from torch.nn.attention.varlen import varlen_attn

        known = set(inspect.signature(varlen_attn).parameters)
    except ImportError:
        known = set()
    if not known >= WANTED:
        return f"torch is {torch.__version__}, and paged varlen_attn came with 2.12: update torch, or use 'triton'"
    if not torch.cuda.is_available():
        return "there is no CUDA GPU, and varlen_attn runs on nothing else: use attention_backend='torch'"
    if torch.cuda.get_device_capability() < (8, 0):
        name = torch.cuda.get_device_name()
        return f"the GPU is a {name}, and FlashAttention-2 needs compute capability 8.0: use attention_backend='torch'"
    return None


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    *,
    max_seqlen_q: int | None = None,
) -> torch.Tensor:
    """Causal attention as `attention.paged_attention` defines it, over an arena of which `why_not` says nothing.

    cu_seqlens_q, seqused_k, block_table: int32. max_seqlen_q: the most queries of any request; None looks for it,
    which stops the GPU.
    """
    from torch.nn.attention.varlen import varlen_attn  # not every torch has what it needs

    max_seqlen_q = int(cu_seqlens_q.diff().max()) if max_seqlen_q is None else max_seqlen_q
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
