"""float32 on a CPU with one thread: a matrix product for the few rows of a decode step, and no slower for many.

A step of a few requests reads every weight to use it a few times, so it is as fast as weights come from memory. They
are packed in the order in which they are used: panels of WIDTH columns, each as one row of WIDTH numbers after the
other, and asked for a while before. Four rows of x share each number that is read, and 4 * WIDTH sums stay in registers
all the while. Why so many: a multiply-add takes several cycles, and the next may begin at once, but not on the same
sum; so there must be enough sums that none waits for itself. More would not fit.
Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 2008).

A row is summed up from its first number to its last, whatever the other rows are: its bits depend on nothing else.

numba leaves vectors to its compiler, and has no word for sums that stay in registers, so there is a type for them here:
WIDTH numbers, in as many registers as it takes.
"""

import numpy as np
import torch
from llvmlite import binding, ir
from numba import config, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model

from tinyengine.fast.kernels.cpu.loops import jit, prefetch_line

# Told to compile for another processor than this one, numba does not say what that one has.
_features = {} if config.CPU_NAME or not config.ENABLE_AVX else binding.get_host_cpu_features()
# Four rows of sums, a row of weights and one number of x have to fit into 32 registers of 16 numbers, or 16 of 8.
WIDTH = 64 if _features.get("avx512f") else 16
AHEAD = 32  # rows of a panel between what is asked for and what is used: about as long as memory takes to answer


def why_not() -> str | None:
    """What keeps this product from being faster than oneDNN's here; None where nothing does."""
    if _features.get("avx2") and _features.get("fma"):
        return None
    return "the processor has no AVX2, or numba compiles for another one"


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] -> [panels, in, WIDTH]. The last panel begins early enough to be full: some columns are in two. An
    `out` below WIDTH is filled up with zeros."""
    out = len(weight)
    panels = [weight[max(0, min(start, out - WIDTH)) :][:WIDTH] for start in range(0, out, WIDTH)]
    packed = weight.new_zeros(len(panels), weight.shape[1], WIDTH)
    for panel, rows in zip(packed, panels):
        panel[:, : len(rows)] = rows.T
    return packed


def linear(x: torch.Tensor, packed: torch.Tensor, out: int) -> torch.Tensor:
    """x [R, in], packed as `pack` does a weight [out, in] -> [R, out]"""
    y = torch.empty(len(x), max(out, WIDTH))
    _linear(x.contiguous().numpy(), packed.data_ptr(), y.numpy())
    return y if out >= WIDTH else y[:, :out].contiguous()


@jit
def _linear(x, weights, y):
    """weights: the address of a packed weight. y [R, out], out at least WIDTH."""
    (rows, size), out = x.shape, y.shape[1]
    for start in range(0, out, WIDTH):
        panel = start * size
        column = min(start, out - WIDTH)  # as in `pack`; what two panels share is computed twice, to the same bits
        for row in range(0, rows, 4):
            # Where fewer than four are left, the last stands in for the rest, and is written again.
            i, j, k, m = row, min(row + 1, rows - 1), min(row + 2, rows - 1), min(row + 3, rows - 1)
            a = b = c = d = spread(np.float32(0))
            for n in range(size):
                weight = load(weights, panel + n * WIDTH)
                if row == 0:  # the next rows of x find the panel in a cache; behind its end the next one begins
                    prefetch(weights, panel + (n + AHEAD) * WIDTH)
                a = multiply_add(weight, spread(x[i, n]), a)
                b = multiply_add(weight, spread(x[j, n]), b)
                c = multiply_add(weight, spread(x[k, n]), c)
                d = multiply_add(weight, spread(x[m, n]), d)
            store(y.ctypes.data, i * out + column, a)
            store(y.ctypes.data, j * out + column, b)
            store(y.ctypes.data, k * out + column, c)
            store(y.ctypes.data, m * out + column, d)


@jit
def prefetch(address, index):
    """Asks for WIDTH numbers, a line of a cache after the other."""
    for line in range(0, 4 * WIDTH, 64):
        prefetch_line(address + 4 * index + line)


# WIDTH numbers in registers

REGISTERS = ir.VectorType(ir.FloatType(), WIDTH)


class Vector(types.Type):
    def __init__(self):
        super().__init__(name=f"Vector{WIDTH}")


vector = Vector()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, REGISTERS)


def _pointer(builder, address, index):
    """To the WIDTH float32 from the index-th on, of those that begin at an address."""
    number = builder.gep(builder.inttoptr(address, ir.PointerType(ir.FloatType())), [index])
    return builder.bitcast(number, ir.PointerType(REGISTERS))


@intrinsic
def load(typing, address, index):
    def generate(context, builder, signature, arguments):
        return builder.load(_pointer(builder, *arguments), align=4)

    return vector(types.intp, types.intp), generate


@intrinsic
def store(typing, address, index, value):
    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _pointer(builder, *arguments[:2]), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, vector), generate


@intrinsic
def spread(typing, x):
    """One number, WIDTH times."""

    def generate(context, builder, signature, arguments):
        number = ir.IntType(32)
        nothing = ir.Constant(REGISTERS, ir.Undefined)
        first = builder.insert_element(nothing, arguments[0], number(0))
        return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(number, WIDTH), [0] * WIDTH))

    return vector(types.float32), generate


@intrinsic
def multiply_add(typing, x, y, z):
    """x * y + z, rounded once where the processor can."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(REGISTERS, [REGISTERS] * 3)
        return builder.call(get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{WIDTH}f32"), arguments)

    return vector(vector, vector, vector), generate
