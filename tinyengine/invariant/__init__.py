"""Stage 6, batch invariance: what a request computes has the same bits in any batch.

The promise is prefix purity: within one envelope (weights, dtype, device model, library versions, thread count), the
K/V entries and the logits at position p are, bit for bit, a function of tokens[0..p] alone. Another GPU model, tensor
parallelism or another version of a library is another envelope, and may have other bits. `tinyengine verify` shows it.
"""

from tinyengine.invariant.attention import InvariantAttention
from tinyengine.invariant.envelope import SameThreads, tested_operators


class Invariant(SameThreads, InvariantAttention):
    """The sixth stage's attention, with operators that were tested on this machine when the engine was made."""

    operators = staticmethod(tested_operators)
