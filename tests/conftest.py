"""What the tests share: the embedded model, a random Qwen3 of quite another shape, and transformers as the oracle."""

import pytest
import torch

from tinyengine import load_model
from tinyengine.model.untrained import save_random_model
from tinyengine.oracle import Oracle


def pytest_collection_modifyitems(items):
    """Tests marked `cuda` run where there is a GPU, and are listed as skipped where there is none.

    Files with slow tests come first: a worker takes a whole file, and a long one taken last leaves the others idle."""
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("browser")}
    items.sort(key=lambda item: item.path not in long)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU on this machine"))


@pytest.fixture(scope="session")
def tiny():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="session")
def tiny_oracle(tiny):
    return Oracle(tiny.folder)


@pytest.fixture(scope="session")
def random_folder(tmp_path_factory):
    """A random Qwen3 unlike the embedded one: GQA ratio 4, head_dim that is not hidden / heads, untied head, sharded.

    The weights are large (std 0.1), so that outputs differ from request to request: with the usual 0.02 nearly every
    model says one token for ever, and a wrong batch would go unnoticed."""
    folder = tmp_path_factory.mktemp("random-qwen3")
    save_random_model(
        folder,
        max_shard_size="100KB",
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.1,
        eos_token_id=5,
        pad_token_id=0,
    )
    return folder


@pytest.fixture(scope="session")
def random_model(random_folder):
    return load_model(random_folder, device="cpu")


@pytest.fixture(scope="session")
def random_oracle(random_folder):
    return Oracle(random_folder)
