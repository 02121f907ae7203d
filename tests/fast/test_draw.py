"""The drawing kernel gives the tokens of the sampler's own arithmetic, in Triton's interpreter and on the GPU, and
compiles for cards that are not here."""

import os

import pytest
import torch
from helpers.kernels import interpreted_library, load_interpreted

from tinyengine.sampler import gumbel_noise


def interpreted():
    module = load_interpreted("draw")

    def draw(*args):
        with interpreted_library():
            return module.draw(*args)

    return draw, "cpu"


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.cuda)])
def kernel(request, triton):
    if request.param == "interpreter":
        return interpreted()
    from tinyengine.fast.kernels.cuda.draw import draw

    return draw, "cuda"


@pytest.mark.parametrize("vocab", [1, 5, 300, 4096, 4097, 20_000])
def test_tokens_are_those_of_torch(kernel, vocab):
    draw, device = kernel
    chance = torch.Generator().manual_seed(vocab)
    logits = torch.randn(12, vocab, generator=chance)
    logits[:4] = 0  # the noise alone decides
    logits[4, 1:] = -torch.inf  # cut to one
    seeds = torch.randint(0, 2**63 - 1, (12, 1), generator=chance)
    positions = torch.randint(0, 2**20, (12, 1), generator=chance)
    right = (logits + gumbel_noise(seeds, positions, vocab)).argmax(-1)
    assert draw(logits.to(device), seeds.to(device), positions.to(device)).tolist() == right.tolist()
    assert vocab < 300 or len(set(right.tolist())) > 8


def test_rows_of_a_wider_tensor_are_read_where_they_lie(kernel):
    draw, device = kernel
    wide = torch.randn(3, 900, generator=torch.Generator().manual_seed(0)).to(device)
    ones = torch.ones(3, 1, dtype=torch.long, device=device)
    assert draw(wide[:, :500], ones, ones).tolist() == draw(wide[:, :500].contiguous(), ones, ones).tolist()


@pytest.mark.parametrize("capability", [80, 90])
def test_it_compiles(capability, triton, tmp_path, monkeypatch):
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        pytest.skip("TRITON_INTERPRET=1 is set for the whole run: nothing can be compiled")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    from tinyengine.fast.kernels.cuda import draw

    kinds = {"best": "*fp32", "token": "*i64", "logits": "*fp32", "seeds": "*i64", "positions": "*i64"}
    signature = {name: kinds.get(name, "constexpr" if name == "TILE" else "i32") for name in draw._draw.arg_names}
    source = ASTSource(draw._draw, signature, {"TILE": draw.TILE})
    binary = triton_compile(source, target=GPUTarget("cuda", capability, 32))
    assert binary.asm["cubin"][:4] == b"\x7fELF"
    ptx = binary.asm["ptx"]
    assert "fma.rn.f64" in ptx and "lg2.approx" not in ptx  # the logarithms in float64, as in torch
