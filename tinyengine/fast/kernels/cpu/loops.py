"""float32 on a CPU: the plain loops, compiled by numba where torch needs several calls or a copy.

Attention is the one to read: it finds each key through the block table and reads it where it lies, which torch's own
attention cannot. Every row is computed by itself, key after key in order of position, so what comes out does not depend
on its neighbours, nor on where its blocks are or how large.

The functions take torch tensors; those with a leading underscore are what numba compiles, and keeps in `__pycache__`.
numba itself checks no index: where a slot or a block comes from outside, the loop does.
"""

import signal
import threading
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

ALL = 2**31 - 1  # more new tokens than any request has
PIECE = 16  # keys between what is read and what is asked for, where blocks are smaller and lie in a row

# numba's cache ignores callees in other files; a hash of all sources in a function's name makes it miss.
_sources = sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:8]


def jit(function):
    """Compiles a loop. It may add up in any order (in vectors), and multiply and add in one go; without `nnan` and
    `ninf`, NaN and infinity keep their meaning."""
    function.__qualname__ += f"_{_sources}"
    options = dict(fastmath={"reassoc", "contract", "nsz"}, error_model="numpy", nogil=True)
    try:
        loop = njit(**options, cache=True)(function)
    except RuntimeError:  # neither this folder nor the user's can be written: every process compiles anew
        loop = njit(**options)(function)
    loop.compile = uninterrupted(loop.compile)  # called once for each kind of arguments
    return loop


def uninterrupted(function):
    """An interrupt waits for its end: numba, and LLVM all the more, do not survive a KeyboardInterrupt."""

    def call(*args):
        if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
            return function(*args)  # no interrupt comes here, or by a handler that Python could not put back
        waiting = []
        usual = signal.signal(signal.SIGINT, lambda *interrupt: waiting.append(interrupt))
        try:
            return function(*args)
        finally:
            signal.signal(signal.SIGINT, usual)
            if waiting:
                signal.raise_signal(signal.SIGINT)

    return call


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., size], weight [size] -> as x"""
    if x.ndim != 2:
        return rms_norm(x.reshape(-1, x.shape[-1]), weight, eps).view(x.shape)
    out = x.new_empty(x.shape)
    _rms_norm(x.numpy(), weight.detach().numpy(), eps, out.numpy())
    return out


@jit
def _rms_norm(x, weight, eps, out):
    rows, size = x.shape
    one_head = x.reshape(rows, 1, size)
    for row in range(rows):
        scale = _one_over_rms(one_head, row, 0, eps)
        for i in range(size):
            out[row, i] = x[row, i] * scale * weight[i]


@jit
def _one_over_rms(x, row, head, eps):
    squares, size = np.float32(0), x.shape[2]
    for i in range(size):
        squares += x[row, head, i] * x[row, head, i]
    return np.float32(1) / np.sqrt(squares / np.float32(size) + np.float32(eps))


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[R, 2 * intermediate] -> [R, intermediate]"""
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    _swiglu(gate_up.numpy(), out.numpy())
    return out


@jit
def _swiglu(gate_up, out):
    rows, size = out.shape
    for row in range(rows):
        for i in range(size):
            gate = gate_up[row, i]
            out[row, i] = gate / (np.float32(1) + _exp(-gate)) * gate_up[row, size + i]


def split_normalise_rotate(qkv: torch.Tensor, heads: list[int], norms, rope) -> tuple[torch.Tensor, ...]:
    """See `operators.Operators.split_normalise_rotate`."""
    rows, _, head_dim = qkv.shape
    q, k, v = (qkv.new_empty(rows, n, head_dim) for n in heads)
    source, cos, sin = qkv.numpy(), rope[0].view(rows, head_dim).numpy(), rope[1].view(rows, head_dim).numpy()
    q_norm, k_norm = (norm.weight.detach().numpy() for norm in norms)
    _split_normalise_rotate(source, q_norm, k_norm, norms[0].eps, cos, sin, q.numpy(), k.numpy(), v.numpy())
    return q, k, v


@jit
def _split_normalise_rotate(qkv, q_norm, k_norm, eps, cos, sin, q, k, v):
    n_heads, n_kv_heads, head_dim = q.shape[1], k.shape[1], q.shape[2]
    for row in range(len(qkv)):
        for head in range(n_heads):
            _normalise_and_rotate(qkv, row, head, q_norm, eps, cos, sin, q, head)
        for head in range(n_kv_heads):
            _normalise_and_rotate(qkv, row, n_heads + head, k_norm, eps, cos, sin, k, head)
            for i in range(head_dim):
                v[row, head, i] = qkv[row, n_heads + n_kv_heads + head, i]


@jit
def _normalise_and_rotate(x, row, head, weight, eps, cos, sin, out, out_head):
    half, scale = x.shape[2] // 2, _one_over_rms(x, row, head, eps)
    for i in range(half):
        left, right = x[row, head, i] * scale * weight[i], x[row, head, half + i] * scale * weight[half + i]
        out[row, out_head, i] = left * cos[row, i] - right * sin[row, i]
        out[row, out_head, half + i] = right * cos[row, half + i] + left * sin[row, half + i]


