"""Where the time of a step goes, part by part, and what bounds it: steps in which all requests decode, and one in which
a chunk of a prompt joins them, by the `chunked` engine.

The engine knows nothing of it: its parts are wrapped from outside. Steps with and without timers take turns, and the
times of the parts are scaled to the step without. A step that runs in one go, compiled or as a CUDA graph, has no
parts, so its time stands beside that of the step layer by layer. On CUDA the profiler of torch says besides how long
the GPU worked for each part.
"""

import random
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from tinyengine.bench import gpu, peers
from tinyengine.bench.limits import (
    PAGE,
    Products,
    copy_bandwidth,
    flop_of,
    kv_bytes,
    matrix_rate,
    seconds,
    weight_bytes,
)
from tinyengine.bench.parts import ATTENTION, LINEAR, PARTS, REST, Meter, gpu_parts, ranged, watched
from tinyengine.bench.table import Table, number, percent
from tinyengine.engine import Engine
from tinyengine.fast.operators import PackedForOneDNN, PackedForOneThread
from tinyengine.model.load import load_model
from tinyengine.model.untrained import save_random_model
from tinyengine.operators import TORCH, Operators
from tinyengine.params import SamplingParams
from tinyengine.request import Request

IN_A_ROW = 5  # steps with timers, and steps without


def run(
    device: str = "cpu",
    shapes: dict | None = None,
    dtype: torch.dtype | None = None,
    batches: tuple[int, ...] = (8, 32),
    budget: int | None = None,
    matrix: int | None = None,
    rounds: int = 12,
) -> dict:
    """Medians of `rounds` rounds, in seconds. batches: requests of the decode steps; as many as in the first decode in
    the mixed step too, beside a chunk that fills the budget. shapes, dtype, budget, matrix (the size of the large
    product): None takes the model of `peers` in float32 on a CPU, and Qwen3-0.6B's shapes in bfloat16 on CUDA."""
    on_cuda = device == "cuda"
    shapes = shapes or (gpu.QWEN3_06B if on_cuda else peers.SHAPES)
    dtype = dtype or (torch.bfloat16 if on_cuda else torch.float32)
    budget = budget or (512 if on_cuda else peers.BUDGET)
    with TemporaryDirectory() as folder:
        save_random_model(Path(folder), dtype, **shapes)
        model = load_model(folder, device, dtype)
    matrix = matrix or (8192 if on_cuda else 1024)
    steps = 200 + 4 * rounds * 2 * (IN_A_ROW + 1)  # more than are taken to the end, first prompts included
    cases = [Case(model, f"{n} decode", n, budget, steps) for n in batches]
    cases.append(Case(model, f"{batches[0]} decode, a chunk", batches[0], budget, steps, chunk=budget - batches[0]))
    return {
        "model": {name: shapes[name] for name in ("num_hidden_layers", "hidden_size", "vocab_size")},
        "dtype": str(dtype).removeprefix("torch."),
        "matrix": matrix,
        "rounds": rounds,
        "in_a_row": IN_A_ROW,
        "steps": {case.name: _profile(case, matrix, rounds) for case in cases},
    }


class Case:
    """Two engines, and what brings them to the next step of the kind that is looked at.

    requests: so many decode behind prompts of 16 to 256 tokens, for so many steps. chunk: new tokens, the second third
    of a prompt. engine: layer by layer. in_one_go: another one, that runs decodes as it does by itself.
    """

    def __init__(self, model, name: str, requests: int, budget: int, steps: int, chunk: int = 0):
        self.name, self.requests, self.chunk = name, requests, chunk
        self.vocab_size = model.config.vocab_size
        prompts = [task.prompt for task in peers.mixed(requests).tasks]
        room = sum(map(len, prompts)) + requests * (steps + PAGE) + 3 * chunk + PAGE
        sizes = {"max_num_seqs": requests + bool(chunk), "num_slots": room, "block_size": PAGE}
        by_layers = {"cuda_graphs": False, "compiled_decode": False}
        self.engine = Engine(model, max_num_batched_tokens=budget, **by_layers, **sizes)
        self.in_one_go = Engine(model, max_num_batched_tokens=budget, **sizes)
        self.others = {}  # operators whose linear layers are compared with the engine's
        if isinstance(self.engine.operators, PackedForOneThread):
            self.others["by F.linear"] = TORCH
            if PackedForOneDNN.why_not(model) is None:
                self.others["by oneDNN"] = PackedForOneDNN(model)
        for engine in (self.engine, self.in_one_go):
            for prompt in prompts:
                engine.add_request(self._fitting(prompt), SamplingParams(max_tokens=steps, ignore_eos=True))
            while any(request.computed < request.num_prompt_tokens for request in unfinished(engine)):
                engine.step()

    def ready(self, engine: Engine):
        if not self.chunk:
            return
        while len(unfinished(engine)) > self.requests:  # the last prompt has tokens left
            engine.step()
        rng = random.Random(0)
        prompt = [rng.randrange(self.vocab_size) for _ in range(3 * self.chunk)]
        engine.add_request(prompt, SamplingParams(max_tokens=1))
        engine.step()

    def _fitting(self, prompt: list[int]) -> list[int]:
        return [token % self.vocab_size for token in prompt]


