"""The invariant operators of float32 on a CPU: the plain engine's compiled loops, of which only products need care."""

from tinyengine.invariant.operators import InvariantOperators
from tinyengine.operators import PackedForOneThread


class CompiledOperators(InvariantOperators):
    """products: the compiled operators. Their loops take one row after the other and never see how many there are."""

    def rms_norm(self, x, weight, eps):
        return self.products.rms_norm(x, weight, eps)

    def swiglu(self, gate_up):
        return self.products.swiglu(gate_up)

    def heads(self, qkv, counts, norms, rope):
        return self.products.heads(qkv, counts, norms, rope)


class OneProduct(CompiledOperators):
    """Where the product is ours as well, it needs no care: it sums up each row in one order, whatever the others are.
    Another one would do it in another, so many rows are not left to oneDNN."""

    def __init__(self, products: PackedForOneThread):
        super().__init__(products=products)

    def linear(self, x, weight):
        return self.products.by_one_thread(x, weight)

    def packed(self, weight):
        return self.products.packed(weight)

    def is_best_for(self, rows):
        return True
