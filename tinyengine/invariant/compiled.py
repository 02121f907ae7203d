"""The invariant operators of float32 on a CPU: the plain engine's compiled loops, of which only products need care."""

from tinyengine.invariant.operators import InvariantOperators


class CompiledOperators(InvariantOperators):
    """products: the compiled operators. Their loops take one row after the other and never see how many there are."""

    def rms_norm(self, x, weight, eps):
        return self.products.rms_norm(x, weight, eps)

    def swiglu(self, gate_up):
        return self.products.swiglu(gate_up)

    def heads(self, qkv, counts, norms, rope):
        return self.products.heads(qkv, counts, norms, rope)