def unfinished(engine: Engine) -> list[Request]:
    return [entry.request for entry in engine.outputs.open.values()]


def _profile(case: Case, matrix: int, rounds: int) -> dict:
    """Whatever is compared takes turns."""
    plain, in_one_go, parts, needs, others = [], [], [], [], []
    for _ in range(rounds):
        plain += _plain(case, case.engine)
        in_one_go += _plain(case, case.in_one_go)
        parts += _parts(case)
        needs.append(_needs(case, matrix))
        others.append({name: _linear(case, operators) for name, operators in case.others.items()})
    whole, with_timers = median(plain), median(sum(step.values()) for step in parts)
    names = dict.fromkeys(part for step in parts for part in step)
    typical = {part: median(step.get(part, 0.0) for step in parts) for part in sorted(names, key=_place)}
    return {
        "seconds": whole,
        "in_one_go": median(in_one_go),
        "with_timers": with_timers,
        "parts": {part: typical[part] * whole / sum(typical.values()) for part in typical},
        "gpu": _on_gpu(case) if case.engine.model.device.type == "cuda" else None,
        **{name: median(need[name] for need in needs) for name in needs[0]},
        "others": {name: median(other[name] for other in others) for name in case.others},
    }


def _place(part: str) -> int:
    return PARTS.index(part) if part in PARTS else PARTS.index(REST)


def _plain(case: Case, engine: Engine) -> list[float]:
    """Seconds of steps without timers. The first one does not count: it still meets what a change has upset."""
    times = []
    for _ in range(IN_A_ROW + 1):
        case.ready(engine)
        started = perf_counter()
        engine.step()
        times.append(perf_counter() - started)
    return times[1:]


def _parts(case: Case) -> list[dict[str, float]]:
    """Seconds of the parts of steps, with timers; the first one does not count either."""
    meter, steps = Meter(), []
    with watched(case.engine, meter.wrap) as step:
        for _ in range(IN_A_ROW + 1):
            case.ready(case.engine)
            meter.seconds.clear()
            step()
            steps.append(dict(meter.seconds))
    return steps[1:]


def _needs(case: Case, matrix: int) -> dict[str, float]:
    """What the last step could not do without."""
    model, iteration = case.engine.model, case.engine.trace.iterations[-1]
    device, bare = model.device.type, Products(model, case.engine.operators, [iteration])
    spans = [(span.n_tokens, span.end) for span in iteration.spans]
    positions = sum(length for _, length in spans)
    size = weight_bytes(model) + positions * kv_bytes(model)
    return {
        "tokens": iteration.num_tokens,
        "positions": positions,
        "bytes": size,
        "flop": flop_of(model, spans, due=sum(bool(span.tokens) for span in iteration.spans)),
        "bytes_per_s": copy_bandwidth(device, size, repeats=3),
        "flop_per_s": max(matrix_rate(device, model.dtype, matrix, repeats=3), _rate_of_widest(case.engine, matrix)),
        LINEAR: seconds(lambda: bare.linear(0), device, repeats=3, in_a_row=10),
        ATTENTION: seconds(lambda: bare.attention(0), device, repeats=3, in_a_row=10),
    }


def _linear(case: Case, operators: Operators) -> float:
    """Seconds of the last step's linear layers, by other operators."""
    model, iteration = case.engine.model, case.engine.trace.iterations[-1]
    bare = Products(model, operators, [iteration])
    return seconds(lambda: bare.linear(0), model.device.type, repeats=3)


def _rate_of_widest(engine: Engine, rows: int) -> float:
    """Floating-point operations a second of the widest layer over so many rows, by the engine's own operators: a square
    product by torch's is not always the fastest that a CPU can do."""
    model = engine.model
    weight = max(model.layers[0].parameters(), key=torch.numel)
    x = torch.randn(rows, weight.shape[1], device=model.device, dtype=model.dtype)
    took = seconds(lambda: engine.operators.linear(x, weight), model.device.type, repeats=3)
    return 2 * rows * weight.numel() / took