def write_kv(keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
    """k and v [N, kv_heads, head_dim] go to slots slot_mapping [N] of keys and values [blocks, block_size, kv_heads,
    head_dim], one layer of the arena.

    Raises IndexError for a slot that the arena does not have, and for more or fewer slots than new tokens.
    """
    if len(slot_mapping) != len(k):
        raise IndexError(
            f"slot_mapping has {len(slot_mapping)} slots for {len(k)} new tokens: look at `slots` of the scheduler's "
            "memory"
        )
    try:
        _write_kv(keys.numpy(), values.numpy(), slot_mapping.numpy(), k.numpy(), v.numpy())
    except IndexError:
        raise IndexError(
            f"slot_mapping goes from slot {slot_mapping.min()} to {slot_mapping.max()}, but the arena has slots 0 to "
            f"{keys.shape[0] * keys.shape[1] - 1}: look at `slots` of the scheduler's memory"
        ) from None


@jit
def _write_kv(keys, values, slot_mapping, k, v):
    if len(slot_mapping) != len(k):
        raise IndexError
    keys, values = _as_slots(keys), _as_slots(values)
    for row, slot in enumerate(slot_mapping):
        if not 0 <= slot < len(keys):
            raise IndexError
        for head in range(k.shape[1]):
            for i in range(k.shape[2]):
                keys[slot, head, i] = k[row, head, i]
                values[slot, head, i] = v[row, head, i]


@jit
def _as_slots(arena):
    """[blocks, block_size, kv_heads, head_dim] -> [slots, kv_heads, head_dim]"""
    blocks, block_size, kv_heads, head_dim = arena.shape
    return arena.reshape(blocks * block_size, kv_heads, head_dim)


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    *,
    most_queries: int = ALL,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention as `attention.paged_attention` defines it.

    most_queries: requests with more new tokens are left out. out: where the others' rows are written.
    Raises IndexError for a block that the arena does not have.
    """
    out = torch.empty_like(q) if out is None else out
    where = cu_seqlens_q.numpy(), seqused_k.numpy(), block_table.numpy()
    try:
        _paged_attention(q.numpy(), keys.numpy(), values.numpy(), *where, most_queries, out.numpy())
    except IndexError:
        raise IndexError(
            f"contexts of up to {seqused_k.max()} keys are looked for in {block_table.shape[1]} blocks of "
            f"{keys.shape[1]} slots, of which a request's `table` names {block_table.min()} to {block_table.max()}, "
            f"but the arena has blocks 0 to {len(keys) - 1}: look at the `table` of each request"
        ) from None
    return out


@jit
def _paged_attention(q, keys, values, cu_seqlens_q, seqused_k, block_table, most_queries, out):
    if cu_seqlens_q[-1] > len(q) or len(cu_seqlens_q) != len(seqused_k) + 1 or len(block_table) != len(seqused_k):
        raise IndexError
    (heads, head_dim), (n_blocks, block_size, kv_heads) = q.shape[1:], keys.shape[:3]
    keys, values = _as_slots(keys), _as_slots(values)
    group = heads // kv_heads  # query heads that share a key head
    scale = np.float32(1 / np.sqrt(head_dim))
    slot_bytes = kv_heads * head_dim * 4
    scores = np.empty((heads, max(1, seqused_k.max())), dtype=np.float32)
    slots = np.empty(block_table.shape[1] + 1, dtype=np.int64)
    for request in range(len(seqused_k)):
        first, end = np.int64(cu_seqlens_q[request]), np.int64(cu_seqlens_q[request + 1])
        if end - first > most_queries:
            continue
        size = _pieces(block_table[request], block_size, np.int64(seqused_k[request]), n_blocks, slots)
        for row in range(first, end):
            length = np.int64(seqused_k[request]) - (end - 1 - row)  # the keys up to its own
            for piece in range(-(-length // size)):
                slot, ahead, start = slots[piece], slots[piece + 1], piece * size
                for position in range(start, min(start + size, length)):
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

            for piece in range(-(-length // size)):
                slot, ahead, start = slots[piece], slots[piece + 1], piece * size
                for position in range(start, min(start + size, length)):
                    _prefetch(values.ctypes.data, (ahead + position - start) * slot_bytes, slot_bytes)
                    for kv_head in range(kv_heads):
                        for head in range(kv_head * group, (kv_head + 1) * group):
                            weight = scores[head, position]
                            for i in range(head_dim):
                                out[row, head, i] += weight * values[slot + position - start, kv_head, i]


@jit
def _pieces(table, block_size, length, n_blocks, slots):
    """Writes down at which slot each piece of a request's keys begins, the last one twice, and returns how many keys a
    piece has: a block's, or PIECE and more where the blocks lie in a row. Raises IndexError for a block that the arena
    does not have."""
    blocks, in_a_row = -(-length // block_size), True
    if blocks > len(table):
        raise IndexError
    for place in range(blocks):
        if not 0 <= table[place] < n_blocks:
            raise IndexError
        in_a_row &= table[place] == table[0] + place
    step = -(-PIECE // block_size) if in_a_row else 1  # blocks of a piece
    pieces = -(-blocks // step)
    for piece in range(pieces):
        slots[piece] = np.int64(table[piece * step]) * block_size
    slots[pieces] = slots[max(0, pieces - 1)]
    return step * block_size


@jit
def _softmax(scores):
    best, total = np.float32(-np.inf), np.float32(0)
    for score in scores:
        best = max(best, score)
    for i in range(len(scores)):
        scores[i] = _exp(scores[i] - best)
        total += scores[i]
    for i in range(len(scores)):
        scores[i] /= total


@jit
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


@jit
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
