"""The engine on the device itself, with every switch: on the GPU where there is one. On a CPU the same tests show that
they are right, with what can be switched there."""

import random

import pytest
import torch

from tinyengine import STAGES, Engine, SamplingParams, load_model
from tinyengine.overlap import OverlappedEngine
from tinyengine.request import Request
from tinyengine.sampler import choose

SWITCHES = [
    (Engine, {}),
    (OverlappedEngine, {}),
    (Engine, {"fast": False}),
    (OverlappedEngine, {"fast": False}),
    (Engine, {"attention_backend": "torch"}),
    (OverlappedEngine, {"cuda_graphs": True}),
    (Engine, {"cuda_graphs": True, "split_kv": False}),
    (Engine, {"cuda_graphs": False}),
    (Engine, {"attention_backend": "triton", "block_size": 1}),
    (Engine, {"attention_backend": "triton", "block_size": 256, "num_slots": 8192}),
]
ON_CPU = {"attention_backend": "torch", "fast": False}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def model(request, random_folder):
    return load_model(random_folder, request.param)


def work(n=9):
    rng = random.Random(0)
    prompts = [[rng.randrange(6, 300) for _ in range(rng.choice([1, 5, 30, 90]))] for _ in range(n)]
    params = [SamplingParams(max_tokens=rng.randint(1, 30), ignore_eos=n % 2 == 0) for n in range(n)]
    return prompts, params


def possible(model, switches):
    """On a CPU, what needs a GPU is left out."""
    if model.device.type == "cuda":
        return switches
    return {name: ON_CPU[name] for name in switches if name in ON_CPU}


@pytest.mark.parametrize(("kind", "switches"), SWITCHES, ids=str)
def test_tokens_are_those_of_each_request_alone(model, random_oracle, kind, switches):
    prompts, params = work()
    right = [random_oracle.generate(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    options = {"max_num_seqs": 5, "num_slots": 512, "max_num_batched_tokens": 40, **possible(model, switches)}
    engine = kind(model, **options)
    assert [output.token_ids for output in engine.generate(prompts, params)] == right
    engine.memory.check()
    if switches.get("cuda_graphs") and model.device.type == "cuda":
        assert engine.forward.graphs, "no graph was recorded"


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "invariant"])
def test_every_stage_runs_on_the_device(model, random_oracle, stage):
    prompts, params = work(5)
    right = [random_oracle.generate(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    outputs = Engine(model, stage, max_num_seqs=3, num_slots=640).generate(prompts, params)
    assert [output.token_ids for output in outputs] == right


def test_varlen_serves_half_precision_or_says_why_not(model):
    from tinyengine.fast.attention import ByVarlen

    half = load_model(model.folder, str(model.device), torch.float16)
    options = {"num_slots": 4096, "block_size": 256, "attention_backend": "varlen"}
    if ByVarlen.why_not(torch.empty(1, 2, 256, 2, 16, dtype=torch.float16, device=model.device)):
        with pytest.raises(ValueError, match="attention_backend is 'varlen', but"):
            Engine(half, **options)
        return
    outputs = Engine(half, **options).generate([[7, 8, 9]] * 3, SamplingParams(max_tokens=8, ignore_eos=True))
    assert len({tuple(output.token_ids) for output in outputs}) == 1


def test_a_drawn_token_is_the_same_on_every_device(model):
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(0))
    params = [
        SamplingParams(temperature=0.8, seed=2**62 + 5),
        SamplingParams(),
        SamplingParams(temperature=1e-30, seed=1),
        SamplingParams(temperature=2.0, top_k=5, seed=2),
        SamplingParams(temperature=1.0, top_p=0.3, seed=3),
        SamplingParams(repetition_penalty=1.7),
    ]
    requests = [Request(str(n), [n + 6, 9, int(logits[n].argmax())], own) for n, own in enumerate(params)]
    wanted = [(request, len(request.tokens)) for request in requests]
    engine = Engine(model, num_slots=16)  # on a GPU it draws by a kernel of its own
    there = choose(logits.to(model.device), wanted, engine.draw)
    assert there.device == model.device and there.tolist() == choose(logits, wanted).tolist()
