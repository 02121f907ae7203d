"""RMSNorm with a whole row in one program: there is nothing to split, however few rows there are."""

import torch
import triton
import triton.language as tl


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., size], weight [size] -> x / sqrt(mean(x^2) + eps) * weight, summed in float32, in x's dtype.

    Raises ValueError where the sizes differ.
    """
    size = x.shape[-1]
    if weight.shape != (size,):
        raise ValueError(
            f"weight has shape {list(weight.shape)}, but x has rows of {size}: pass one for each element of a row"
        )
    rows = x.reshape(-1, size).contiguous()
    out = torch.empty_like(rows)
    if len(rows):
        _rms_norm[(len(rows),)](out, rows, weight, eps, size, SIZE=triton.next_power_of_2(size), num_warps=4)
    return out.view(x.shape)


@triton.jit
def _rms_norm(out, x, weight, eps, size, SIZE: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * size
    element = tl.arange(0, SIZE)
    real = element < size
    row = tl.load(x + start + element, mask=real, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(row * row, 0) / size + eps)
    result = row * scale * tl.load(weight + element, mask=real, other=0.0).to(tl.float32)
    tl.store(out + start + element, result.to(out.dtype.element_ty), mask=real)
