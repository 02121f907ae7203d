"""A Qwen3 with random weights, for benchmarks and for tests that compare with transformers."""

from pathlib import Path

import torch


def save_random_model(folder: Path, dtype: torch.dtype = torch.float32, max_shard_size: str = "50GB", **config):
    """Writes a Qwen3 in Hugging Face layout, the same for the same config. config: of transformers' Qwen3Config.

    initializer_range is the weights' standard deviation: with the usual 0.02 small models say one token for ever.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM  # takes seconds

    torch.manual_seed(0)
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    model = Qwen3ForCausalLM(Qwen3Config(**ends | config))
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
