"""float32 on a CPU with one thread: a matrix product for the few rows of a decode step, and no slower for many.

A step of a few requests reads every weight to use it a few times, so it is as fast as weights come from memory. They
are packed in the order in which they are used: panels of WIDTH columns, each as one row of WIDTH numbers after the
other. Four rows of x share each number that is read, and 4 * WIDTH sums stay in registers all the while.
Source: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 2008).

numba has no vectors, so there is a type for them here: WIDTH numbers, which the processor handles a register at a time.
"""

import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model

from tinyengine.kernels.cpu import compiled, prefetch_line

_features = binding.get_host_cpu_features()
# Four rows of sums, a row of weights and one number of x have to fit into 32 registers of 16 numbers, or 16 of 8.
WIDTH = 64 if _features.get("avx512f") else 16
AHEAD = 32  # rows of a panel between what is asked for and what is used: about as long as memory takes to answer


def suits() -> bool:
    """Whether this processor is of a kind on which it was faster than oneDNN."""
    return bool(_features.get("avx2") and _features.get("fma"))


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
    _linear(x.contiguous().numpy(), packed.numpy(), y.numpy())
    return y if out >= WIDTH else y[:, :out].contiguous()


@compiled
def _linear(x, packed, y):
    (rows, size), out = x.shape, y.shape[1]
    weights, sums = packed.ctypes.data, y.ctypes.data  # loads and stores go by address
    for first in range(0, out, WIDTH):
        panel = weights + 4 * first * size
        column = min(first, out - WIDTH)
        for row in range(0, rows, 4):
            # The last rows may be the same one: what is done twice takes no longer than what is left out.
            i, j, k, m = row, min(row + 1, rows - 1), min(row + 2, rows - 1), min(row + 3, rows - 1)
            a = b = c = d = spread(np.float32(0))
            for n in range(size):
                weight = load(panel + 4 * n * WIDTH)
                if row == 0:
                    for line in range(0, 4 * WIDTH, 64):
                        prefetch_line(panel + 4 * (n + AHEAD) * WIDTH + line)
                a = multiply_add(weight, spread(x[i, n]), a)
                b = multiply_add(weight, spread(x[j, n]), b)
                c = multiply_add(weight, spread(x[k, n]), c)
                d = multiply_add(weight, spread(x[m, n]), d)
            store(sums + 4 * (i * out + column), a)
            store(sums + 4 * (j * out + column), b)
            store(sums + 4 * (k * out + column), c)
            store(sums + 4 * (m * out + column), d)


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


def _pointer(builder, address):
    return builder.inttoptr(address, ir.PointerType(REGISTERS))


@intrinsic
def load(typing, address):
    def generate(context, builder, signature, arguments):
        return builder.load(_pointer(builder, *arguments), align=4)

    return vector(types.intp), generate


@intrinsic
def store(typing, address, value):
    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], _pointer(builder, arguments[0]), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, vector), generate


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
