"""A small device whose bits depend on shapes in a known way, the same on every machine: exercises 06 compute on it.

    with SmallDevice() as device:
        x.sum(-1)          # every sum and product of torch's goes through sum_of_rows() and product()
    device.sums, device.products

Adding, multiplying and comparing number by number is as in torch. Where numbers are added UP, the device picks the
order by the shape, as the libraries of CPUs and GPUs do; but here we know how.
"""

import string
import sys

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from tinyengine.invariant.envelope import bits

PIECE = 32  # numbers of a row that are always added one after the other
TILE = 8  # rows of a tile of a product
PRODUCTS = "matmul __matmul__ __rmatmul__ mm bmm mv linear einsum".split()
SUMS = "sum mean softmax log_softmax logsumexp".split()
ROUNDED = "exp exp_ exp2 log log2 log1p expm1 logaddexp rsqrt sigmoid tanh".split()  # here: nearest to the exact value
ABSENT = "cumsum dot vdot inner addmm addmv baddbmm addbmm tensordot norm vector_norm var std prod numpy __array__"
ABSENT = f"{ABSENT} scaled_dot_product_attention nansum cdist multi_head_attention_forward kron trace".split()


def in_order(x):
    """x [..., n] -> [...]: one number after the other."""
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=-1)[..., -1].copy())


def in_parts(x, parts):
    """x [..., n] -> [...]: cut into so many parts; the sums of the parts are added."""
    sums = [in_order(part) for part in x.tensor_split(parts, -1) if part.shape[-1]]
    return in_order(torch.stack(sums, -1))


