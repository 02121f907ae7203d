"""The row-wise kernels of batch invariance: right, the same bits for a row in any batch, and compiled for two GPUs."""

from types import SimpleNamespace

import pytest
import torch
from helpers.kernels import assert_it_runs, interpreted_library, load_interpreted, rows_apart


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.cuda)])
def rows(request, triton):
    """linear, rms_norm and the device that they run on."""
    if request.param == "gpu":
        from tinyengine.fast.kernels.cuda import matmul, rmsnorm

        return SimpleNamespace(device="cuda", linear=matmul.linear, rms_norm=rmsnorm.rms_norm)
    request.getfixturevalue("interpreted")  # skips where the interpreter does not work

    def run(function):
        def call(*args):
            with interpreted_library(), rows_apart():
                return function(*args)

        return call

    return SimpleNamespace(
        device="cpu", linear=run(load_interpreted("matmul").linear), rms_norm=run(load_interpreted("rmsnorm").rms_norm)
    )


def random(*shape, dtype=torch.float32, device="cpu", seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 32), (3, 100, 70), (17, 65, 33), (130, 70, 40)])
def test_linear_is_the_product(rows, m, n, k, dtype):
    x, weight = random(m, k, dtype=dtype, device=rows.device), random(n, k, dtype=dtype, device=rows.device, seed=1)
    wanted = x.double() @ weight.double().T
    error = (rows.linear(x, weight).double() - wanted).abs().max() / wanted.abs().max()
    assert error < (2e-6 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize("tile_rows", [16, 64])
def test_a_row_of_linear_has_the_same_bits_in_any_batch(rows, tile_rows):
    x, weight = random(70, 70, device=rows.device), random(65, 70, device=rows.device, seed=1)
    alone = rows.linear(x[5:6].clone(), weight, tile_rows)
    for m in (6, 16, 17, 33, 70):
        for fill in (None, torch.nan):
            batch = x[:m].clone()
            if fill is not None:
                batch[torch.arange(m) != 5] = fill
            assert torch.equal(rows.linear(batch, weight, tile_rows)[5:6].view(torch.int32), alone.view(torch.int32))


@pytest.mark.parametrize("size", [16, 48, 128])
def test_rms_norm(rows, size):
    x, weight = random(5, 3, size, device=rows.device), random(size, device=rows.device, seed=1)
    out = rows.rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (size,), weight, 1e-6), rtol=1e-5, atol=1e-6)
    assert torch.equal(rows.rms_norm(x[2:3, 1:2], weight, 1e-6).view(torch.int32), out[2:3, 1:2].view(torch.int32))


def test_no_rows_are_no_error(rows):
    assert rows.linear(random(0, 8, device=rows.device), random(4, 8, device=rows.device)).shape == (0, 4)
    assert rows.rms_norm(random(0, 8, device=rows.device), random(8, device=rows.device), 1e-6).shape == (0, 8)


def test_refusals(rows):
    with pytest.raises(ValueError, match=r"x is torch.float32 \[2, 8\] and weight torch.float32 \[4, 9\]"):
        rows.linear(random(2, 8), random(4, 9))
    with pytest.raises(ValueError, match="tile_rows is 17, but a tile has one of"):
        rows.linear(random(2, 8), random(4, 8), 17)
    with pytest.raises(ValueError, match=r"weight has shape \[9\], but x has rows of 8"):
        rows.rms_norm(random(2, 8), random(9), 1e-6)


def compile_rows(kernel, dtype, capability, constants, num_warps=4, num_stages=3):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
    ones = {name: 1 for name in ("x_column", "weight_column", "out_column") if name in kernel.arg_names}
    constants = constants | ones  # a launch makes constants of them
    signature, hints = {}, {}
    for index, name in enumerate(kernel.arg_names):
        pointer = f"*{names[dtype]}" if name in ("out", "x", "weight") else "fp32" if name == "eps" else "i32"
        signature[name] = "constexpr" if name in constants else pointer
        if name in ("out", "x", "weight", "x_row", "weight_row", "out_row", "k", "n"):
            hints[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, hints)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return triton_compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernels_compile(compiler, dtype, capability):
    from tinyengine.fast.kernels.cuda import matmul, rmsnorm

    for height in matmul.TILE_ROWS:
        constants = {"PROGRAMS": 108, "BLOCK_M": height, "BLOCK_N": matmul.BLOCK_N, "BLOCK_K": matmul.BLOCK_K}
        warps = 8 if height == 128 else 4
        assert_it_runs(compile_rows(matmul._linear, dtype, capability, constants, warps), capability)
    assert_it_runs(compile_rows(rmsnorm._rms_norm, dtype, capability, {"SIZE": 1024}), capability)
