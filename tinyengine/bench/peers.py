"""The same work by transformers' three ways to generate and by every stage, and how far each is from the limit.

All run in one process and take turns; tokens are compared. The model is a Qwen3 of 8 layers of 256 with random weights
(std 0.08: with the usual 0.02 its outputs hardly differ), in float32. The limit of a stage is what its schedule cannot
do without: the matrix products of every iteration, with their operands in place.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch

from tinyengine.batch import Batch
from tinyengine.bench.limits import PAGE, products
from tinyengine.bench.table import Table, number
from tinyengine.engine import Engine
from tinyengine.metrics import measure
from tinyengine.model.load import load_model
from tinyengine.model.untrained import save_random_model
from tinyengine.operators import Operators
from tinyengine.params import SamplingParams
from tinyengine.trace import Trace
from tinyengine.workload import VOCABULARY, workload

STAGES_COMPARED = ("static", "orca", "selective", "paged", "chunked")  # what invariance costs has its own table
BUDGET = 128  # of the stages that have one: the prompts are of up to 256 and of 512 tokens, and are to be cut
SHAPES = dict(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    initializer_range=0.08,
    pad_token_id=0,
)


@dataclass(frozen=True)
class Task:
    """A request as every peer takes it: it runs to max_tokens."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class TaskList:
    """A workload for all peers: every request is there at the start."""

    name: str
    tasks: tuple[Task, ...]
    max_num_seqs: int

    @property
    def num_slots(self) -> int:
        """Twice what a full batch can need."""
        return 2 * self.max_num_seqs * max(len(task.prompt) + task.max_tokens for task in self.tasks)

    @property
    def output_tokens(self) -> int:
        return sum(task.max_tokens for task in self.tasks)


