"""Loops that numba compiles, for float32 on a CPU: `loops` (attention and what is done row by row), `linear` (few rows
by a matrix), `decode` (the two as one call for the whole model)."""

from importlib.util import find_spec

import torch


def why_not(device: torch.device, dtype: torch.dtype) -> str | None:
    """What keeps the loops from serving such a model, as a sentence; None where nothing does."""
    if device.type != "cpu":
        return f"the model is on {device}, and the loops run on a CPU: load it there, or use attention_backend='torch'"
    if find_spec("numba") is None:
        return "numba is not installed: pip install numba, or use attention_backend='torch'"
    if dtype != torch.float32:
        return f"the model is in {dtype}, and the loops take float32: use attention_backend='torch'"
    try:
        from numba import config
    except ImportError as error:  # its releases refuse a NumPy that is newer than they are
        return f"numba cannot be imported ({error}): pip install --upgrade numba, or use attention_backend='torch'"
    if config.DISABLE_JIT:
        return "numba compiles nothing while NUMBA_DISABLE_JIT is set: unset it, or use attention_backend='torch'"
    return None
