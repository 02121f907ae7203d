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
        with interpreter((out, *tensors)) as interpreted, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, where a slot holds NaN
            try:
                interpreted(apart(kernel))[requests, heads](*arguments, **sizes)
            except Exception as error:
                raise told(error.__cause__ or error) from None
    return out


def told(error) -> Exception:
    """What the kernel raised, behind the interpreter's own error; with a way out where its words have none."""
    if "Cannot call @triton.jit'd" not in str(error):
        return error
    sentence = "a tile's own methods do not run in the interpreter: where you have x.sum(1), use tl.sum(x, 1)"
    return RuntimeError(sentence).with_traceback(error.__traceback__)


def apart(kernel):
    """The same function with names of its own. Triton's interpreter puts all that its module has into a kernel's
    globals, and takes what is there already for its own: a name of the learner's would break it."""
    from triton.runtime import interpreter

    names = {**kernel.__globals__, "interpreter_semantic": interpreter.interpreter_semantic}
    copy = FunctionType(kernel.__code__, names, kernel.__name__, kernel.__defaults__, kernel.__closure__)
    copy.__annotations__ = kernel.__annotations__
    return copy


MASKED = {"create_masked_load": 1, "create_masked_store": 2}  # the place of the mask among the arguments


def within(tensors, name, access):
    """The same way of the interpreter to load or to store, but a pointer that is in none of these tensors raises
    IndexError: the interpreter would follow it, and the process might die."""
    spans = [(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors]

    def look(*args):
        at = args[0].data[args[MASKED[name]].data].astype("int64")
        if not (sum((first <= at) & (at < end) for first, end in spans) > 0).all():
            raise IndexError("a pointer outside of the tensor: an offset is too large, or less than 0")
        return access(*args)

    return look


@contextmanager
def interpreter(tensors):
    """Gives what makes an interpreted kernel of a function. tensors: all that it may read and write.

    Triton decides when it is imported whether tl.max and tl.sum are compiled. Inside, they are interpreted, whatever
    was decided; behind it everything is as it was.
    """
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang, interpreter_builder
    from triton.runtime.jit import JITFunction

    before = {name: value for name, value in vars(tl).items() if isinstance(value, JITFunction)}
    patches = _patch_lang(tl.standard.max.fn)
    try:
        for name, value in before.items():
            setattr(tl, name, InterpretedFunction(value.fn).rewrite())
        for name in MASKED:
            setattr(interpreter_builder, name, within(tensors, name, getattr(interpreter_builder, name)))
        yield InterpretedFunction
    finally:
        for name, value in before.items():
            setattr(tl, name, value)
        for name in MASKED:
            vars(interpreter_builder).pop(name, None)
        patches.restore()
