"""Eight ways to lose batch invariance, most of them good ideas for speed. Planted one by one, they show that the ledger
catches them, and in a lesson what each of them does. On the CPU."""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F

from tinyengine.attention import Attend, one_request
from tinyengine.batch import Batch
from tinyengine.invariant.attention import InvariantAttention
from tinyengine.invariant.envelope import tested_operators
from tinyengine.invariant.operators import InvariantOperators, pad_rows


class Gemv(InvariantOperators):
    def linear(self, x, weight):
        if len(x) != 1:
            return super().linear(x, weight)
        return torch.mv(weight.float(), x[0].float()).to(x.dtype)[None]  # float32 sums, in an order of their own


class SplitK(InvariantOperators):
    def linear(self, x, weight):
        n = len(x)
        if n > 16:
            return super().linear(x, weight)
        x, half = pad_rows(x, self.tile_rows), weight.shape[1] // 2
        parts = (F.linear(x[:, part], weight[:, part]).float() for part in (slice(half), slice(half, None)))
        return sum(parts).to(x.dtype)[:n]


class SplitNorm(InvariantOperators):
    def rms_norm(self, x, weight, eps):
        if len(x) > 4:
            return super().rms_norm(x, weight, eps)
        left, right = x.float().square().chunk(2, dim=-1)
        mean = (left.sum(-1, keepdim=True) + right.sum(-1, keepdim=True)) / x.shape[-1]
        return (x.float() * torch.rsqrt(mean + eps) * weight).to(x.dtype)


class OneByOne:
    """Around an engine's attention: a fault may put something else in place of what a request gets."""

    def __init__(self, right):
        self.right, self.cache, self.layout = right, right.cache, right.layout

    def __call__(self, batch: Batch) -> Attend:
        right = self.right(batch)
        slots = [batch.slots(index) for index in range(len(batch.plan))]

        def attend(layer, q, k, v):
            out = right(layer, q, k, v)
            for (start, end), its_slots in zip(pairwise(batch.starts), slots):
                other = self.other(q[start:end], *self.cache.read(layer, its_slots), its_slots)
                if other is not None:
                    out[start:end] = other
            return out

        return attend

    def other(self, q, keys, values, slots) -> torch.Tensor | None:
        """What the fault puts in place of a request's output: [n, heads, head_dim], or None."""


class DecodeKernel(OneByOne):
    def other(self, q, keys, values, slots):
        return one_request(q, keys, values) if len(q) == 1 else None


class FixedCount(OneByOne):
    def other(self, q, keys, values, slots):
        length = len(keys)
        return in_splits(q, keys, values, [length * part // 4 for part in (1, 2, 3)])


class PrefixApart(OneByOne):
    def other(self, q, keys, values, slots):
        cached = len(keys) - len(q)
        return in_splits(q, keys, values, [cached]) if cached and len(q) > 1 else None


class Consecutive(OneByOne):
    def other(self, q, keys, values, slots):
        return one_request(q, keys, values) if bool((slots.diff() == 1).all()) else None


class PerPage(OneByOne):
    def __call__(self, batch: Batch) -> Attend:
        has_splits = hasattr(self.right, "split")
        attention = self.right if has_splits else InvariantAttention(self.cache)
        attention.split = batch.block_size
        return attention(batch)


def in_splits(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, borders: list[int]) -> torch.Tensor:
    """Attention over keys that are cut at these borders: each part by itself, then put together."""
    (n, heads, head_dim), length = q.shape, len(keys)
    group = heads // keys.shape[1]
    keys, values = (x.float().repeat_interleave(group, dim=1).transpose(0, 1) for x in (keys, values))
    scores = (q.float() * head_dim**-0.5).transpose(0, 1) @ keys.transpose(1, 2)  # [heads, n, length]
    scores.masked_fill_(~scores.new_ones(n, length, dtype=torch.bool).tril(length - n), -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    ends = [0, *sorted(set(borders) - {0, length}), length]
    parts = [slice(*pair) for pair in pairwise(ends)]
    total = sum(weights[..., part].sum(-1, keepdim=True) for part in parts)
    return (sum(weights[..., part] @ values[:, part] for part in parts) / total).transpose(0, 1).to(q.dtype)


@dataclass(frozen=True)
class Fault:
    """operators, attention: what takes the place of the right ones, where it does."""

    title: str
    operators: type[InvariantOperators] | None = None
    attention: type[OneByOne] | None = None

    def plant(self, engine):
        """Puts the fault into an engine of the sixth stage."""
        if self.operators:
            engine.operators = self.operators(tested_operators(engine.model).tile_rows)
        if self.attention:
            engine.attention = self.attention(engine.attention)


FAULTS = {
    "gemv": Fault("a matrix-vector product for a single row", Gemv),
    "split_k": Fault("a matrix product that splits K where there are few rows", SplitK),
    "decode_kernel": Fault("another attention kernel for decode", attention=DecodeKernel),
    "fixed_count": Fault("a fixed number of K/V splits in place of a fixed size", attention=FixedCount),
    "prefix_apart": Fault("older context and new chunk reduced apart", attention=PrefixApart),
    "page_split": Fault("K/V splits as large as a block", attention=PerPage),
    "consecutive": Fault("a fast path for blocks that lie in a row", attention=Consecutive),
    "split_norm": Fault("RMSNorm split for few rows", SplitNorm),
}
