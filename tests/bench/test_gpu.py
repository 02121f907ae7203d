"""The GPU's benchmarks run in small on a CPU: every number is there, and the tables tell them."""

import pytest
import torch
from safetensors.torch import load_file

from tinyengine import load_model
from tinyengine.bench import BENCHMARKS, ON_CUDA, benchmark, gpu, gpu_serving, limits
from tinyengine.bench.peers import Task, TaskList

SHAPES = dict(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)


def test_they_are_benchmarks_of_their_own():
    assert not set(ON_CUDA) & set(BENCHMARKS)
    assert [benchmark(name) for name in ON_CUDA] == [gpu, gpu_serving]


@pytest.mark.slow
def test_steps_in_small():
    result = gpu.run(
        "cpu", SHAPES, torch.float32, batches=(1, 3), contexts=(20,), prompt=64, megabytes=1, matrix=32, checked=3
    )
    assert [(row["requests"], row["context"]) for row in result["decode"]] == [(1, 20), (3, 20)]
    for row in result["decode"]:
        assert row["engine"].keys() == gpu.SWITCHES.keys() == row["step"].keys() | {"no overlap"}
        assert min(*row["engine"].values(), *row["step"].values(), row["limit"], row["share_of_bandwidth"]) > 0
    same = result["same_tokens"]
    assert {same[name] for name in gpu.SWITCHES} == {same["of"]} == {3}
    table = gpu.table(result)
    assert len(table.rows) == 2 * (1 + len(gpu.SWITCHES)) + 1 and "TB/s by a copy" in table.markdown() + table.note


def test_the_bytes_of_a_step_are_those_of_weights_and_keys(tiny):
    model = load_model("tiny", "cpu", torch.bfloat16)
    weights = sum(weight.numel() for weight in load_file(model.folder / "model.safetensors").values())
    config = model.config
    assert limits.weight_bytes(model) == 2 * weights and config.tie_word_embeddings  # the file has the shared one once
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert limits.kv_bytes(model) == 2 * per_token


@pytest.mark.slow
def test_serving_in_small():
    tiny = TaskList("toy", (Task([300] * 9, 4), Task([400] * 3, 6)), max_num_seqs=2)
    result = gpu_serving.run("cpu", SHAPES, torch.float32, requests=3, longest=8, loads=(tiny,))
    ours, embedded = result["workloads"].values()
    assert [row["name"] for row in embedded] == [*gpu.SWITCHES, "all on, drawn"]
    assert [row["name"] for row in ours] == [*gpu.SWITCHES, "all on, drawn", gpu_serving.PEER]
    assert all(row["tokens_per_s"] > 0 for row in [*ours, *embedded]), ours[-1]
    assert "toy, embedded model" in gpu_serving.table(result).markdown()


def test_nano_vllms_requests_are_those_of_its_benchmark():
    load = gpu_serving.nano_vllm(256, 1024, 151936)
    lengths = [len(task.prompt) for task in load.tasks] + [task.max_tokens for task in load.tasks]
    assert len(load.tasks) == 256 and 100 <= min(lengths) < 110 and 1015 < max(lengths) <= 1024
    assert load.output_tokens == 133_966  # as its README has it
    assert max(max(task.prompt) for task in load.tasks) <= 10_000
