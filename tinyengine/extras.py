"""Which option of an engine adds which class, from a file of its own, to a scheduler or its memory. No torch: the
simulator and a learner put schedulers together in the same way."""

from collections.abc import Mapping
from functools import cache

from tinyengine.ablation import Ablated
from tinyengine.budget import Adaptive
from tinyengine.memory import Blocks, Slots
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.priority import Prioritised
from tinyengine.scheduler import Chunked, Scheduler
from tinyengine.speculate import Speculative

# Which stages take an option, and the class that it puts before the stage's scheduler; where several options do, in
# this order. CachedBlocks takes the place of Blocks.
EXTRAS = {
    "num_speculative_tokens": (("paged", "chunked", "invariant"), Speculative),
    "policy":                 (("chunked", "invariant"), Prioritised),
    "budget":                 (("chunked", "invariant"), Adaptive),
    "chunking":               (("chunked", "invariant"), Ablated),
    "mixing":                 (("chunked", "invariant"), Ablated),
    "admit_first_chunk":      (("chunked", "invariant"), Ablated),
    "enable_prefix_caching":  (("paged", "chunked", "invariant"), CachedBlocks),
}  # fmt: skip


def assemble(
    scheduler: type[Scheduler],
    memory: type[Slots] | type[Blocks],
    options: Mapping,
    *,
    num_slots: int,
    block_size: int = 16,
    **sizes: int,
) -> Scheduler:
    """A scheduler around its memory, with what the options add. sizes: max_num_seqs, max_num_batched_tokens."""
    added = list(dict.fromkeys(kind for name, (_, kind) in EXTRAS.items() if name in options))
    if CachedBlocks in added:
        added.remove(CachedBlocks)
        memory = CachedBlocks
    if not issubclass(scheduler, Chunked):
        sizes.pop("max_num_batched_tokens", None)
    theirs = {name: value for name, value in options.items() if name != "enable_prefix_caching"}
    return compose(*added, scheduler)(memory.for_arena(num_slots, block_size), **sizes, **theirs)


@cache
def compose(*classes: type) -> type:
    """One class that is all of these, what stands first before what stands behind it. The same one each time."""
    return classes[0] if len(classes) == 1 else type("".join(kind.__name__ for kind in classes), classes, {})
