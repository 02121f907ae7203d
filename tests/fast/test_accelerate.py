"""What `fast` changes in an engine, and that nothing of the textbook leans on it."""

import gc
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from helpers.serve import iteration_engine

import tinyengine
from tinyengine import STAGES, Engine, SamplingParams, sampler
from tinyengine.attention import KVCache, PagedAttention
from tinyengine.fast import OPTIONS, _with_spare_block
from tinyengine.operators import TORCH, Operators

PROMPTS = [[7, 8, 9], [30] * 40, [5] * 17, list(range(6, 90))]
PARAMS = [
    SamplingParams(max_tokens=5, ignore_eos=True),
    SamplingParams(max_tokens=20, temperature=0.8, seed=1, top_k=20),
    SamplingParams(max_tokens=12, repetition_penalty=1.3, ignore_eos=True),
    SamplingParams(max_tokens=9, temperature=1.0, top_p=0.7, seed=2),
]


def tokens(model, stage: str, **options) -> list[list[int]]:
    engine = iteration_engine(model, stage, max_num_seqs=3, num_slots=512, max_num_batched_tokens=30, **options)
    return [output.token_ids for output in engine.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("stage", STAGES)
def test_the_tokens_are_the_same(random_model, stage):
    assert tokens(random_model, stage) == tokens(random_model, stage, fast=False)


@pytest.mark.parametrize("stage", STAGES)
def test_without_it_an_engine_is_the_textbook(random_model, stage):
    engine = Engine(random_model, stage, num_slots=64, fast=False)
    kind = STAGES[stage][2]
    assert type(engine.attention) is kind and engine.attention.layout is kind.layout
    assert type(engine.attention.cache) is KVCache and engine.draw is sampler.gumbel_max
    assert not {"forward", "logits", "step"} & vars(engine).keys()
    if stage != "invariant":
        assert engine.operators is TORCH
    parts = (type(engine.attention), type(engine.operators), engine.attention.layout, engine.draw)
    assert not [part for part in parts if part.__module__.startswith("tinyengine.fast")]
    for option in OPTIONS:
        with pytest.raises(ValueError, match=f"{option} is no option of stage"):
            Engine(random_model, stage, num_slots=64, fast=False, **{option: True})


def test_an_attention_that_is_no_stages_stays(random_model, monkeypatch):
    class Mine(PagedAttention):
        operators = staticmethod(lambda model: mine)

    mine = Operators()
    monkeypatch.setitem(STAGES, "chunked", (*STAGES["chunked"][:2], Mine))
    engine = Engine(random_model, num_slots=512)
    assert type(engine.attention) is Mine and engine.operators is mine and "forward" not in vars(engine)
    assert type(engine.attention.cache) is KVCache
    with pytest.raises(ValueError, match="attention_backend is 'torch', but Mine computes in one way only"):
        Engine(random_model, num_slots=64, attention_backend="torch")
    assert [o.token_ids for o in engine.generate(PROMPTS, PARAMS)] == tokens(random_model, "chunked")


def test_the_arena_with_a_spare_block_takes_the_place_of_the_one_without(random_model):
    engine = Engine(random_model, num_slots=64, fast=False)
    before = engine.attention.cache.keys.shape
    cache = _with_spare_block(engine)
    assert engine.attention.cache is None  # its memory is free before the new one's is taken
    assert cache.keys.shape == cache.values.shape == (before[0], before[1] + 1, *before[2:])


@pytest.mark.slow
def test_a_copy_of_the_package_without_the_folder_serves_every_stage(random_folder, random_model, tmp_path):
    package = Path(tinyengine.__file__).parent
    shutil.copytree(package, tmp_path / "tinyengine", ignore=shutil.ignore_patterns("fast", "course", "__pycache__"))
    program = f"""
import sys
sys.modules["numba"] = sys.modules["triton"] = None  # importing one is an ImportError
import torch
torch.set_num_threads({torch.get_num_threads()})
import tinyengine
from tinyengine import STAGES, Engine, SamplingParams, load_model
assert tinyengine.__file__.startswith({str(tmp_path)!r})
model = load_model({str(random_folder)!r}, device="cpu")
params = SamplingParams(max_tokens=6, ignore_eos=True)
for stage in STAGES:
    engine = Engine(model, stage, num_slots=256)
    print([output.token_ids for output in engine.generate({PROMPTS!r}, params)])
try:
    Engine(model, num_slots=64, attention_backend="torch")
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *got, refusal = done.stdout.splitlines()
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    right = Engine(random_model, num_slots=256, fast=False).generate(PROMPTS, params)
    assert got == [str([output.token_ids for output in right])] * len(STAGES)
    assert refusal.startswith("attention_backend is no option of stage 'chunked'")


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_an_arena_goes_with_its_engine(random_model, stage, fast):
    """At once, and not when the garbage collector comes by: the next engine may need the memory."""
    engine = Engine(random_model, stage, num_slots=64, fast=fast)
    engine.generate(PROMPTS[0], PARAMS[0])
    arena = weakref.ref(engine.attention.cache.keys)
    gc.collect()
    gc.disable()
    try:
        del engine
        assert arena() is None
    finally:
        gc.enable()
