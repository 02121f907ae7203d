"""Attention as its formula, one score at a time."""

import torch


def naive(q, keys, values):
    """softmax(q k / sqrt(d)) v, query i of n at position length - n + i: one score at a time."""
    q, keys, values = q.double(), keys.double(), values.double()
    (n, heads, head_dim), (length, kv_heads, _) = q.shape, keys.shape
    out = torch.empty(n, heads, head_dim, dtype=torch.float64)
    for row in range(n):
        seen = length - n + row + 1
        for head in range(heads):
            of = head // (heads // kv_heads)
            weights = torch.softmax(keys[:seen, of] @ q[row, head] / head_dim**0.5, 0)
            out[row, head] = weights @ values[:seen, of]
    return out
