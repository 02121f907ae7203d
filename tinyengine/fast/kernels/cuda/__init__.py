"""Kernels for a GPU, in Triton: `paged` (attention), `draw` (sampling), `matmul` and `rmsnorm` (with one order of
summation); and `varlen`, torch's own attention over blocks."""

from importlib.util import find_spec

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # that `paged` takes


def has_triton(device: torch.device) -> bool:
    """Whether Triton kernels run on tensors of this device."""
    return device.type == "cuda" and find_spec("triton") is not None


def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """What keeps `paged` from serving such a model, as a sentence; None where nothing does."""
    if device.type != "cuda":
        return f"the model is on {device}, and Triton runs on CUDA: load it there, or use attention_backend='torch'"
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'tinyengine[kernels]', or use attention_backend='torch'"
    if dtype not in DTYPES:
        return f"the model is in {dtype}, and the kernel takes bf16, fp16 and float32: use attention_backend='torch'"
    if not 16 <= head_dim <= 256:
        return f"head_dim is {head_dim}, and the kernel takes 16 to 256: use attention_backend='torch'"
    return None