def mixed(requests: int = 24, longest: int = 256, max_num_seqs: int = 8) -> TaskList:
    """Prompts of 16 to `longest` tokens, outputs of 16 to half of that, all lengths equally likely."""
    rng = random.Random(0)
    tasks = []
    for _ in range(requests):
        prompt = [rng.randrange(4, VOCABULARY) for _ in range(rng.randint(16, longest))]
        tasks.append(Task(prompt, rng.randint(16, longest // 2)))
    return TaskList(f"mixed-{max_num_seqs}", tuple(tasks), max_num_seqs)


def short_long_mix() -> TaskList:
    load = workload("short_long_mix")
    tasks = tuple(Task(list(item.prompt), item.params.max_tokens) for item in load.items)
    return TaskList(load.name, tasks, load.max_num_seqs)


@dataclass(frozen=True)
class Run:
    """Seconds by the clock and of the processor, and the tokens; trace and operators: of our engines only."""

    wall: float
    cpu: float
    tokens: list[list[int]]
    trace: Trace | None = None
    operators: Operators | None = None


def run(
    device: str = "cpu",
    loads: tuple[TaskList, ...] | None = None,
    stages: tuple[str, ...] = STAGES_COMPARED,
    repeats: int = 5,
) -> dict:
    """{"repeats", "loads": {name: {"requests", "max_num_seqs", "output_tokens", "rows": [...]}}}; of a row: "name",
    "wall_s", "cpu_s", "tokens_per_s", "exact", and for a stage "iterations", "ttft_p50_ms", "tbt_p99_ms", "limit_s"."""
    with TemporaryDirectory() as folder:
        save_random_model(Path(folder), **SHAPES)
        hf, ours = transformers_model(folder, device), load_model(folder, device, torch.float32)
    results = {}
    for load in loads or (mixed(), mixed(max_num_seqs=24), short_long_mix()):
        runners: dict[str, Callable[[], Run]] = {
            "transformers, one by one": partial(one_by_one, hf, load),
            "transformers, static batches": partial(static_batches, hf, load),
            "transformers, generate_batch": partial(generate_batch, hf, load),
            "ours, one by one, layer by layer": partial(serve, ours, load, "paged", LayerByLayer),
            "ours, one by one": partial(serve, ours, load, "paged", PerRequestForward),
            **{f"ours, {stage}": partial(serve, ours, load, stage) for stage in stages},
        }
        results[load.name] = _compare(load, runners, ours, repeats)
    return {"repeats": repeats, "loads": results}


def _compare(load: TaskList, runners: dict[str, Callable[[], Run]], model, repeats: int) -> dict:
    runs: dict[str, list[Run]] = {name: [] for name in runners}
    limits: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(repeats):
        for name, runner in runners.items():
            done = runner()
            runs[name].append(done)
            if done.trace:
                limits[name].append(products(model, done.operators, done.trace.iterations))
    right = next(iter(runs.values()))[0].tokens
    return {
        "requests": len(load.tasks),
        "max_num_seqs": load.max_num_seqs,
        "output_tokens": load.output_tokens,
        "rows": [_row(name, done, limits[name], right, load) for name, done in runs.items()],
    }


def _row(name: str, runs: list[Run], limits: list[float], right: list[list[int]], load: TaskList) -> dict:
    wall = median(run.wall for run in runs)
    row = {
        "name": name,
        "wall_s": wall,
        "cpu_s": median(run.cpu for run in runs),
        "tokens_per_s": load.output_tokens / wall,
        "exact": all(run.tokens == right for run in runs),
    }
    if limits:
        measured = [measure(run.trace) for run in runs]
        row["iterations"] = measured[0].iterations
        row["ttft_p50_ms"] = 1000 * median(m.ttft.p50 for m in measured)
        row["tbt_p99_ms"] = 1000 * median(m.tbt.p99 for m in measured)
        row["limit_s"] = median(limits)
    return row


def transformers_model(folder: str | Path, device: str):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    model.generation_config.eos_token_id = None  # every request runs to max_tokens
    return model


def one_by_one(model, load: TaskList) -> Run:
    """`generate`, request after request."""
    return _timed(lambda: [_generate(model, [task])[0] for task in load.tasks])


def static_batches(model, load: TaskList) -> Run:
    """`generate` on left-padded batches, each until its longest request has ended."""
    starts = range(0, len(load.tasks), load.max_num_seqs)
    batches = [load.tasks[start : start + load.max_num_seqs] for start in starts]
    return _timed(lambda: [tokens for tasks in batches for tokens in _generate(model, tasks)])


def _generate(model, tasks: Sequence[Task]) -> list[list[int]]:
    width = max(len(task.prompt) for task in tasks)
    missing = [width - len(task.prompt) for task in tasks]
    ids = torch.tensor([[0] * n + task.prompt for n, task in zip(missing, tasks)], device=model.device)
    mask = torch.tensor([[0] * n + [1] * (width - n) for n in missing], device=model.device)
    most = max(task.max_tokens for task in tasks)
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=most, do_sample=False, pad_token_id=0)
    return [row[width : width + task.max_tokens] for row, task in zip(out.tolist(), tasks, strict=True)]


def generate_batch(model, load: TaskList, max_batch_tokens: int = 512) -> Run:
    """transformers' continuous batching, through the manager that `generate_batch` uses: that one has a single
    max_new_tokens for all. Its sizes are pinned: left to itself it measures free memory and takes all of it. The clock
    runs from the first request to the last token, as for us: without set-up."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    generation = GenerationConfig(max_new_tokens=1, do_sample=False, eos_token_id=-1, pad_token_id=0)
    sizes = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=load.num_slots // PAGE,
        max_batch_tokens=max_batch_tokens,
        max_requests_per_batch=load.max_num_seqs,
        allow_block_sharing=False,
        use_cuda_graph=None if model.device.type == "cuda" else False,
    )

    def serve(manager) -> list[list[int]]:
        for index, task in enumerate(load.tasks):
            manager.add_request(task.prompt, request_id=str(index), max_new_tokens=task.max_tokens)
        tokens: dict[str, list[int]] = {}
        for result in manager:
            if result.is_finished():
                tokens[result.request_id] = list(result.generated_tokens)
            if len(tokens) == len(load.tasks):
                break
        return [tokens[str(index)] for index in range(len(load.tasks))]

    with (
        torch.no_grad(),  # not inference_mode, under which its thread dies
        model.continuous_batching_context_manager(generation, continuous_batching_config=sizes) as manager,
    ):
        return _timed(lambda: serve(manager))


class PerRequestForward(Engine):
    """The loop without batching: the same schedule, and a forward pass for each request of it."""

    def logits(self, batch: Batch) -> torch.Tensor:
        alone = [self.attention.layout([item], self.memory, 1, self.model.device) for item in batch.plan]
        return torch.cat([super(PerRequestForward, self).logits(one) for one in alone])


class LayerByLayer(PerRequestForward):
    """And each forward pass through the modules of the model, as one writes it first."""

    def __init__(self, *args, **options):
        super().__init__(*args, compiled_decode=False, **options)


def serve(model, load: TaskList, stage: str, kind: type[Engine] = Engine) -> Run:
    sizes = {"max_num_seqs": load.max_num_seqs, "num_slots": load.num_slots, "block_size": PAGE}
    engine = kind(model, stage, max_num_batched_tokens=BUDGET, **sizes)
    prompts = [task.prompt for task in load.tasks]
    params = [SamplingParams(max_tokens=task.max_tokens, ignore_eos=True) for task in load.tasks]
    done = _timed(lambda: [output.token_ids for output in engine.generate(prompts, params)])
    return replace(done, trace=engine.trace, operators=engine.operators)


def _timed(work: Callable[[], list[list[int]]]) -> Run:
    wall, cpu = perf_counter(), process_time()
    tokens = work()
    return Run(perf_counter() - wall, process_time() - cpu, tokens)


def table(result: dict) -> Table:
    rows = []
    for name, load in result["loads"].items():
        rows.append((name, *[""] * 7))
        slowest = load["rows"][0]["wall_s"]
        for row in load["rows"]:
            limit = row.get("limit_s")
            rows.append(
                (
                    f"- {row['name']}",
                    number(row["wall_s"], 2),
                    number(row["cpu_s"], 2),
                    f"{slowest / row['wall_s']:.1f}x",
                    "-" if limit is None else f"{row['wall_s'] / limit:.2f}x",
                    number(row.get("ttft_p50_ms")),
                    number(row.get("tbt_p99_ms")),
                    "yes" if row["exact"] else "NO",
                )
            )
    sizes = "; ".join(
        f"{name}: {load['requests']} requests, {load['max_num_seqs']} at a time, {load['output_tokens']:,} tokens out"
        for name, load in result["loads"].items()
    )
    note = (
        f"{sizes}. ours, one by one: the schedule of paged, and a forward pass for each request of an iteration. Qwen3 "
        f"of 8 layers of 256, random weights, float32; chunked with a budget of {BUDGET} tokens. speed: against "
        "transformers one by one. of the limit: wall time / that of the bare matrix products of the same schedule, "
        "with their operands in place. exact: the same tokens as transformers one by one. Medians of "
        f"{result['repeats']} runs that took turns."
    )
    header = ("engine", "wall s", "CPU s", "speed", "of the limit", "TTFT p50 ms", "TBT p99 ms", "exact")
    return Table(header, rows, note)
