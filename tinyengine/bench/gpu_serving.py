"""Requests served on a CUDA GPU: what each switch gains, and transformers' continuous batching on the same requests."""

import random
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from tinyengine.bench.gpu import BUDGET, QWEN3_06B, SWITCHES, free_memory, switched
from tinyengine.bench.peers import Task, TaskList, generate_batch, short_long_mix, transformers_model
from tinyengine.bench.table import Table, number
from tinyengine.model.load import load_model
from tinyengine.model.untrained import save_random_model
from tinyengine.params import SamplingParams

PEER = "transformers, generate_batch"


@dataclass(frozen=True)
class AllAtOnce(TaskList):
    """Every request has a batch slot from the start."""

    @property
    def num_slots(self) -> int:
        """Enough for all to the end: no request is preempted."""
        return sum(len(task.prompt) + task.max_tokens + 16 for task in self.tasks)


def run(
    device: str = "cuda",
    shapes: dict = QWEN3_06B,
    dtype: torch.dtype = torch.bfloat16,
    requests: int = 256,
    longest: int = 1024,
    loads: tuple[TaskList, ...] | None = None,
) -> dict:
    """{workload: rows of "name", "seconds", "tokens_per_s", "iterations"}. requests, longest: of nano-vllm's benchmark;
    loads: for the embedded model, short_long_mix if None."""
    results = {}
    with TemporaryDirectory() as folder:
        save_random_model(Path(folder), dtype, **shapes)
        load = nano_vllm(requests, longest, shapes["vocab_size"])
        model = load_model(folder, device, dtype)
        results[load.name] = serving(model, load)
        del model
        free_memory(device)
        results[load.name].append(_peer(transformers_model(folder, device).to(dtype), load))
        free_memory(device)
    tiny = load_model("tiny", device)
    for load in loads or (short_long_mix(),):
        results[f"{load.name}, embedded model"] = serving(tiny, load)
    return {"workloads": results}


def nano_vllm(requests: int, longest: int, vocab_size: int) -> TaskList:
    """The requests of nano-vllm's bench.py (seed 0: prompts and outputs of 100 to 1,024 tokens)."""
    rng = random.Random(0)
    least = min(100, longest)
    vocabulary = min(10_000, vocab_size - 1)
    prompts = [[rng.randint(0, vocabulary) for _ in range(rng.randint(least, longest))] for _ in range(requests)]
    tasks = [Task(prompt, rng.randint(least, longest)) for prompt in prompts]
    return AllAtOnce("nano-vllm's bench", tuple(tasks), max_num_seqs=requests)


def serving(model, load: TaskList) -> list[dict]:
    """Greedy with each of the switches, and drawn (temperature 0.6, as nano-vllm has it) with all on. The first run of
    each, which compiles and records, does not count."""
    rows = []
    for name, switches in [*SWITCHES.items(), ("all on, drawn", {**SWITCHES["all on"], "temperature": 0.6})]:
        switches = dict(switches)
        temperature = switches.pop("temperature", 0.0)
        sizes = {"max_num_seqs": load.max_num_seqs, "num_slots": load.num_slots, "max_num_batched_tokens": BUDGET}
        params = [SamplingParams(task.max_tokens, temperature, ignore_eos=True) for task in load.tasks]
        engine = switched(model, switches, **sizes)
        for _ in range(2):
            iterations = len(engine.trace.iterations)
            started = perf_counter()
            engine.generate([task.prompt for task in load.tasks], params)
            took = perf_counter() - started
        iterations = len(engine.trace.iterations) - iterations
        rows.append(
            {
                "name": name,
                "seconds": took,
                "tokens_per_s": load.output_tokens / took,
                "iterations": iterations,
            }
        )
        del engine
        free_memory(model.device.type)
    return rows


def _peer(hf, load: TaskList) -> dict:
    try:
        generate_batch(hf, load, BUDGET)
        took = generate_batch(hf, load, BUDGET).wall
    except Exception as error:  # its API is young: what we measured of ourselves must not be lost with it
        return {"name": PEER, "error": f"{type(error).__name__}: {error}"}
    return {"name": PEER, "seconds": took, "tokens_per_s": load.output_tokens / took}


def table(result: dict) -> Table:
    rows, errors = [], ""
    for name, runs in result["workloads"].items():
        rows.append((name, *[""] * 3))
        peer = next((one.get("tokens_per_s") for one in runs if one["name"] == PEER), None)
        for one in runs:
            rate = one.get("tokens_per_s")
            gain = f"{rate / peer:.1f}x" if rate and peer else "-"
            rows.append((f"- {one['name']}", number(one.get("seconds"), 2), number(rate), gain))
            errors += f" {one['name']}: {one['error']}" if "error" in one else ""
    note = (
        "Output tokens a second, greedy but for the last of ours (temperature 0.6); the second run of each, since the "
        f"first one compiles and records. speed: against transformers' continuous batching.{errors}"
    )
    return Table(("engine", "seconds", "tok/s", "speed"), rows, note)