def _on_gpu(case: Case, repeats: int = 5) -> dict[str, float]:
    """Seconds for which the GPU worked for each part: medians."""
    from torch.profiler import ProfilerActivity, profile

    steps = []
    for _ in range(repeats + 1):  # the first one sets the profiler up
        case.ready(case.engine)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            with watched(case.engine, ranged) as step:
                step()
            torch.cuda.synchronize()
        steps.append(gpu_parts(profiler.events()))
    names = sorted({part for step in steps for part in step}, key=_place)
    return {part: median(step[part] for step in steps[1:]) for part in names}


# what is told


def table(result: dict) -> Table:
    steps = result["steps"]
    on_gpu = any(step["gpu"] for step in steps.values())
    header = [""]
    for name in steps:
        header += [f"{name}: host µs", "GPU µs"] if on_gpu else [f"{name}: µs", "%"]
    rows = [
        (part, *(cell for step in steps.values() for cell in _cells(step["parts"].get(part), step, part)))
        for part in dict.fromkeys(part for step in steps.values() for part in step["parts"])
    ]
    rows.append(("the step", *(cell for step in steps.values() for cell in _cells(step["seconds"], step))))
    others = next(iter(steps.values()))["others"]
    for name, bare in (
        ("the step as it is run", lambda step: step["in_one_go"]),
        ("bare linear layers", lambda step: step[LINEAR]),
        *((f"the same {name}", lambda step, name=name: step["others"][name]) for name in others),
        ("bare attention", lambda step: step[ATTENTION]),
        ("copying its bytes", lambda step: step["bytes"] / step["bytes_per_s"]),
        ("its operations", lambda step: step["flop"] / step["flop_per_s"]),
    ):
        cells = (("", _us(bare(step))) if on_gpu else _cells(bare(step), step) for step in steps.values())
        rows.append((name, *(cell for pair in cells for cell in pair)))
    slower = [step["with_timers"] / step["seconds"] - 1 for step in steps.values()]
    model = result["model"]
    by_torch = ", and by those of torch" if others else ""
    note = (
        f"Qwen3 of {model['num_hidden_layers']} layers of {model['hidden_size']}, random weights, {result['dtype']}; "
        "requests behind prompts of 16 to 256 tokens and what they have decoded since. The step, and its parts, "
        "layer by layer; as it is run: in one go where that can be, without Python between the layers. Bare: the "
        f"matrix products alone, with their operands in place; linear layers by the engine's own product{by_torch}. "
        "Its bytes: weights and K/V read once, at the rate of a copy that touches as many. Its operations: at the rate "
        "of the faster of one large square product and of the model's widest "
        f"layer over {number(result['matrix'])} rows.\n\n"
        + "".join(f"- {_bound(name, step)}\n" for name, step in steps.items())
        + f"\nMedians of {result['rounds']} rounds of {result['in_a_row']} steps, in turn with all that they are "
        f"compared with. With timers a step took {percent(min(slower))} to {percent(max(slower))} longer, and the "
        "parts are scaled to the step without."
        + (" GPU: how long kernels and copies of a part worked, by torch's profiler; no graphs." if on_gpu else "")
    )
    return Table(tuple(header), rows, note)


def _cells(value: float | None, step: dict, part: str | None = None) -> tuple[str, str]:
    """Microseconds, and their share of the step or, where there is a GPU, its own for the part, or for all of them."""
    if step["gpu"] is None:
        return _us(value), "-" if value is None else number(100 * value / step["seconds"], 1)
    return _us(value), _us(sum(step["gpu"].values()) if part is None else step["gpu"].get(part))


def _bound(name: str, step: dict) -> str:
    reading, computing = step["bytes"] / step["bytes_per_s"], step["flop"] / step["flop_per_s"]
    longer, bare = max(reading, computing), step[LINEAR] + step[ATTENTION]
    beyond = {part: value - step.get(part, 0.0) for part, value in step["parts"].items()}
    first, second = sorted(beyond, key=beyond.__getitem__, reverse=True)[:2]
    return (
        f"{name} ({number(step['tokens'])} tokens, {number(step['positions'])} positions): "
        f"{step['bytes'] / 1e6:,.1f} MB at {step['bytes_per_s'] / 1e9:,.1f} GB/s and {step['flop'] / 1e9:,.2f} GFLOP "
        f"at {step['flop_per_s'] / 1e9:,.0f} GFLOP/s, of which "
        f"{'reading' if reading > computing else 'computing'} takes longer; the bare products take "
        f"{bare / longer:.2f}x of that, and the step {step['in_one_go'] / bare:.2f}x of the products, layer by layer "
        f"{step['seconds'] / bare:.2f}x. There most beyond the products goes to {first} "
        f"({_us(beyond[first])} µs) and next to {second} ({_us(beyond[second])} µs)."
    )


def _us(value: float | None) -> str:
    return "-" if value is None else number(1e6 * value)
