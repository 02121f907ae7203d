"""Stage 6, batch invariance: what a request computes has the same bits in any batch.

The promise is prefix purity: within one envelope (weights, dtype, device model, library versions, thread count), the
K/V entries and the logits at position p are, bit for bit, a function of tokens[0..p] alone. Another GPU model, tensor
parallelism or another version of a library is another envelope, and may have other bits. `tinyengine verify` shows it.
"""

import torch

from tinyengine.attention import Attend, KVCache
from tinyengine.batch import Batch
from tinyengine.invariant.attention import InvariantAttention
from tinyengine.invariant.envelope import tested_operators


class Invariant(InvariantAttention):
    """The sixth stage's attention, with operators that were tested on this machine when the engine was made."""

    operators = staticmethod(tested_operators)

    def __init__(self, cache: KVCache):
        super().__init__(cache)
        self.num_threads = torch.get_num_threads()

    def __call__(self, batch: Batch) -> Attend:
        if torch.get_num_threads() != self.num_threads:
            raise RuntimeError(
                f"torch has {torch.get_num_threads()} threads, but this engine was made with {self.num_threads}, and "
                "its bits depend on that: set the thread count back, or make a new engine"
            )
        return super().__call__(batch)
