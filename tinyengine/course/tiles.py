"""A paged decode kernel that is short enough to read, and Triton's interpreter to run it on a CPU.

`tinyengine.fast` has the kernel that engines use; this one is held to the same definition by a test.
"""

import importlib.metadata
import warnings
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # an optional extra, and only for Linux
    triton, tl = None, SimpleNamespace(constexpr=int)

INSTALL = "pip install 'tinyengine[kernels]'"


def decode_kernel(
    out, q, keys, values, seqused_k, block_table, most_blocks,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One program: one head of one request's newest token, over all its keys."""
    request, head = tl.program_id(0), tl.program_id(1)
    dim, place = tl.arange(0, DIM), tl.arange(0, SIZE)
    row = (request * KV_HEADS * GROUP + head) * DIM + dim
    query = tl.load(q + row) / tl.sqrt(DIM + 0.0)  # [DIM]
    length = tl.load(seqused_k + request)
    best, total, sums = -float("inf"), 0.0, tl.zeros([DIM], tl.float32)
    for tile in range(0, tl.cdiv(length, SIZE)):
        block = tl.load(block_table + request * most_blocks + tile)
        real = tile * SIZE + place < length
        slot = block * SIZE + place
        at = (slot * KV_HEADS + head // GROUP)[:, None] * DIM + dim[None, :]  # [SIZE, DIM]
        k = tl.load(keys + at, mask=real[:, None], other=0.0)
        v = tl.load(values + at, mask=real[:, None], other=0.0)
        scores = tl.where(real, tl.sum(k * query[None, :], 1), -float("inf"))  # [SIZE]
        higher = tl.maximum(best, tl.max(scores, 0))
        shrink, weights = tl.exp(best - higher), tl.exp(scores - higher)
        total = total * shrink + tl.sum(weights, 0)
        sums = sums * shrink + tl.sum(weights[:, None] * v, 0)
        best = higher
    tl.store(out + row, sums / total)


def missing() -> str:
    """Why no kernel can run here, in a sentence; "" where it can."""
    if triton is None:
        return f"Triton is not installed here, so no kernel runs: {INSTALL} (Linux only)."
    old = [version("triton") < (3, 7), version("numpy") >= (2, 4)]
    if all(old):
        return f"Triton before 3.7 fails with numpy 2.4 and later, so no kernel runs: {INSTALL} --upgrade."
    return ""


def version(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version(package).split(".")[:2])


def decode(q, keys, values, seqused_k, block_table, kernel=decode_kernel) -> torch.Tensor:
    """Attention of one new token per request: q [B, heads, d], keys and values [blocks, block_size, kv_heads, d],
    seqused_k [B], block_table [B, most blocks] -> [B, heads, d]. Interpreted on a CPU, compiled on a GPU."""
    (requests, heads, dim), (_, size, kv_heads, _) = q.shape, keys.shape
    sizes = {"GROUP": heads // kv_heads, "KV_HEADS": kv_heads, "DIM": dim, "SIZE": size}
    out = torch.full_like(q, torch.nan)
    tensors = [part.contiguous() for part in (q, keys, values, seqused_k.int(), block_table.int())]
    arguments = (out, *tensors, block_table.shape[1])
    if q.is_cuda:
        triton.jit(kernel)[requests, heads](*arguments, **sizes)
    else:
        with interpreter() as interpreted, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, where a slot holds NaN
            interpreted(apart(kernel))[requests, heads](*arguments, **sizes)
    return out


def apart(kernel):
    """The same function with names of its own. Triton's interpreter puts all that its module has into a kernel's
    globals, and takes what is there already for its own: a name of the learner's would break it."""
    from triton.runtime import interpreter

    names = {**kernel.__globals__, "interpreter_semantic": interpreter.interpreter_semantic}
    copy = FunctionType(kernel.__code__, names, kernel.__name__, kernel.__defaults__, kernel.__closure__)
    copy.__annotations__ = kernel.__annotations__
    return copy


@contextmanager
def interpreter():
    """Gives what makes an interpreted kernel of a function.

    Triton decides when it is imported whether tl.max and tl.sum are compiled. Inside, they are interpreted, whatever
    was decided; behind it everything is as it was.
    """
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang
    from triton.runtime.jit import JITFunction

    before = {name: value for name, value in vars(tl).items() if isinstance(value, JITFunction)}
    patches = _patch_lang(tl.standard.max.fn)
    try:
        for name, value in before.items():
            setattr(tl, name, InterpretedFunction(value.fn).rewrite())
        yield InterpretedFunction
    finally:
        for name, value in before.items():
            setattr(tl, name, value)
        patches.restore()
