"""A decode step as one compiled call gives what the model gives layer by layer, to the bit, and only where it may."""

import copy
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.serve import Ask, assert_nothing_left, iteration_engine, serve
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyengine
from tinyengine import Engine, SamplingParams, load_model
from tinyengine.fast.attention import FEW_QUERIES
from tinyengine.fast.decode import DecodeInOneCall
from tinyengine.fast.operators import PackedForOneThread
from tinyengine.operators import TORCH

STAGES = ("selective", "paged", "chunked", "invariant")


@pytest.fixture(autouse=True)
def _one_thread(random_model):
    """With one thread our own product serves every model; of more there is a test below."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if PackedForOneThread.why_not(random_model):
        torch.set_num_threads(threads)
        pytest.skip("needs numba, and an x86 CPU with AVX2")
    yield
    torch.set_num_threads(threads)


class Spy:
    """Runs each step that suits both ways, and keeps how many rows it had."""

    def __init__(self, engine: Engine):
        self.cache, self.forward, self.rows = engine.attention.cache, engine.forward, []
        engine.forward = self

    def __call__(self, batch) -> torch.Tensor:
        if not self.forward.suits(batch):
            return self.forward(batch)
        self.rows.append(len(batch.tokens))
        hidden = self.forward(batch)
        written = [arena.flatten(1, 2)[:, batch.slot_mapping] for arena in (self.cache.keys, self.cache.values)]
        assert torch.equal(hidden, self.forward.otherwise(batch))
        again = [arena.flatten(1, 2)[:, batch.slot_mapping] for arena in (self.cache.keys, self.cache.values)]
        assert all(torch.equal(*pair) for pair in zip(written, again, strict=True))
        return hidden


def is_one_call(engine: Engine) -> bool:
    return isinstance(engine.forward, DecodeInOneCall)


def next_batch(engine: Engine):
    plan = engine.scheduler.schedule()
    return engine.attention.layout(plan, engine.memory, engine.scheduler.height(plan), engine.model.device)


def decoding(model, **options) -> Engine:
    """An engine whose next step is a decode."""
    engine = iteration_engine(model, "chunked", num_slots=64, **options)
    engine.add_request([7, 8, 9], SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    return engine


@settings(max_examples=25, deadline=None)
@given(
    stage=st.sampled_from(STAGES),
    block_size=st.sampled_from([1, 4, 16]),
    max_num_seqs=st.integers(1, 9),
    num_speculative_tokens=st.sampled_from([0, 0, 3, 6]),
    seed=st.integers(0, 99),
)
def test_no_bit_differs_from_the_model_layer_by_layer(
    random_model, stage, block_size, max_num_seqs, num_speculative_tokens, seed
):
    rng = random.Random(seed)
    options = {} if stage == "selective" else dict(num_speculative_tokens=num_speculative_tokens)
    engine = iteration_engine(
        random_model, stage, max_num_seqs=max_num_seqs, num_slots=1024, block_size=block_size, **options
    )
    spy = Spy(engine)
    text = [rng.randrange(6, 300) for _ in range(5)]
    serve(engine, [
        Ask(text * rng.randint(1, 9), SamplingParams(max_tokens=rng.randint(2, 12), ignore_eos=True))
        for _ in range(max_num_seqs + 2)
    ])  # fmt: skip
    assert spy.rows and max(spy.rows) <= max_num_seqs * FEW_QUERIES
    assert_nothing_left(engine)


@pytest.mark.parametrize("stage", STAGES)
def test_decodes_are_compiled_and_prompts_are_not(random_model, stage):
    engine = iteration_engine(random_model, stage, num_slots=256)
    spy = Spy(engine)
    serve(engine, [Ask([7] * 20, SamplingParams(max_tokens=5, ignore_eos=True))])
    assert spy.rows == [1] * 4
    assert not is_one_call(Engine(random_model, stage, num_slots=256, compiled_decode=False))
    with pytest.raises(ValueError, match="compiled_decode is 1, but must be True or False"):
        Engine(random_model, stage, num_slots=256, compiled_decode=1)


@pytest.mark.parametrize("stage", ["static", "orca"])
def test_a_stage_with_padded_attention_is_left_alone(random_model, stage):
    assert not is_one_call(Engine(random_model, stage, num_slots=256))


def test_what_is_not_all_compiled_is_left_to_the_model(random_model):
    assert is_one_call(Engine(random_model, num_slots=64))
    assert not is_one_call(Engine(random_model, num_slots=64, attention_backend="torch"))
    assert not is_one_call(Engine(copy.deepcopy(random_model).bfloat16(), num_slots=64))


def test_a_weight_of_another_dtype_is_left_to_the_model(random_model):
    model = copy.deepcopy(random_model)
    model.layers[1].mlp.down_proj.double()
    assert not is_one_call(Engine(model, num_slots=64))


def test_a_model_without_layers_is_left_to_the_model(random_model):
    model = copy.deepcopy(random_model)
    model.layers = model.layers[:0]
    assert not is_one_call(Engine(model, num_slots=64))


def test_a_numba_that_compiles_for_another_processor_is_done_without():
    code = "from tinyengine.fast.kernels.cpu import linear; print(linear.why_not(), linear.WIDTH)"
    for variables in ({"NUMBA_CPU_NAME": "generic"}, {"NUMBA_ENABLE_AVX": "0"}):
        environment = os.environ | variables
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout == "the processor has no AVX2, or numba compiles for another one 16\n"


def test_with_more_threads_few_rows_of_a_small_model_are_compiled(random_model, monkeypatch):
    monkeypatch.setattr(PackedForOneThread, "FEW_ROWS", 3)
    assert is_one_call(Engine(random_model, num_slots=256))
    torch.set_num_threads(2)
    engine = iteration_engine(random_model, "chunked", num_slots=256)
    spy = Spy(engine)
    serve(engine, [Ask([9] * 9, SamplingParams(max_tokens=4 + 3 * n, ignore_eos=True)) for n in range(4)])
    assert spy.rows == [3] * 3 + [2] * 3 + [1] * 3  # four decodes at once are left to several threads


def test_with_more_threads_a_large_model_is_left_to_them(random_model, monkeypatch):
    monkeypatch.setattr(PackedForOneThread, "SMALL", 0)
    assert is_one_call(Engine(random_model, num_slots=256))
    torch.set_num_threads(2)
    assert not is_one_call(Engine(random_model, num_slots=256))


def test_the_invariant_stage_leaves_no_rows_to_another_product(random_model, monkeypatch):
    monkeypatch.setattr(PackedForOneThread, "FEW_ROWS", 3)
    torch.set_num_threads(2)
    operators = Engine(random_model, "invariant", num_slots=256).operators
    weight, x = random_model.layers[0].mlp.down_proj.weight, torch.randn(9, 96)
    whole = operators.linear(x, weight)
    assert all(torch.equal(operators.linear(x[row : row + 1], weight)[0], whole[row]) for row in range(9))


def test_a_model_of_few_columns_is_left_to_the_model(tmp_path):
    from tinyengine.model.untrained import save_random_model

    shapes = dict(vocab_size=300, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=4)
    save_random_model(tmp_path, hidden_size=8, intermediate_size=12, max_position_embeddings=64, **shapes)
    engine = Engine(load_model(tmp_path, device="cpu"), num_slots=64)
    assert not is_one_call(engine) and len(engine.generate([1, 2, 3])[0].token_ids) == 16


@pytest.mark.parametrize("change", ["norm", "linear", "embedding", "dtype and back", "replaced", "assigned"])
def test_weights_that_have_changed_are_those_of_the_next_engine(random_model, change):
    """An engine's own stay as they are while it serves: that is its condition."""
    model, prompt = copy.deepcopy(random_model), [7, 8, 9]
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    before = Engine(model, num_slots=64).generate(prompt, params)[0].token_ids
    layer = model.layers[1]
    weight = {
        "norm": layer.self_attn.q_norm.weight,
        "linear": layer.mlp.down_proj.weight,
        "embedding": model.embed_tokens.weight,
    }.get(change, layer.mlp.down_proj.weight)
    with torch.no_grad():
        if change == "dtype and back":
            for _ in range(4):  # some weight comes to lie where an earlier one lay
                model.bfloat16().float()
            weight.neg_()
        elif change == "replaced":
            layer.mlp.down_proj.weight = torch.nn.Parameter(-weight)
        elif change == "assigned":
            model.load_state_dict({name: -own for name, own in model.state_dict().items()}, assign=True)
        else:
            weight.neg_()
    engine = Engine(model, num_slots=64)
    after = engine.generate(prompt, params)[0].token_ids
    assert is_one_call(engine) and after != before
    assert after == Engine(model, num_slots=64, fast=False).generate(prompt, params)[0].token_ids


