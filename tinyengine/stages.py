"""The course in a table: what each stage is made of. What an option adds to a stage: see extras.EXTRAS."""

from tinyengine.attention import Padded, PagedAttention, PerRequest
from tinyengine.extras import EXTRAS, assemble
from tinyengine.invariant import Invariant
from tinyengine.memory import Blocks, Slots
from tinyengine.scheduler import Chunked, Orca, Paged, Scheduler, Static

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


def build(stage: str, options: dict, **sizes: int) -> Scheduler:
    """A stage's scheduler around its memory, with what the options add. sizes: those of `assemble`.

    Raises ValueError for an option that the stage does not take.
    """
    check_options(stage, options)
    scheduler, memory, _ = STAGES[stage]
    return assemble(scheduler, memory, options, **sizes)


def check_options(stage: str, options, further: tuple[str, ...] = ()):
    """Raises ValueError for an option that is neither one of the stage's nor one of the `further` ones."""
    known = [*(name for name, (stages, _) in EXTRAS.items() if stage in stages), *further]
    if unknown := [name for name in options if name not in known]:
        theirs = ", ".join(sorted(known)) or "none"
        raise ValueError(f"{unknown[0]} is no option of stage {stage!r}, whose options are: {theirs}")
