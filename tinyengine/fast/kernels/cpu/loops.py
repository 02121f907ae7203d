"""float32 on a CPU: the plain loops, compiled by numba where torch needs several calls or a copy.

Attention is the one to read: it finds each key through the block table and reads it where it lies, which torch's own
attention cannot. Every row is computed by itself, key after key in order of position, so what comes out does not depend
on its neighbours, nor on where its blocks are or how large.

The functions take torch tensors, and the arena as numpy's arrays; those with a leading underscore are what numba
compiles, and keeps in `__pycache__`. numba itself checks no index: where a slot or a block comes from outside, the
loop does.
"""

from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tinyengine.batch import Batch

# numba looks for changes in a function's own file alone, and keeps what it calls in others: so all are in its name.
_sources = sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:8]


def compiled(function):
    """May add up in any order (in vectors), and multiply and add in one go; must not take NaN and infinity for
    impossible."""
    function.__qualname__ += f"_{_sources}"
    options = dict(fastmath={"reassoc", "contract", "nsz"}, error_model="numpy", nogil=True)
    try:
        return njit(**options, cache=True)(function)
    except RuntimeError:  # no folder to keep it in, neither this one nor the user's: every process compiles anew
        return njit(**options)(function)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., size], weight [size] -> as x"""
    if x.ndim != 2:
        return rms_norm(x.reshape(-1, x.shape[-1]), weight, eps).view(x.shape)
    out = x.new_empty(x.shape)
    _rms_norm(x.numpy(), weight.detach().numpy(), eps, out.numpy())
    return out


@compiled
def _rms_norm(x, weight, eps, out):
    rows, size = x.shape
    for row in range(rows):
        squares = np.float32(0)
        for i in range(size):
            squares += x[row, i] * x[row, i]
        scale = np.float32(1) / np.sqrt(squares / np.float32(size) + np.float32(eps))
        for i in range(size):
            out[row, i] = x[row, i] * scale * weight[i]


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[R, 2 * intermediate] -> [R, intermediate]"""
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    _swiglu(gate_up.numpy(), out.numpy())
    return out


@compiled
def _swiglu(gate_up, out):
    rows, size = out.shape
    for row in range(rows):
        for i in range(size):
            gate = gate_up[row, i]
            out[row, i] = gate / (np.float32(1) + _exp(-gate)) * gate_up[row, size + i]


