"""What the kernels will not take, they refuse in a sentence; and nothing imports Triton that does not use it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.kernels import build

ROOT = Path(__file__).parents[2]
NAMES = ["q", "keys", "values", "cu_seqlens_q", "seqused_k", "block_table"]


def batch(**shape):
    case = build(
        [1, 5], [9, 0], **{**dict(heads=4, kv_heads=2, head_dim=16, block_size=16), **shape}, dtype=torch.float32
    )
    return dict(zip(NAMES, case.args))


def swap(**changes):
    return lambda args: {**args, **{name: change(args[name]) for name, change in changes.items()}}


REFUSED = {
    "q-of-another-head-dim": (swap(q=lambda q: q[..., :8]), r"q is .*\[6, 4, 8\].*must be \[rows, heads, 16\]"),
    "q-flat": (swap(q=lambda q: q.flatten(1)), r"q is .*\[6, 64\]"),
    "mixed-dtypes": (swap(q=lambda q: q.half()), "q is torch.float16 .*but the arena is torch.float32"),
    "transposed-q": (swap(q=lambda q: q.transpose(0, 2).contiguous().transpose(0, 2)), "contiguous in head_dim"),
    "cu-seqlens-long": (swap(cu_seqlens_q=torch.Tensor.long), "must be int32"),
    "table-long": (swap(block_table=torch.Tensor.long), "must be int32"),
    "device": (swap(q=lambda q: q.to("meta")), "q is .* on meta"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_attention_refuses_what_is_not_like_its_arena(interpreted, case):
    change, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        interpreted.paged_attention(**change(batch()))


ARENAS = {
    "values-of-another-dtype": (swap(values=lambda v: v.half()), "keys are .*float32.* and values .*float16"),
    "dtype": (swap(keys=torch.Tensor.double, values=torch.Tensor.double), "float64.*bfloat16"),
    "values-of-another-shape": (swap(values=lambda v: v[:1]), r"values \[1, 16, 2, 16\].*one layer of the arena"),
    "with-layers": (swap(keys=lambda k: k[None], values=lambda v: v[None]), "one layer of the arena"),
    "transposed-head-dim": (swap(keys=lambda k: k.transpose(1, 3).contiguous().transpose(1, 3)), "with stride 1"),
    "device": (swap(values=lambda v: v.to("meta")), "values .*meta"),
}


@pytest.mark.parametrize("case", ARENAS)
def test_an_arena_is_looked_at_when_a_backend_is_made(interpreted, case):
    change, message = ARENAS[case]
    args = change(batch())
    with pytest.raises(ValueError, match=message):
        interpreted.check_arena(args["keys"], args["values"])


@pytest.mark.parametrize(
    "shape, message",
    [
        (dict(block_size=12), "block_size is 12.*power of two"),
        (dict(head_dim=8), "head_dim is 8.*16 to 256"),
        (dict(head_dim=264), "head_dim is 264"),
    ],
)
def test_an_arena_has_a_shape_that_the_kernel_takes(interpreted, shape, message):
    args = batch(**shape)
    with pytest.raises(ValueError, match=message):
        interpreted.check_arena(args["keys"], args["values"])


def test_an_arena_that_suits_is_taken(interpreted):
    args = batch()
    assert interpreted.check_arena(args["keys"], args["values"]) is None


def test_writing_refuses(interpreted):
    args = batch()
    keys, values = args["keys"], args["values"]
    k = torch.zeros(3, 2, 16)
    slots = torch.arange(3)
    with pytest.raises(ValueError, match=r"k is .*\[3, 2, 8\].*\[rows, heads, 16\]"):
        interpreted.write_kv(keys, values, slots, k[..., :8], k)
    with pytest.raises(ValueError, match=r"v is torch.float16"):
        interpreted.write_kv(keys, values, slots, k, k.half())
    with pytest.raises(ValueError, match="3 slots for 3 keys and 2 values"):
        interpreted.write_kv(keys, values, slots, k, k[:2])
    with pytest.raises(ValueError, match="2 slots for 3 keys and 3 values"):
        interpreted.write_kv(keys, values, slots[:2], k, k)


def test_without_a_gpu_the_compiled_kernel_says_what_it_needs(triton):
    from tinyengine.fast.kernels.cuda import paged

    if not isinstance(paged._attend, triton.runtime.JITFunction):
        pytest.skip("TRITON_INTERPRET=1 is set for the whole run")
    args = batch()
    with pytest.raises(ValueError, match=r"keys are on cpu.*CUDA.*TRITON_INTERPRET"):
        paged.check_arena(args["keys"], args["values"])


def arena(block_size=256, head_dim=16, dtype=torch.float16):
    return torch.empty(2, 3, block_size, 2, head_dim, dtype=dtype)


def test_varlen_says_what_is_missing(monkeypatch):
    from tinyengine.fast.kernels.cuda import varlen

    if not torch.cuda.is_available():
        assert re.search(r"no CUDA GPU|torch is 2\.11", varlen.why_not(arena()))
    monkeypatch.setattr(varlen, "_why_not_here", lambda: None)
    assert varlen.why_not(arena()) is None
    assert "the model is in torch.float32" in varlen.why_not(arena(dtype=torch.float32))
    assert "block_size is 8, and FlashAttention reads blocks of a multiple of 256" in varlen.why_not(arena(8))
    assert "head_dim is 12" in varlen.why_not(arena(head_dim=12))


def test_varlen_of_an_older_torch_is_no_use(monkeypatch):
    """torch 2.11 has a varlen_attn, but without block tables; torch before has none."""
    import torch.nn.attention as attention

    from tinyengine.fast.kernels.cuda import varlen

    older = type(sys)("torch.nn.attention.varlen")
    older.varlen_attn = lambda query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None: None
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", older)
    monkeypatch.setattr(attention, "varlen", older, raising=False)
    assert "2.12" in varlen.why_not(arena())
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert "2.12" in varlen.why_not(arena())


@pytest.mark.slow
def test_the_engine_on_a_cpu_needs_no_triton():
    """torch and transformers import triton by themselves where it is there; the engine must run where it is not."""
    program = (
        "import sys\n"
        "sys.modules['triton'] = None  # importing it is an ImportError from here on\n"
        "from tinyengine import STAGES, Engine, SamplingParams, load_model\n"
        "model = load_model('tiny', device='cpu')\n"
        "for stage in STAGES:\n"
        "    out = Engine(model, stage=stage).generate(['2+3='], SamplingParams(max_tokens=2))\n"
        "    assert out[0].token_ids\n"
        "assert 'tinyengine.fast.kernels.cuda.paged' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
