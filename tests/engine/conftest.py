"""An engine of each stage for the seven requests, and what they get alone."""

import pytest
from helpers.prompts import LIMITS, PROMPTS
from helpers.serve import iteration_engine
from helpers.tokenizer import byte_tokenizer

from tinyengine import STAGES
from tinyengine.qwen3 import Qwen3


@pytest.fixture(scope="session")
def alone(random_oracle):
    return [random_oracle.generate(prompt, params) for prompt, params in zip(PROMPTS, LIMITS, strict=True)]


@pytest.fixture(params=STAGES)
def engine(request, random_model):
    return iteration_engine(random_model, request.param, max_num_seqs=3, num_slots=128)


@pytest.fixture
def talker(random_model):
    """The random model with a tokenizer whose tokens end anywhere in a character."""
    model = Qwen3(random_model.config)
    model.__dict__.update(random_model.__dict__)
    model.tokenizer = byte_tokenizer()
    return model