def heads(qkv: torch.Tensor, counts: list[int], norms, rope) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalises and rotates queries and keys, and takes the three apart: see `operators.Operators.heads`."""
    rows, _, head_dim = qkv.shape
    q, k, v = (qkv.new_empty(rows, count, head_dim) for count in counts)
    source, cos, sin = qkv.numpy(), rope[0].view(rows, head_dim).numpy(), rope[1].view(rows, head_dim).numpy()
    q_norm, k_norm = (norm.weight.detach().numpy() for norm in norms)
    _heads(source, q_norm, k_norm, norms[0].eps, cos, sin, q.numpy(), k.numpy(), v.numpy())
    return q, k, v


@compiled
def _heads(qkv, q_norm, k_norm, eps, cos, sin, q, k, v):
    n_heads, n_kv_heads, head_dim = q.shape[1], k.shape[1], q.shape[2]
    for row in range(len(qkv)):
        for head in range(n_heads):
            _normalise_and_rotate(qkv, row, head, q_norm, eps, cos, sin, q, head)
        for head in range(n_kv_heads):
            _normalise_and_rotate(qkv, row, n_heads + head, k_norm, eps, cos, sin, k, head)
            for i in range(head_dim):
                v[row, head, i] = qkv[row, n_heads + n_kv_heads + head, i]


@compiled
def _normalise_and_rotate(x, row, head, weight, eps, cos, sin, out, out_head):
    size, half = x.shape[2], x.shape[2] // 2
    squares = np.float32(0)
    for i in range(size):
        squares += x[row, head, i] * x[row, head, i]
    scale = np.float32(1) / np.sqrt(squares / np.float32(size) + np.float32(eps))
    for i in range(half):
        left, right = x[row, head, i] * scale * weight[i], x[row, head, half + i] * scale * weight[half + i]
        out[row, out_head, i] = left * cos[row, i] - right * sin[row, i]
        out[row, out_head, half + i] = right * cos[row, half + i] + left * sin[row, half + i]


def write_kv(keys: np.ndarray, values: np.ndarray, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
    """k and v [N, kv_heads, head_dim] go to slots slot_mapping [N] of keys and values [slots, kv_heads, head_dim], one
    layer of the arena.

    Raises IndexError for a slot that the arena does not have, and for more or fewer slots than new tokens.
    """
    if len(slot_mapping) != len(k):
        raise IndexError(
            f"slot_mapping has {len(slot_mapping)} slots for {len(k)} new tokens: look at `slots` of the scheduler's "
            "memory"
        )
    try:
        _write_kv(keys, values, slot_mapping.numpy(), k.numpy(), v.numpy())
    except IndexError:
        raise IndexError(
            f"slot_mapping goes from slot {slot_mapping.min()} to {slot_mapping.max()}, but the arena has slots 0 to "
            f"{len(keys) - 1}: look at `slots` of the scheduler's memory"
        ) from None


@compiled
def _write_kv(keys, values, slot_mapping, k, v):
    if len(slot_mapping) != len(k):
        raise IndexError
    for row, slot in enumerate(slot_mapping):
        if not 0 <= slot < len(keys):
            raise IndexError
        for head in range(k.shape[1]):
            for i in range(k.shape[2]):
                keys[slot, head, i] = k[row, head, i]
                values[slot, head, i] = v[row, head, i]


class Queries:
    """The rows of a batch whose requests have at most `few` new tokens, one by one. rows [n]: where they stand in the
    batch. requests [n]: whose they are. seen [n]: how many keys each sees, those up to its own position.

    table [B, most blocks]: the slot at which each block of a request begins. Where all requests' slots are contiguous
    they are read in blocks of CONTIGUOUS_BLOCK: slot by slot, the table would have an entry for every key.
    """

    CONTIGUOUS_BLOCK = 16

    def __init__(self, batch: Batch, few: float):
        if batch.block_size == 1 and all(isinstance(table, range) for table in batch.tables):
            self.block_size = self.CONTIGUOUS_BLOCK
            starts = np.array([table.start for table in batch.tables])
            self.table = starts[:, None] + np.arange(0, max(batch.lengths), self.CONTIGUOUS_BLOCK)
        else:
            self.block_size = batch.block_size
            self.table = batch.block_table.numpy().astype(np.int64) * self.block_size
        requests, rows, seen = [], [], []
        start = 0
        for request, (count, length) in enumerate(zip(batch.counts, batch.lengths)):
            if count <= few:
                requests += [request] * count
                rows += range(start, start + count)
                seen += range(length - count + 1, length + 1)
            start += count
        self.requests, self.rows, self.seen = np.array([requests, rows, seen])

    @property
    def places(self) -> tuple:
        """What the loop takes of them."""
        return self.block_size, self.table, self.requests, self.rows, self.seen


def paged_attention(q: torch.Tensor, keys: np.ndarray, values: np.ndarray, queries: Queries, out: torch.Tensor):
    """Writes the attention of `queries` to their rows of out. q and out [R, heads, head_dim]; keys and values [slots,
    kv_heads, head_dim], one layer of the arena. Raises IndexError for a block that the arena does not have."""
    if not len(queries.rows):
        return
    try:
        _paged_attention(q.numpy(), keys, values, *queries.places, out.numpy())
    except IndexError:
        table, size = queries.table, queries.block_size
        raise IndexError(
            f"contexts of up to {queries.seen.max()} keys are looked for in {table.shape[1]} blocks of {size} slots "
            f"that begin at slot {table.min()} to {table.max()}, but the arena has slots 0 to {len(keys) - 1}: look at "
            "the `table` of each request"
        ) from None


@compiled
def _paged_attention(q, keys, values, block_size, tables, requests, rows, seen, out):
    (heads, head_dim), kv_heads = q.shape[1:], keys.shape[1]
    group = heads // kv_heads  # query heads that share a key head
    scale = np.float32(1 / np.sqrt(head_dim))
    scores = np.empty((heads, seen.max()), dtype=np.float32)
    slot_bytes = kv_heads * head_dim * 4
    for request, row, length in zip(requests, rows, seen):
        table = tables[request]
        _check_blocks(table, block_size, length, len(keys))
        for start in range(0, length, block_size):
            slot = table[start // block_size]
            ahead = table[min(start + block_size, length - 1) // block_size]
            for position in range(start, min(start + block_size, length)):
                _prefetch(keys.ctypes.data, (ahead + position - start) * slot_bytes, slot_bytes)
                for kv_head in range(kv_heads):  # inside of positions: memory is read in the order in which it lies
                    for head in range(kv_head * group, (kv_head + 1) * group):
                        score = np.float32(0)
                        for i in range(head_dim):
                            score += q[row, head, i] * keys[slot + position - start, kv_head, i]
                        scores[head, position] = score * scale

        for head in range(heads):
            _softmax(scores[head, :length])
            for i in range(head_dim):
                out[row, head, i] = 0

        for start in range(0, length, block_size):
            slot = table[start // block_size]
            ahead = table[min(start + block_size, length - 1) // block_size]
            for position in range(start, min(start + block_size, length)):
                _prefetch(values.ctypes.data, (ahead + position - start) * slot_bytes, slot_bytes)
                for kv_head in range(kv_heads):
                    for head in range(kv_head * group, (kv_head + 1) * group):
                        weight = scores[head, position]
                        for i in range(head_dim):
                            out[row, head, i] += weight * values[slot + position - start, kv_head, i]


@compiled
def _check_blocks(table, block_size, length, n_slots):
    if length > len(table) * block_size:
        raise IndexError
    for start in range(0, length, block_size):
        slot = table[start // block_size]
        if not 0 <= slot <= n_slots - min(block_size, length - start):
            raise IndexError


@compiled
def _softmax(scores):
    best, total = np.float32(-np.inf), np.float32(0)
    for score in scores:
        best = max(best, score)
    for i in range(len(scores)):
        scores[i] = _exp(scores[i] - best)
        total += scores[i]
    for i in range(len(scores)):
        scores[i] /= total


@compiled
def _exp(x):
    """e^x to the last bit or two, x cut to what float32 holds: 2^n * e^f, n whole and f within half of ln 2, as in
    Cephes' expf. The C library's would be called for one number at a time; this compiles to vectors."""
    if x < np.float32(-87):
        x = np.float32(-87)
    if x > np.float32(88):
        x = np.float32(88)
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    f = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)  # ln 2 in two parts, so that no bit is lost
    p = np.float32(1.9875691500e-4)
    p = p * f + np.float32(1.3981999507e-3)
    p = p * f + np.float32(8.3334519073e-3)
    p = p * f + np.float32(4.1665795894e-2)
    p = p * f + np.float32(1.6666665459e-1)
    p = p * f + np.float32(5.0000001201e-1)
    return (p * f * f + f + np.float32(1)) * _as_float((np.int32(n) + np.int32(127)) << np.int32(23))


@intrinsic
def _as_float(typing, bits):
    """The float32 whose bits these are (an exponent, here)."""

    def bitcast(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), bitcast


@compiled
def _prefetch(address, offset, size):
    for i in range(0, size, 64):
        prefetch_line(address + offset + i)


@intrinsic
def prefetch_line(typing, address):
    """Asks for the cache line at an address, and does not wait for it."""

    def prefetch(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(8)))
        number = ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], signature)
        builder.call(function, [pointer, number(0), number(3), number(1)])  # to read, keep in all caches, data
        return context.get_dummy_value()

    return types.void(types.intp), prefetch
