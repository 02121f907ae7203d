"""The course in two tables: what a stage is made of, and what an option adds to it."""

from tinyengine.ablation import Ablated
from tinyengine.attention import Padded, PagedAttention, PerRequest
from tinyengine.budget import Adaptive
from tinyengine.invariant import Invariant
from tinyengine.memory import Blocks, Slots
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.priority import Prioritised
from tinyengine.scheduler import Chunked, Orca, Paged, Scheduler, Static
from tinyengine.speculate import Speculative

# Each stage differs from the one before it in one cell, and paging in three, because blocks on demand need an admission
# rule of their own.
STAGES = {
    # stage      scheduler  memory   attention
    "static":    (Static,   Slots,   Padded),          # a rectangle until the longest request ends
    "orca":      (Orca,     Slots,   Padded),          # the scheduler changes: join and leave at any iteration
    "selective": (Orca,     Slots,   PerRequest),      # attention changes: padding falls to 0
    "paged":     (Paged,    Blocks,  PagedAttention),  # K/V in blocks, on demand
    "chunked":   (Chunked,  Blocks,  PagedAttention),  # a token budget: no decode waits for a prompt
    "invariant": (Chunked,  Blocks,  Invariant),       # fixed tiles and splits: the same bits in any batch
}  # fmt: skip

# Which stages take an option of Engine, and which class, from a file of its own, it puts before the stage's scheduler;
# where several do, in this order. CachedBlocks takes the place of Blocks.
EXTRAS = {
    "num_speculative_tokens": (("paged", "chunked", "invariant"), Speculative),
    "policy":                 (("chunked", "invariant"), Prioritised),
    "budget":                 (("chunked", "invariant"), Adaptive),
    "chunking":               (("chunked", "invariant"), Ablated),
    "mixing":                 (("chunked", "invariant"), Ablated),
    "admit_first_chunk":      (("chunked", "invariant"), Ablated),
    "enable_prefix_caching":  (("paged", "chunked", "invariant"), CachedBlocks),
}  # fmt: skip


def build(stage: str, options: dict, *, num_slots: int, block_size: int = 16, **sizes: int) -> Scheduler:
    """A stage's scheduler around its memory, with what the options add. sizes: max_num_seqs, max_num_batched_tokens.

    Raises ValueError for an option that the stage does not take.
    """
    check_options(stage, options)
    scheduler, memory, _ = STAGES[stage]
    added = list(dict.fromkeys(kind for name, (_, kind) in EXTRAS.items() if name in options))
    if CachedBlocks in added:
        added.remove(CachedBlocks)
        memory = CachedBlocks
    if not issubclass(scheduler, Chunked):
        sizes.pop("max_num_batched_tokens", None)
    if added:
        name = "".join(kind.__name__ for kind in (*added, scheduler))
        scheduler = type(name, (*added, scheduler), {})
    theirs = {name: value for name, value in options.items() if name != "enable_prefix_caching"}
    return scheduler(memory.for_arena(num_slots, block_size), **sizes, **theirs)


def check_options(stage: str, options, further: tuple[str, ...] = ()):
    """Raises ValueError for an option that is neither one of the stage's nor one of the `further` ones."""
    known = [*(name for name, (stages, _) in EXTRAS.items() if stage in stages), *further]
    if unknown := [name for name in options if name not in known]:
        theirs = ", ".join(sorted(known)) or "none"
        raise ValueError(f"{unknown[0]} is no option of stage {stage!r}, whose options are: {theirs}")
