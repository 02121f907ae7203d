"""float32 on a CPU: the whole model on a few rows as one compiled call, with no Python between the loops.

The same loops in the same order as in `qwen3.Layer`, called by each other: what comes out is the same, to the bit.
"""

from collections import namedtuple

import numpy as np

from tinyengine.fast.kernels.cpu.linear import _linear
from tinyengine.fast.kernels.cpu.loops import (
    ALL,
    _paged_attention,
    _rms_norm,
    _split_normalise_rotate,
    _swiglu,
    _write_kv,
    jit,
)

# Norms are [layers, size]; a matrix is [layers], the addresses at which each layer's begins, as `linear.pack` has it.
LAYER = ("input_norm", "qkv_proj", "q_norm", "k_norm", "o_proj", "post_attention_norm", "gate_up_proj", "down_proj")
Weights = namedtuple("Weights", ["embedding", *LAYER, "norm", "eps", "cos", "sin", "heads", "intermediate"])


@jit
def hidden_states(weights, tokens, positions, slot_mapping, cu_seqlens_q, seqused_k, block_table, keys, values):
    """[R, hidden]. keys and values: the arena, [layers, blocks, block_size, kv_heads, head_dim]. Raises IndexError for
    a token, a position, a slot or a block that there is not."""
    rows, hidden, heads, intermediate = len(tokens), len(weights.norm), weights.heads, weights.intermediate
    n_layers, _, _, kv_heads, head_dim = keys.shape
    all_heads, width = heads + 2 * kv_heads, heads * head_dim
    x, normed, out = _empty(rows, hidden), _empty(rows, hidden), _empty(rows, hidden)
    qkv = _empty(rows, all_heads, head_dim)
    q, attended = _empty(rows, heads, head_dim), _empty(rows, heads, head_dim)
    k, v = _empty(rows, kv_heads, head_dim), _empty(rows, kv_heads, head_dim)
    gate_up, gated = _empty(rows, 2 * intermediate), _empty(rows, intermediate)
    cos, sin = _empty(rows, head_dim), _empty(rows, head_dim)
    _pick(weights.embedding, tokens, x)
    _pick(weights.cos, positions, cos)
    _pick(weights.sin, positions, sin)

    for layer in range(n_layers):
        _rms_norm(x, weights.input_norm[layer], weights.eps, normed)
        _linear(normed, weights.qkv_proj[layer], qkv.reshape(rows, all_heads * head_dim))
        norms = weights.q_norm[layer], weights.k_norm[layer]
        _split_normalise_rotate(qkv, *norms, weights.eps, cos, sin, q, k, v)
        _write_kv(keys[layer], values[layer], slot_mapping, k, v)
        _paged_attention(q, keys[layer], values[layer], cu_seqlens_q, seqused_k, block_table, ALL, attended)
        _linear(attended.reshape(rows, width), weights.o_proj[layer], out)
        _add(x, out)
        _rms_norm(x, weights.post_attention_norm[layer], weights.eps, normed)
        _linear(normed, weights.gate_up_proj[layer], gate_up)
        _swiglu(gate_up, gated)
        _linear(gated, weights.down_proj[layer], out)
        _add(x, out)
    _rms_norm(x, weights.norm, weights.eps, out)
    return out


@jit
def _pick(table, chosen, out):
    if len(chosen) != len(out):
        raise IndexError
    for row in range(len(chosen)):
        if not 0 <= chosen[row] < len(table):
            raise IndexError
        for i in range(table.shape[1]):
            out[row, i] = table[chosen[row], i]


@jit
def _add(x, other):
    for row in range(len(x)):
        for i in range(x.shape[1]):
            x[row, i] += other[row, i]


@jit
def _empty(*shape):
    return np.empty(shape, np.float32)
