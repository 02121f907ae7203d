"""What the kernel tests share: batches over an arena full of poison, the definition of attention, and the kernels
themselves, compiled or run by Triton's interpreter, side by side in one process."""

import importlib.util
import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch

KERNELS = Path(__file__).parents[2] / "tinyengine" / "fast" / "kernels" / "cuda"
KIBIBYTES = {80: 163, 90: 227}  # shared memory that one program may use; CUDA programming guide, compute capabilities


def load_interpreted(name: str):
    """A second copy of tinyengine.fast.kernels.cuda.<name> that Triton's interpreter runs on the CPU.

    `triton.jit` decides when it decorates, so the variable is set only while this copy is loaded; the compiled module
    of the same name, and every other test in this process, see nothing of it.
    """
    import triton.language  # noqa: F401  before the variable is set, so that Triton's own functions can be compiled

    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", KERNELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with patch.dict(os.environ, TRITON_INTERPRET="1"):
        spec.loader.exec_module(module)
    return module


def interpreted():
    """The paged kernels, run by the interpreter."""
    module = load_interpreted("paged")

    def run(function):
        def call(*args, **kwargs):
            with interpreted_library():
                return function(*args, **kwargs)

        return call

    return SimpleNamespace(
        device="cpu",
        dtypes=(torch.float32, torch.float16),  # the interpreter multiplies the bits of a bfloat16 (triton #11584)
        paged_attention=run(module.paged_attention),
        write_kv=run(module.write_kv),
        check_arena=module.check_arena,
        tile_config=module.tile_config,
    )


@contextmanager
def interpreted_library():
    """tl.max and tl.sum are jit functions themselves, compiled ones where triton was imported without the variable: for
    the length of a call they are interpreted too. Called as functions of the interpreter they would leave its patches
    in triton.language for good, and nothing could be compiled in this process any more."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang
    from triton.runtime.jit import JITFunction

    before = {name: value for name, value in vars(tl).items() if isinstance(value, JITFunction)}
    patches = _patch_lang(tl.standard.max.fn)
    try:
        for name, value in before.items():
            setattr(tl, name, InterpretedFunction(value.fn).rewrite())
        yield
    finally:
        for name, value in before.items():
            setattr(tl, name, value)
        patches.restore()


@contextmanager
def rows_apart():
    """The interpreter's tl.dot with each row multiplied by itself, as the hardware's rows are. Otherwise it is numpy's
    product of the whole tile, where a row's bits depend on its place in the tile."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        with np.errstate(invalid="ignore"):  # infinite keys are among the cases
            rows = [np.matmul(row, b.data, dtype=d.data.dtype) for row in a.data]
        return TensorHandle(np.stack(rows) + d.data, d.dtype.scalar)

    before = InterpreterBuilder.create_dot
    InterpreterBuilder.create_dot = create_dot
    try:
        yield
    finally:
        InterpreterBuilder.create_dot = before


def compiled():
    from tinyengine.fast.kernels.cuda import paged

    return SimpleNamespace(
        device="cuda",
        dtypes=(torch.float32, torch.float16, torch.bfloat16),
        paged_attention=paged.paged_attention,
        write_kv=paged.write_kv,
        check_arena=paged.check_arena,
        tile_config=paged.tile_config,
    )


def assert_it_runs(binary, capability):
    assert binary.asm["cubin"][:4] == b"\x7fELF"
    assert f".target sm_{capability}" in binary.asm["ptx"]
    assert binary.metadata.shared <= KIBIBYTES[capability] * 1024


def build(counts, contexts, *, heads, kv_heads, head_dim, block_size, dtype, device="cpu", seed=0, poison=float("nan")):
    """A batch: counts[r] new tokens behind contexts[r] older ones, in scattered blocks of the second of three layers.

    Every slot and every block table entry that no request owns holds poison: NaN or infinity, and a free block's
    number. The blocks' order and the poisoned rest depend on the seed; each request's own numbers on its place in the
    list alone, so that another arrangement of the same batch can be made with another seed."""
    chance = torch.Generator().manual_seed(seed)
    lengths = [count + context for count, context in zip(counts, contexts)]
    blocks = [-(-length // block_size) for length in lengths]
    n_blocks = sum(blocks) + 3
    order = torch.randperm(n_blocks, generator=chance)
    arena = torch.full((2, n_blocks, 3, block_size, kv_heads, head_dim), poison, dtype=dtype)
    keys, values = arena[0, :, 1], arena[1, :, 1]  # a layer that is not contiguous
    table = torch.full((len(counts), max(blocks) + 2), int(order[-1]), dtype=torch.int32)  # a free block
    q, own_keys, own_values, used = [], [], [], 0
    for index, (count, length) in enumerate(zip(counts, lengths)):
        own = torch.Generator().manual_seed(1000 + index)
        q.append(torch.randn(count, heads, head_dim, generator=own).to(dtype))
        own_keys.append(torch.randn(length, kv_heads, head_dim, generator=own).to(dtype))
        own_values.append(torch.randn(length, kv_heads, head_dim, generator=own).to(dtype))
        mine = order[used : used + blocks[index]]
        used += blocks[index]
        table[index, : len(mine)] = mine
        position = torch.arange(length)
        block, offset = mine[position // block_size], position % block_size
        keys[block, offset], values[block, offset] = own_keys[-1], own_values[-1]
    arena = arena.to(device)
    return SimpleNamespace(
        counts=counts,
        own_keys=own_keys,
        own_values=own_values,
        args=(
            torch.cat(q).to(device),
            arena[0, :, 1],
            arena[1, :, 1],
            torch.tensor([0, *counts]).cumsum(0).to(torch.int32).to(device),
            torch.tensor(lengths, dtype=torch.int32, device=device),
            table.to(device),
        ),
    )


def definition(case) -> torch.Tensor:
    """Causal attention of each request alone, query by query, in float64: softmax(q K' / sqrt(d)) V."""
    rows = iter(case.args[0].cpu().double())
    out = []
    for count, keys, values in zip(case.counts, case.own_keys, case.own_values):
        group = case.args[0].shape[1] // keys.shape[1]
        keys, values = (own.double().repeat_interleave(group, dim=1) for own in (keys, values))  # [length, heads, dim]
        for query in range(count):
            seen = len(keys) - count + query + 1
            scores = torch.einsum("hd,khd->hk", next(rows), keys[:seen]) / keys.shape[2] ** 0.5
            out.append(torch.einsum("hk,khd->hd", scores.softmax(dim=1), values[:seen]))
    return torch.stack(out)