@pytest.mark.parametrize("part", ["model", "attention", "operators"])
def test_a_part_that_was_replaced_is_asked(random_model, part):
    engine = decoding(random_model)
    batch, ways = next_batch(engine), []
    engine.forward.run = lambda batch: ways.append("one call")
    engine.forward.otherwise = lambda batch: ways.append("layer by layer")
    engine.forward(batch)
    setattr(engine, part, copy.copy(getattr(engine, part)))
    engine.forward(batch)
    assert ways == ["one call", "layer by layer"]


def test_operators_that_know_no_packed_weights_are_asked(random_model):
    engine = decoding(random_model)
    engine.operators = TORCH
    assert len(engine.step()) == 1


def test_an_arena_that_was_replaced_is_written(random_model):
    engine = decoding(random_model)
    batch = next_batch(engine)
    engine.attention.cache = copy.copy(engine.attention.cache)
    engine.forward.run = None
    with torch.inference_mode():
        engine.forward(batch)


@pytest.mark.parametrize(
    "column, number, message",
    [
        ("tokens", 300, "index out of range"),
        ("tokens", -1, "index out of range"),
        ("positions", 512, "index 512 is out of bounds"),
        ("positions", 10**9, "index 1000000000 is out of bounds"),
    ],
)
def test_no_token_or_position_outside_of_the_model_is_read(random_model, column, number, message):
    engine = decoding(random_model)
    batch = next_batch(engine)
    getattr(batch, column)[0] = number
    with pytest.raises(IndexError, match=message), torch.inference_mode():
        engine.forward(batch)


