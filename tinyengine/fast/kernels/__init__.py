"""What torch does not do in one call, or not as fast. On a GPU, `paged` (attention), `draw` (sampling), `matmul` and
`rmsnorm` need Triton, `varlen` (attention) torch >= 2.12; on a CPU, `cpu` (loops), `linear` (few rows by a matrix) and
`decode` (the two as one call for the whole model) need numba. Each is imported only when it is used, so that the engine
runs where it is missing."""

from importlib.util import find_spec

import torch


def has_triton(device: torch.device) -> bool:
    """Whether Triton kernels run on tensors of this device."""
    return device.type == "cuda" and find_spec("triton") is not None


def why_not_triton(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """What keeps `paged` from serving such a model, as a sentence; None where nothing does."""
    if device.type != "cuda":
        return f"the model is on {device}, and Triton kernels run on CUDA: load it there, or use 'torch'"
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'tinyengine[kernels]', or use 'torch'"
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"the model is in {dtype}, and the kernel takes bfloat16, float16 and float32: use 'torch'"
    if not 16 <= head_dim <= 256:
        return f"head_dim is {head_dim}, and the kernel takes 16 to 256: use 'torch'"
    return None


def why_not_numba(device: torch.device, dtype: torch.dtype) -> str | None:
    """What keeps `cpu` from serving such a model, as a sentence; None where nothing does."""
    if device.type != "cpu":
        return f"the model is on {device}, and loops compiled by numba run on a CPU: load it there, or use 'torch'"
    if find_spec("numba") is None:
        return "numba is not installed: pip install numba, or use 'torch'"
    if dtype != torch.float32:
        return f"the model is in {dtype}, and the loops take float32: use 'torch'"
    try:
        from numba import config  # imported here: numba is of no use on a GPU
    except ImportError as error:  # its releases refuse a NumPy that is newer than they are
        return f"numba cannot be imported ({error}): pip install --upgrade numba, or use 'torch'"
    if config.DISABLE_JIT:
        return "numba compiles nothing while NUMBA_DISABLE_JIT is set: unset it, or use 'torch'"
    return None


def loops(device: torch.device, dtype: torch.dtype):
    """The module `cpu`, or None where it cannot serve such a model."""
    if why_not_numba(device, dtype):
        return None
    from tinyengine.kernels import cpu  # imported here: it needs numba

    return cpu
