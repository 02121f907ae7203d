"""The kernels compile for NVIDIA cards where there is none: a cubin comes out, it fits the card, and it multiplies
addresses in 64 bits."""

import re

import pytest
import torch
from helpers.kernels import KIBIBYTES, assert_it_runs

pytestmark = pytest.mark.usefixtures("compiler")

NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
POINTERS = ("out", "q", "keys", "values", "k", "v")
OTHERS = {
    "sums_out": "*fp32",
    "sums_in": "*fp32",
    "stats_out": "*fp32",
    "stats_in": "*fp32",
    "cu_seqlens_q": "*i32",
    "seqused_k": "*i32",
    "block_table": "*i32",
    "slot_mapping": "*i64",
    "scale": "fp32",
}


def compile(kernel, dtype, capability, constants, num_warps=4, num_stages=3):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    signature, hints = {}, {}
    for index, name in enumerate(kernel.arg_names):
        pointer = f"*{NAMES[dtype]}" if name in POINTERS else None
        signature[name] = "constexpr" if name in constants else pointer or OTHERS.get(name, "i32")
        if name not in constants and name not in ("scale", "table_row", "n_tokens", "splits"):
            hints[(index,)] = [["tt.divisibility", 16]]  # what a launch finds out: aligned pointers, even strides
    return triton_compile(
        ASTSource(kernel, signature, constants, hints),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps, "num_stages": num_stages},
    )


def attend(rows, head_dim, dtype, capability, group=2, block_size=16, tile_rows=None, split_size=0, pure=False):
    from tinyengine.fast.kernels.cuda import paged

    config = paged.tile_config(rows, head_dim, dtype, tile_rows)
    options = {name: config.pop(name) for name in ("num_warps", "num_stages")}
    constants = dict(GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, SPLIT_SIZE=split_size, PREFIX_PURE=pure)
    constants |= config
    return compile(paged._attend, dtype, capability, constants, **options)


CASES = [
    (rows, head_dim, dtype)
    for dtype in NAMES
    for head_dim in (64, 128)
    for rows in (2, 1024)  # decode with a group of 2; prefill
]
ONCE = [(2, 16, torch.bfloat16), (2, 80, torch.bfloat16), (1024, 256, torch.bfloat16), (1024, 256, torch.float32)]


@pytest.mark.parametrize("capability", sorted(KIBIBYTES))
@pytest.mark.parametrize("rows, head_dim, dtype", CASES + ONCE, ids=lambda value: NAMES.get(value, str(value)))
def test_attention_compiles_and_fits(rows, head_dim, dtype, capability):
    binary = attend(rows, head_dim, dtype, capability)
    assert_it_runs(binary, capability)
    ptx = binary.asm["ptx"]
    if dtype == torch.float32:
        assert "mma" not in ptx, "a float32 product went through TF32"
    else:
        assert "wgmma" in ptx or "mma.sync" in ptx, "a 16-bit product does without tensor cores"
    assert "cp.async" in ptx, "keys are not loaded ahead"


@pytest.mark.parametrize("tile_rows", [16, 64, 128])
def test_every_tile_height_that_can_be_asked_for_fits(tile_rows):
    assert_it_runs(attend(1, 128, torch.bfloat16, 80, tile_rows=tile_rows), 80)


@pytest.mark.slow
@pytest.mark.parametrize("capability", sorted(KIBIBYTES))
@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
def test_looking_at_values_compiles_and_fits(dtype, capability):
    for head_dim, tile_rows, split_size in ((64, 16, 0), (128, 16, 0), (256, 16, 0), (128, 64, 0), (80, 16, 512)):
        options = dict(tile_rows=tile_rows, split_size=split_size, pure=True)
        assert_it_runs(attend(1, head_dim, dtype, capability, **options), capability)


@pytest.mark.parametrize("block_size", [1, 256])
def test_block_sizes_compile(block_size):
    assert_it_runs(attend(2, 64, torch.bfloat16, 90, group=7, block_size=block_size), 90)


def test_splits_compile():
    from tinyengine.fast.kernels.cuda import paged

    for capability in KIBIBYTES:
        assert_it_runs(attend(2, 128, torch.bfloat16, capability, split_size=512), capability)
        constants = dict(HEAD_DIM=80, DIM=128, SPLIT_SIZE=512)
        assert_it_runs(compile(paged._combine, torch.bfloat16, capability, constants), capability)


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
def test_writing_compiles(dtype):
    from tinyengine.fast.kernels.cuda import paged

    constants = dict(KV_HEADS=8, HEAD_DIM=80, BLOCK_SIZE=16, ELEMENTS=1024)
    for capability in KIBIBYTES:
        assert_it_runs(compile(paged._write, dtype, capability, constants), capability)


def test_block_times_stride_is_multiplied_in_64_bits():
    """The same as test_addresses_pass_2_to_the_31 for the compiled code: a block number is widened, then multiplied."""
    ttir = attend(2, 64, torch.bfloat16, 90).asm["ttir"]
    widened = set(re.findall(r"(%\w+) = arith\.extsi .* tensor<64xi32> to tensor<64xi64>", ttir))
    products = re.findall(r"arith\.muli (%\w+), %\w+ : tensor<64xi64>", ttir)
    assert widened & set(products), "no widened block number is multiplied"
    loaded = set(re.findall(r"(%\w+) = tt\.load .*tensor<64x!tt\.ptr<i32>>", ttir))
    assert loaded and not loaded & set(re.findall(r"arith\.muli (%\w+), %\w+ : tensor<64xi32>", ttir))