@pytest.mark.parametrize("column", ["tokens", "positions", "slot_mapping"])
def test_columns_of_different_lengths_are_an_error(random_model, column):
    """A scheduler that counts wrongly makes them."""
    for change in (lambda numbers: numbers[:0], lambda numbers: numbers.repeat(3)):
        engine = decoding(random_model)
        batch = next_batch(engine)
        setattr(batch, column, change(getattr(batch, column)))
        with pytest.raises((IndexError, RuntimeError)), torch.inference_mode():
            engine.forward(batch)


@pytest.mark.parametrize("stage", STAGES)
def test_foreign_slots_are_an_error_that_says_so_and_can_be_tried_again(random_model, stage):
    engine = iteration_engine(random_model, stage, num_slots=64)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=6, ignore_eos=True))
    engine.step()
    right = engine.memory.slots
    engine.memory.slots = lambda *span: [slot + 64 for slot in right(*span)]
    with pytest.raises(IndexError, match="the arena has slots 0 to 63: look at `slots` of the scheduler's memory"):
        engine.step()
    engine.memory.slots = right
    while engine.has_unfinished():
        engine.step()
    whole = Engine(random_model, stage, num_slots=64, compiled_decode=False)
    (output,) = engine.outputs.values()
    assert output.token_ids == whole.generate([1, 2, 3], SamplingParams(max_tokens=6, ignore_eos=True))[0].token_ids


def test_foreign_blocks_are_an_error_that_says_so(random_model):
    engine = decoding(random_model)
    batch = next_batch(engine)
    batch.block_table[0, 0] = 4
    with pytest.raises(IndexError, match="`table` names 4 to 4, but the arena has blocks 0 to 3: look at the `table`"):
        engine.forward(batch)


@pytest.mark.slow
def test_an_edit_of_any_kernel_is_heard_by_all(tmp_path):
    """What numba has kept of a step calls what it has kept of other files, as they were then."""
    code = (
        "import torch; torch.set_num_threads(1);"
        "from tinyengine import Engine, load_model;"
        "engine = Engine(load_model('tiny', device='cpu'), num_slots=64); engine.add_request([300] * 9); engine.step();"
        "plan = engine.scheduler.schedule();"
        "batch = engine.attention.layout(plan, engine.memory, 1, torch.device('cpu'));"
        "torch.set_grad_enabled(False); hidden = engine.forward.run(batch);"
        "print(torch.equal(hidden, engine.forward.otherwise(batch)), hidden.sum().item())"
    )
    shutil.copytree(Path(tinyengine.__file__).parent, tmp_path / "tinyengine", ignore=shutil.ignore_patterns("*.nb?"))

    def run() -> list[str]:
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    before = run()
    kernels = tmp_path / "tinyengine" / "fast" / "kernels" / "cpu" / "loops.py"
    text = kernels.read_text(encoding="utf-8")
    line = "* gate_up[row, size + i]"
    assert text.count(line) == 1
    kernels.write_text(text.replace(line, "* -gate_up[row, size + i]"), encoding="utf-8")
    after = run()
    assert before[0] == after[0] == "True" and before[1] != after[1]
