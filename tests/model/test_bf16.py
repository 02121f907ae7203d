"""In bf16 a model behaves as transformers' does, also past position 256: behind that, bf16 has not every whole number,
so whatever of the rotary angles is rounded to it turns tokens to a neighbour's place."""

import random

import pytest
import torch
from transformers import Qwen3ForCausalLM

from tinyengine import Engine, SamplingParams, load_model
from tinyengine.model.text import question
from tinyengine.oracle import Oracle
from tinyengine.qwen3 import Qwen3
from tinyengine.request import Request
from tinyengine.workload import chat

PARAMS = SamplingParams(max_tokens=8)
both_forms = pytest.mark.parametrize("fast", [pytest.param(True, id="fast"), pytest.param(False, id="textbook")])


@pytest.fixture
def half():
    return load_model("tiny", "cpu", torch.bfloat16)


@pytest.fixture(scope="module")
def answers(tiny):
    """Questions whose answer stands hundreds of tokens before their end, and what transformers answers in bf16."""
    rng, oracle = random.Random(0), Oracle(tiny.folder, dtype=torch.bfloat16)
    texts = [chat(question("lookup", rng, n=n)[0]) for n in (80, 120, 160, 200)]
    prompts = [tiny.tokenizer(text).input_ids for text in texts]
    assert min(map(len, prompts)) > 300
    return prompts, [oracle.generate(prompt, PARAMS) for prompt in prompts]


@pytest.fixture(scope="module")
def references(tiny, answers):
    """The hidden states of one of these texts by transformers, in float32 and in bf16."""

    @torch.inference_mode()
    def hidden(dtype):
        model = Qwen3ForCausalLM.from_pretrained(tiny.folder, dtype=dtype).eval()
        return model.model(torch.tensor([answers[0][2]])).last_hidden_state[0].float()

    return hidden(torch.float32), hidden(torch.bfloat16)


def says_the_same(model, answers, fast: bool) -> bool:
    prompts, right = answers
    outputs = Engine(model, num_slots=4096, fast=fast).generate(prompts, PARAMS)
    return [output.token_ids for output in outputs] == right


@torch.inference_mode()
def error(model, answers, references, fast: bool) -> float:
    """How much further from the states in float32 ours are than those of transformers in bf16, past position 256."""
    engine, tokens = Engine(model, "paged", num_slots=4096, fast=fast), answers[0][2]
    engine.scheduler.add(Request("it", tokens, PARAMS))
    batch = engine.attention.layout(engine.scheduler.schedule(), engine.memory, 1, model.device)
    ours = model(batch.tokens, batch.positions, engine.attention(batch), engine.operators).float()
    exact, theirs = (states[257:] for states in references)
    return ((ours[257:] - exact).norm() / (theirs - exact).norm()).item()


@both_forms
def test_tokens_and_hidden_states_are_those_of_transformers(half, answers, references, fast):
    assert says_the_same(half, answers, fast)
    assert error(half, answers, references, fast) < 1.2  # both round on their way, in different places


def positions(position, frequency, dtype):
    return torch.outer(position.to(dtype).float(), frequency)


def frequencies(position, frequency, dtype):
    return torch.outer(position, frequency.to(dtype).float())


def angles(position, frequency, dtype):
    return torch.outer(position, frequency).to(dtype).float()


@both_forms
@pytest.mark.parametrize(("rounded", "least"), [(positions, 20), (angles, 5), (frequencies, 1.3)])
def test_a_rotary_table_made_in_bf16_is_caught(half, answers, references, monkeypatch, rounded, least, fast):
    """A wrong frequency is the mildest: it moves all tokens alike, and their distances by less."""
    def rope_tables(self):
        config = self.config
        frequency = config.rope_theta ** -(torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        angle = rounded(torch.arange(config.max_position_embeddings).float(), frequency, self.dtype).repeat(1, 2)
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)

    monkeypatch.setattr(Qwen3, "rope_tables", rope_tables)
    assert error(half, answers, references, fast) > least
    if rounded is positions:
        assert not says_the_same(half, answers, fast)
