"""What the kernels will not take, they refuse in a sentence; and nothing imports Triton that does not use it."""

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
    return {**dict(zip(NAMES, case.args)), "max_seqlen_q": 5}


def swap(**changes):
    return lambda args: {**args, **{name: change(args[name]) for name, change in changes.items()}}


REFUSED = {
    "q-of-another-head-dim": (swap(q=lambda q: q[..., :8]), r"q has shape \[6, 4, 8\].*\[N, heads, 16\]"),
    "q-flat": (swap(q=lambda q: q.flatten(1)), r"q has shape \[6, 64\]"),
    "heads": (swap(q=lambda q: q[:, :3]), "3 heads and the arena 2.*multiple"),
    "mixed-dtypes": (swap(q=lambda q: q.half()), "q is torch.float16 and the arena torch.float32"),
    "values-of-another-dtype": (swap(values=lambda v: v.half()), "values is torch.float16"),
    "dtype": (swap(q=torch.Tensor.double, keys=torch.Tensor.double, values=torch.Tensor.double), "float64.*bfloat16"),
    "values-of-another-shape": (swap(values=lambda v: v[:1]), r"values \[1, 16, 2, 16\].*one layer of the arena"),
    "arena-with-layers": (swap(keys=lambda k: k[None], values=lambda v: v[None]), "one layer of the arena"),
    "transposed-head-dim": (swap(keys=lambda k: k.transpose(1, 3).contiguous().transpose(1, 3)), "keys has stride"),
    "cu-seqlens-length": (swap(cu_seqlens_q=lambda c: c[:-1]), r"cu_seqlens_q .*shape \[2\].*2 requests.*\[3\]"),
    "cu-seqlens-long": (swap(cu_seqlens_q=torch.Tensor.long), "cu_seqlens_q is torch.int64"),
    "table-long": (swap(block_table=torch.Tensor.long), r"block_table is torch.int64.*\[2, max_blocks\]"),
    "table-rows": (swap(block_table=lambda t: t[:1]), "block_table"),
    "table-transposed": (swap(block_table=lambda t: t.T.contiguous().T), "block_table.*contiguous"),
    "max-seqlen": (swap(max_seqlen_q=lambda n: 0), "max_seqlen_q is 0"),
    "tile-rows": (lambda args: {**args, "tile_rows": 32}, "tile_rows is 32"),
    "split-size": (lambda args: {**args, "split_size": 100}, "split_size is 100"),
    "device": (swap(block_table=lambda t: t.to("meta")), "block_table is on meta"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_attention_refuses(interpreted, case):
    change, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        interpreted.paged_attention(**change(batch()))


@pytest.mark.parametrize(
    "shape, message",
    [
        (dict(block_size=12), "block_size is 12.*power of two"),
        (dict(head_dim=8), "head_dim is 8.*16 to 256"),
        (dict(head_dim=264), "head_dim is 264"),
    ],
)
def test_attention_refuses_arenas(interpreted, shape, message):
    with pytest.raises(ValueError, match=message):
        interpreted.paged_attention(**batch(**shape))


def test_writing_refuses(interpreted):
    args = batch()
    keys, values = args["keys"], args["values"]
    k = torch.zeros(3, 2, 16)
    slots = torch.arange(3)
    with pytest.raises(ValueError, match=r"k has shape \[3, 1, 16\].*\[N, 2, 16\]"):
        interpreted.write_kv(keys, values, slots, k[:, :1], k)
    with pytest.raises(ValueError, match=r"v is torch.float16"):
        interpreted.write_kv(keys, values, slots, k, k.half())
    with pytest.raises(ValueError, match="3 keys and 2 values"):
        interpreted.write_kv(keys, values, slots, k, k[:2])
    with pytest.raises(ValueError, match=r"slot_mapping is torch.int64 of shape \[2\]"):
        interpreted.write_kv(keys, values, slots[:2], k, k)
    with pytest.raises(ValueError, match=r"slot_mapping is torch.float32"):
        interpreted.write_kv(keys, values, slots.float(), k, k)


def test_without_a_gpu_the_compiled_kernel_says_what_it_needs(triton):
    from tinyengine.kernels import paged

    if not isinstance(paged._attend, triton.runtime.JITFunction):
        pytest.skip("TRITON_INTERPRET=1 is set for the whole run")
    with pytest.raises(ValueError, match=r"keys are on cpu.*CUDA.*TRITON_INTERPRET"):
        paged.paged_attention(**batch())


def test_varlen_says_what_is_missing(monkeypatch):
    from tinyengine.kernels import varlen

    args = batch(block_size=256)
    with pytest.raises(ValueError, match=r"q is torch.float32"):
        varlen.paged_attention(**args)
    args.update({name: args[name].half() for name in ("q", "keys", "values")})
    with pytest.raises(ValueError, match=r"block_size is 8.*256"):
        varlen.paged_attention(**{**args, "keys": args["keys"][:, :8], "values": args["values"][:, :8]})
    with pytest.raises(ValueError, match="head_dim is 12"):
        varlen.paged_attention(**{**args, "keys": args["keys"][..., :12]})
    if not torch.cuda.is_available():
        assert not varlen.is_available()
        with pytest.raises(ValueError, match=r"no CUDA GPU|torch is 2\.11"):
            varlen.paged_attention(**args)


def test_varlen_of_an_older_torch_is_no_use(monkeypatch):
    """torch 2.11 has a varlen_attn, but without block tables; torch before has none."""
    import torch.nn.attention as attention

    from tinyengine.kernels import varlen

    older = type(sys)("torch.nn.attention.varlen")
    older.varlen_attn = lambda query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None: None
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", older)
    monkeypatch.setattr(attention, "varlen", older, raising=False)
    assert not varlen.is_available() and "2.12" in varlen.missing()
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert not varlen.is_available() and "2.12" in varlen.missing()


@pytest.mark.slow
def test_the_engine_on_a_cpu_needs_no_triton():
    """torch and transformers import triton by themselves where it is there; the engine must run where it is not."""
    program = (
        "import sys\n"
        "sys.modules['triton'] = None  # importing it is an ImportError from here on\n"
        "from tinyengine import STAGES, Engine, SamplingParams, load_model\n"
        "import tinyengine.kernels\n"
        "model = load_model('tiny', device='cpu')\n"
        "for stage in STAGES:\n"
        "    out = Engine(model, stage=stage).generate(['2+3='], SamplingParams(max_tokens=2))\n"
        "    assert out[0].token_ids\n"
        "assert 'tinyengine.kernels.paged' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
