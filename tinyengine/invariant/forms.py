"""Three other ways to make a sum that no batch can change, each in a few lines, to be read beside `InvariantOperators`.

All of them are operators: `engine.operators = RowByRow()` right after the engine is made, and its linears are those.
("padded rows" needs the tile_rows of `tested_operators`: the least does not hold on every CPU.)
"""

import torch
import torch.nn.functional as F

from tinyengine.invariant.operators import InvariantOperators, pad_rows


class RowByRow(InvariantOperators):
    """Every row is a product of its own: no batch is ever seen. As slow as it sounds, and as hard to get wrong."""

    def linear(self, x, weight):
        out = x.new_empty(len(x), len(weight))
        for result, row in zip(out, x):
            result.copy_(F.linear(row[None], weight)[0])
        return out


class FixedTiles(InvariantOperators):
    """Always the same shape: tiles of 32 rows, the last one filled up with zeros. The idea of Thinking Machines'
    kernels, whose tiles have 128 rows."""

    def linear(self, x, weight):
        return torch.cat([F.linear(tile, weight) for tile in pad_rows(x, 32).split(32)])[: len(x)]


class ExactGrid(InvariantOperators):
    """Sums that are exact have no order. Rounded to whole multiples of a step, `bits` of them to the row's and the
    weights' largest, products are whole numbers below 2^(2 bits), and float64 adds 2^(53 - 2 bits) of those without any
    rounding: the shape may be whatever is fastest. The rounding itself costs accuracy, once, and each row alone decides
    its step."""

    bits = 20

    def linear(self, x, weight):
        rows, row_step = self.on_grid(x)
        columns, column_step = self.on_grid(weight)
        return ((rows @ columns.T) * (row_step * column_step.T)).to(x.dtype)

    def on_grid(self, x):
        """x [n, k] -> whole numbers [n, k] and each row's step [n, 1], a power of two, in float64."""
        x = x.double()
        step = torch.exp2(x.abs().amax(-1, keepdim=True).clamp_min(1e-300).log2().ceil() - self.bits)
        return (x / step).round(), step


FORMS = {"padded rows": InvariantOperators, "row by row": RowByRow, "fixed tiles": FixedTiles, "exact grid": ExactGrid}
