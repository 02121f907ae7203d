"""The course in one table: each stage differs from the one before it in one cell, and paging in three, because blocks
on demand need an admission rule of their own."""

from tinyengine.attention import Padded, PagedAttention, PerRequest
from tinyengine.invariant import Invariant
from tinyengine.memory import Blocks, Slots
from tinyengine.scheduler import Chunked, Orca, Paged, Static

STAGES = {
    # stage      scheduler  memory   attention
    "static":    (Static,   Slots,   Padded),          # a rectangle until the longest request ends
    "orca":      (Orca,     Slots,   Padded),          # the scheduler changes: join and leave at any iteration
    "selective": (Orca,     Slots,   PerRequest),      # attention changes: padding falls to 0
    "paged":     (Paged,    Blocks,  PagedAttention),  # K/V in blocks, on demand
    "chunked":   (Chunked,  Blocks,  PagedAttention),  # a token budget: no decode waits for a prompt
    "invariant": (Chunked,  Blocks,  Invariant),       # fixed tiles and splits: the same bits in any batch
}  # fmt: skip
