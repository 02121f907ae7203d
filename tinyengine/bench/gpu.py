"""One step on a CUDA GPU: how far a decode is from the memory bandwidth and a prompt from the matrix rate, and what
graphs, overlap and split keys gain.

The two ceilings are measured in the same run. The model has the shapes of Qwen3-0.6B, with random weights in bfloat16:
speed depends on shapes alone. Before anything is timed, the kernels are held to the torch attention in float32, and the
tokens of every switch to those of transformers.
"""

import gc
import random
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from tinyengine.attention import paged_attention
from tinyengine.bench.limits import copy_bandwidth, flop_of, kv_bytes, matrix_rate, seconds, weight_bytes
from tinyengine.bench.table import Table, number, percent
from tinyengine.engine import Engine
from tinyengine.model.load import load_model
from tinyengine.model.untrained import save_random_model
from tinyengine.oracle import Oracle
from tinyengine.overlap import OverlappedEngine
from tinyengine.params import SamplingParams
from tinyengine.request import Request
from tinyengine.sampler import choose

QWEN3_06B = dict(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rope_theta=1_000_000.0,
    tie_word_embeddings=True,
)
SWITCHES: dict[str, dict] = {
    "all on": dict(overlap=True),
    "no overlap": dict(overlap=False),
    "no graphs": dict(overlap=True, cuda_graphs=False),
    "no split keys": dict(overlap=True, split_kv=False),
    "none": dict(overlap=False, cuda_graphs=False, split_kv=False),
}
BUDGET = 8192  # tokens of an iteration


def run(
    device: str = "cuda",
    shapes: dict = QWEN3_06B,
    dtype: torch.dtype = torch.bfloat16,
    batches: tuple[int, ...] = (1, 32, 256),
    contexts: tuple[int, ...] = (1024, 8192),
    prompt: int = 8192,
    megabytes: int = 1024,
    matrix: int = 8192,
    checked: int = 12,
) -> dict:
    """Times are medians in seconds, after a warm-up. On a CPU (small, please) it shows that it runs, and nothing else.

    batches, contexts: of the decode steps; the longer contexts are taken with the smallest batch only. megabytes,
    matrix: sizes for the two ceilings. checked: requests whose tokens are compared.
    """
    result = {"triton": _version("triton"), "kernels": kernel_errors(device)}
    result["same_tokens"] = same_tokens(device, checked)
    result["ceilings"] = {
        "bytes_per_s": copy_bandwidth(device, 2 * megabytes * 2**20),
        "flop_per_s": matrix_rate(device, dtype, matrix),
    }
    with TemporaryDirectory() as folder:
        save_random_model(Path(folder), dtype, **shapes)
        model = load_model(folder, device, dtype)
        steps = [(n, contexts[0]) for n in batches] + [(batches[0], context) for context in contexts[1:]]
        result["decode"] = [decode_step(model, n, context, result["ceilings"]) for n, context in steps]
        result["prefill"] = prefill(model, prompt, result["ceilings"])
    return result


# what must be right before it is timed


def kernel_errors(device: str) -> dict[str, float]:
    """The largest difference between the Triton kernel and the torch attention in float32, on random batches; {} where
    there is no GPU."""
    if device != "cuda":
        return {}
    from tinyengine.fast.kernels.cuda import paged  # needs Triton

    cases = {
        "prompts": [(17, 17), (300, 300), (1, 1), (64, 64)],
        "chunks": [(16, 500), (128, 129), (5, 1000)],
        "decodes": [(1, 1), (1, 255), (1, 256), (1, 257), (1, 4000)],
        "mixed": [(1, 700), (40, 41), (1, 16), (200, 900)],
    }
    errors = {}
    for name, shapes in cases.items():
        arguments = _random_batch(shapes, device)
        right = paged_attention(*arguments)
        most = max(count for count, _ in shapes)
        for label, options in (("", {}), (", split keys", {"split_size": 256}), (", high tiles", {"tile_rows": 64})):
            out = paged.paged_attention(*arguments, max_seqlen_q=most, **options)
            errors[name + label] = (out - right).abs().max().item()
    return errors