def sum_of_rows(x):
    """x [rows, n] -> [rows]. Few rows are cut in parts: one for each processor."""
    rows, n = x.shape
    return in_order(x) if n <= PIECE else in_parts(x, max(1, 64 // rows))


def product(x, weight, tile=TILE):
    """x [..., rows, k], weight [..., k, out] -> [..., rows, out]."""
    terms = x[..., None, :] * weight.transpose(-1, -2)[..., None, :, :]
    rows = x.shape[-2]
    whole = rows // tile * tile  # rows in tiles that are full
    parts = 8 if rows == 1 else 2
    full = in_parts(terms[..., :whole, :, :], 4)
    begun = in_parts(terms[..., whole:, :, :], parts)
    return torch.cat([full, begun], -2)


class SmallDevice(TorchFunctionMode):
    """While it is on, torch computes as the small device does.

    sums: how many calls added rows up. products: the rows of each product.
    """

    def __init__(self, tile: int = TILE):
        super().__init__()
        self.tile, self.sums, self.products = tile, 0, []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        before = sys.gettrace()
        sys.settrace(None)  # no line of the device is the learner's
        try:
            return self._compute(function, *args, **(kwargs or {}))
        finally:
            sys.settrace(before)

    def _compute(self, function, *args, **kwargs):
        name = getattr(function, "__name__", "")
        if name in PRODUCTS:
            return self._product(name, *args, **kwargs)
        if name in SUMS and not is_whole(args[0]):
            return self._sum(name, *args, **kwargs)
        if name in ROUNDED:
            function = function if not name.endswith("_") else getattr(torch, name[:-1])
            return rounded(function, *args)
        if name in ABSENT:
            raise TypeError(f"the small device has no {name}(): use sum(), `@`, einsum() or linear()")
        return function(*args, **kwargs)

    def _sum(self, name, x, dim=None, keepdim=False, **kwargs):
        dim = -1 if dim is None and x.ndim == 1 else dim
        dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
        if not isinstance(dim, int):
            raise TypeError(f"the small device's {name}() goes along one dimension: name it, as in x.{name}(-1)")
        x = x.to(kwargs.get("dtype") or x.dtype)
        self.sums += 1
        if name in ("sum", "mean"):
            out = self._along(x, dim, keepdim)
            return out if name == "sum" else out / x.shape[dim]
        best = x.amax(dim, keepdim=True)
        weights = rounded(torch.exp, x - best)
        total = self._along(weights, dim, True)
        if name == "softmax":
            return weights / total
        whole = best + rounded(torch.log, total)
        if name == "log_softmax":
            return x - whole
        return whole if keepdim else whole.squeeze(dim)

    def _along(self, x, dim, keepdim):
        moved = x.movedim(dim, -1)
        if not x.numel():
            return x.sum(dim, keepdim)
        out = sum_of_rows(moved.reshape(-1, x.shape[dim])).view(moved.shape[:-1])
        return out.unsqueeze(dim) if keepdim else out

    def _product(self, name, x, *others, **kwargs):
        if name == "einsum":
            return self._einsum(x, *others)
        (y,) = others[:1] or kwargs.values()
        if name == "linear":
            out = self._multiply(x.reshape(-1, x.shape[-1]), y.T).view(*x.shape[:-1], len(y))
            return out + others[1] if others[1:] else out
        x, y = (y, x) if name == "__rmatmul__" else (x, y)
        out = self._multiply(x[None] if x.ndim == 1 else x, y[:, None] if y.ndim == 1 else y)
        out = out.squeeze(-1) if y.ndim == 1 else out
        return out.squeeze(-1 if y.ndim == 1 else -2) if x.ndim == 1 else out

    def _multiply(self, x, y):
        self.products.append(x.shape[-2])
        return product(x, y, self.tile)

    def _einsum(self, equation, *operands):
        """As a batched product: the rows are what only the first operand has."""
        operands = operands[0] if isinstance(operands[0], tuple | list) else operands
        inputs, _, out = equation.replace(" ", "").partition("->")
        names = inputs.split(",")
        known = len(names) == 2 and all(letter in string.ascii_letters for letter in "".join(names) + out)
        first, second = names if known else ("", "")
        batch = [letter for letter in first if letter in second and letter in out]
        summed = [letter for letter in first if letter in second and letter not in out]
        rows, columns = ([letter for letter in own if letter not in batch + summed] for own in (first, second))
        if not known or sorted(batch + rows + columns) != sorted(out):
            raise TypeError(f"the small device has no einsum({equation!r}): it multiplies two tensors")
        size = dict(zip(first + second, [*operands[0].shape, *operands[1].shape]))

        def laid(letters, own, operand, *groups):
            shape = [int(np.prod([size[letter] for letter in group])) for group in groups]
            return operand.permute([own.index(letter) for letter in letters]).reshape(shape)

        x = laid(batch + rows + summed, first, operands[0], batch, rows, summed)
        y = laid(batch + summed + columns, second, operands[1], batch, summed, columns)
        product = self._multiply(x, y).view([size[letter] for letter in batch + rows + columns])
        return product.permute([(batch + rows + columns).index(letter) for letter in out])


def is_whole(x) -> bool:
    return isinstance(x, torch.Tensor) and not x.is_floating_point()


def rounded(function, *args):
    """A function of single numbers, by way of float64: the last bit of float32 is then the same on every machine."""
    dtypes = [arg.dtype for arg in args if isinstance(arg, torch.Tensor)]
    return function(*(arg.double() if isinstance(arg, torch.Tensor) else arg for arg in args)).to(dtypes[0])


def numbers(*shape, seed: int = 0) -> torch.Tensor:
    """Random numbers between -2 and 2, the same on every machine: torch's normal ones are not, to the last bit."""
    whole = torch.randint(-(2**23), 2**23, shape, generator=torch.Generator().manual_seed(seed))
    return whole.float() * 2.0**-22


def moved_bits(one, two) -> str:
    """The first number whose bits differ in two tensors of one shape, in both: "0x3f800000 and 0x3f800001"; or ""."""
    places = (bits(one.float()) != bits(two.float())).flatten().nonzero()
    if not len(places):
        return ""
    return " and ".join(f"0x{int(bits(x.float()).flatten()[places[0, 0]]) & 0xFFFFFFFF:08x}" for x in (one, two))
