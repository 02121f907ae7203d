"""The row-wise arithmetic of the model, by torch: an argument of the model, since the last stage brings its own."""

import torch
import torch.nn.functional as F

Rope = tuple[torch.Tensor, torch.Tensor]  # cos and sin of each row's position, [R, 1, head_dim]: alike for every head


class Operators:
    """Every row is computed by itself. But its last bits may depend on how many rows there are, since torch chooses its
    kernels by that; the last stage has operators where they do not."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [R, in], weight [out, in] -> [R, out]"""
        return F.linear(x, weight)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[R, 2 * intermediate], the gates first -> silu(gate) * up [R, intermediate]. Source: arXiv 2002.05202."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., size], weight [size] -> x / sqrt(mean(x^2) + eps) * weight [..., size]. Source: arXiv 1910.07467."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def split_normalise_rotate(
        self, qkv: torch.Tensor, heads: list[int], norms: tuple[torch.nn.Module, torch.nn.Module], rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """qkv [R, heads + 2 * kv_heads, head_dim] -> q [R, heads, head_dim], k and v [R, kv_heads, head_dim]; every
        head of q and k has its RMSNorm (`norms`, one for q and one for k), and then its position."""
        q, k, v = qkv.split(heads, dim=1)
        q, k = (rotate(self.rms_norm(x, norm.weight, norm.eps), rope) for x, norm in zip((q, k), norms))
        return q, k, v


def rotate(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotary position embedding (RoFormer, arXiv 2104.09864), x [R, heads, head_dim]; pair i is (i, i + head_dim / 2),
    as Llama and Qwen store their weights."""
    cos, sin = rope
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


TORCH = Operators()


def by_torch(model: torch.nn.Module) -> Operators:
    """The operators of every stage but the last one, which tests its own on the model."""
    return TORCH