def _random_batch(shapes: list[tuple[int, int]], device: str, block_size: int = 16):
    """(new tokens, length) of each request -> the arguments of paged_attention, with NaN wherever no key is."""
    heads, kv_heads, head_dim = 16, 8, 128
    sizes = [-(-length // block_size) for _, length in shapes]
    order = torch.randperm(sum(sizes) + 4)
    keys, values = (torch.randn(len(order), block_size, kv_heads, head_dim) for _ in range(2))
    table = torch.full((len(shapes), max(sizes)), int(order[-1]), dtype=torch.int32)
    used = 0
    for row, ((_, length), size) in enumerate(zip(shapes, sizes, strict=True)):
        table[row, :size] = order[used : used + size]
        for arena in (keys, values):
            arena[table[row, size - 1], length - (size - 1) * block_size :] = torch.nan
        used += size
    for arena in (keys, values):
        arena[order[used:]] = torch.nan
    counts = torch.tensor([0, *(count for count, _ in shapes)]).cumsum(0).int()
    lengths = torch.tensor([length for _, length in shapes]).int()
    q = torch.randn(int(counts[-1]), heads, head_dim)
    return [tensor.to(device) for tensor in (q, keys, values, counts, lengths, table)]


def same_tokens(device: str, requests: int) -> dict[str, int]:
    """How many of the embedded model's outputs in float32 equal those of transformers for the request alone, with each
    of the switches."""
    model = load_model("tiny", device, torch.float32)
    oracle, rng = Oracle(model.folder, device), random.Random(0)
    prompts = [[rng.randrange(260, 1024) for _ in range(rng.randint(1, 300))] for _ in range(requests)]
    params = [SamplingParams(max_tokens=rng.randint(2, 40), ignore_eos=True) for _ in prompts]
    right = [oracle.generate(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    same = {"of": requests}
    for name, switches in SWITCHES.items():
        engine = switched(model, switches, max_num_seqs=6, num_slots=4096, max_num_batched_tokens=100)
        outputs = engine.generate(prompts, params)
        same[name] = sum(output.token_ids == tokens for output, tokens in zip(outputs, right, strict=True))
    return same


# one step


def decode_step(model, requests: int, context: int, ceilings: dict) -> dict:
    """One token for each of so many requests behind `context` tokens or a few more. "step": the model and the choice of
    tokens, many in a row; "engine": what an engine takes for a step, everything included; both with each switch.
    "limit": weights and K/V read once at the copy bandwidth."""
    row = {"requests": requests, "context": context, "step": {}, "engine": {}}
    for name, switches in SWITCHES.items():
        engine = _decoding(model, requests, context, switches)
        if name != "no overlap":  # which changes nothing in here
            row["step"][name] = _seconds_of_step(engine)
        row["engine"][name] = _seconds_of_engine(engine)
        del engine
        free_memory(model.device.type)
    row["bytes"] = weight_bytes(model) + requests * context * kv_bytes(model)
    row["limit"] = row["bytes"] / ceilings["bytes_per_s"]
    row["share_of_bandwidth"] = row["limit"] / row["step"]["all on"]
    return row


def _decoding(model, requests: int, context: int, switches: dict, steps: int = 100) -> Engine:
    """An engine all of whose requests are past their prompts."""
    room = requests * (context + steps + 32)
    engine = switched(model, switches, max_num_seqs=requests, num_slots=room, max_num_batched_tokens=BUDGET)
    rng = random.Random(0)
    for _ in range(requests):
        prompt = [rng.randrange(4, model.config.vocab_size) for _ in range(context)]
        engine.add_request(prompt, SamplingParams(max_tokens=steps, ignore_eos=True))
    while any(entry.request.computed < context for entry in engine.outputs.open.values()):
        engine.step()
    for _ in range(3):  # graphs are recorded
        engine.step()
    return engine


def _seconds_of_step(engine: Engine) -> float:
    """The same step over and over: it writes the same keys and values each time."""
    if isinstance(engine, OverlappedEngine):
        engine.settle()  # what is on its way comes first
    plan, device = engine.scheduler.schedule(), engine.model.device
    batch = engine.attention.layout(plan, engine.memory, len(plan), device)

    @torch.inference_mode()
    def work():
        choose(engine.logits(batch), batch.wanted, engine.draw)

    return seconds(work, device.type, in_a_row=10)


def _seconds_of_engine(engine: Engine, steps: int = 40) -> float:
    times = []
    for _ in range(steps):
        started = perf_counter()
        engine.step()
        times.append(perf_counter() - started)
    return median(times[3:])


def prefill(model, tokens: int, ceilings: dict) -> dict:
    """One prompt in one iteration."""
    engine = Engine(model, num_slots=tokens + 64, max_num_batched_tokens=tokens)
    engine.scheduler.add(Request("it", [7] * tokens, SamplingParams(max_tokens=1)))
    plan = engine.scheduler.schedule()

    @torch.inference_mode()
    def work():
        batch = engine.attention.layout(plan, engine.memory, 1, model.device)
        engine.logits(batch)

    took = seconds(work, model.device.type, repeats=7)
    flop = flop_of(model, [(tokens, tokens)], due=1)
    rate = flop / took
    return {"tokens": tokens, "seconds": took, "flop": flop, "share_of_matrix_rate": rate / ceilings["flop_per_s"]}


def free_memory(device: str):
    """Of an engine that is gone: its graphs and it know each other, so that only the collector finds them."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def switched(model, switches: dict, **sizes: int) -> Engine:
    """An engine with these switches; on a CPU nothing but overlap can be switched."""
    kind = OverlappedEngine if switches["overlap"] else Engine
    others = {name: choice for name, choice in switches.items() if name != "overlap"}
    return kind(model, **sizes, **(others if model.device.type == "cuda" else {}))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ImportError:
        return None


def table(result: dict) -> Table:
    rows = []
    for row in result["decode"]:
        rows.append((f"decode step, {row['requests']} requests behind {number(row['context'])} tokens", *[""] * 3))
        for name, took in row["engine"].items():
            step = row["step"].get(name)
            share = percent(row["limit"] / step) if step else "-"
            rows.append((f"- {name}", "-" if step is None else number(1e3 * step, 3), number(1e3 * took, 3), share))
    prefill = result["prefill"]
    took = number(1e3 * prefill["seconds"], 2)
    rows.append((f"prompt of {number(prefill['tokens'])} tokens", took, "", percent(prefill["share_of_matrix_rate"])))
    ceilings, same = result["ceilings"], dict(result["same_tokens"])
    of, worst = same.pop("of"), max(result["kernels"].values(), default=None)
    note = (
        f"Measured in the same run: {ceilings['bytes_per_s'] / 1e12:.2f} TB/s by a copy, "
        f"{ceilings['flop_per_s'] / 1e12:.0f} TFLOP/s by one large product. of the limit: a decode step against "
        "reading weights and K/V once at that bandwidth, a prompt against that matrix rate. step: model and choice of "
        "tokens; engine: all of an iteration. "
        + ("" if worst is None else f"The kernels differ from torch in float32 by at most {worst:.1e}. ")
        + f"Outputs of {of} that equal transformers' in float32: {', '.join(f'{n} {k}' for n, k in same.items())}."
    )
    return Table(("", "step ms", "engine ms", "of the limit"), rows, note)
