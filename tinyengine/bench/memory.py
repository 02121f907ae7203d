"""What an engine that serves for hours keeps: the growth of its process over many requests, by what its trace keeps."""

import json
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from tinyengine import Engine, SamplingParams, load_model
from tinyengine.bench.record import ROOT
from tinyengine.bench.table import Table, number
from tinyengine.model.untrained import save_random_model

AT_MOST = 20e6  # bytes that 100,000 requests with a bounded trace may add
KEPT = 1000  # iterations
SHAPES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
MAX_NUM_SEQS, PROMPT, OUTPUT = 16, 6, 2
# A process of its own for each kind of trace: another one's memory, freed, would hide what this one takes.
CASE = "import json, sys\nfrom tinyengine.bench.memory import serve\nprint(json.dumps(serve(*json.loads(sys.argv[1]))))"


def run(
    device: str = "cpu", requests: int = 100_000, unbounded: int = 20_000, queued: int = 1000, kept: int = KEPT
) -> dict:
    """Bytes that the process grows by while requests of two tokens come and go, `queued` of them waiting, their outputs
    popped. `requests` with a trace that keeps the last iterations and with none, `unbounded` with one that keeps all.
    It grows first until such a trace is full; that is the warm-up of all three."""
    counts = {kept: requests, None: requests, "full": unbounded}
    cases = {}
    for trace, count in counts.items():
        given = json.dumps([device, trace, count, queued, 2 * kept, torch.get_num_threads()])
        command = [sys.executable, "-c", CASE, given]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        cases[_name(trace)] = json.loads(done.stdout.splitlines()[-1])
    return {"queued": queued, "kept": kept, "cases": cases}


def serve(device: str, trace: str | int | None, requests: int, queued: int, warm_up: int, threads: int) -> dict:
    """Serves `warm_up` iterations, and then `requests`, in this process."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(Path(folder), **SHAPES)
        model = load_model(folder, device=device)
    engine = Engine(model, num_slots=1024, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=128, trace=trace)
    params = SamplingParams(max_tokens=OUTPUT, ignore_eos=True)
    names = (f"request-{n}" for n in range(10**9))
    add = partial(engine.add_request, [1] * PROMPT, params)
    steps = served = 0

    def step():
        nonlocal steps, served
        steps += 1
        while len(engine.outputs) < queued + MAX_NUM_SEQS:
            add(request_id=next(names))
        for token in engine.step():
            if token.finish_reason:
                engine.outputs.pop(token.request_id)
                served += 1

    begin = resident()
    while steps < warm_up:
        step()
    warm, before, started = resident(), (steps, served), perf_counter()
    while served - before[1] < requests:
        step()
    return {
        "requests": served - before[1],
        "iterations": steps - before[0],
        "warm_up_bytes": warm - begin,
        "growth_bytes": resident() - warm,
        "seconds": perf_counter() - started,
    }


def resident() -> int:
    """Bytes of memory that this process has; where the system does not say, the most that it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return pages * resource.getpagesize()


def _name(trace: str | int | None) -> str:
    return "none" if trace is None else "all" if trace == "full" else f"the last {trace:,}"


def table(result: dict) -> Table:
    rows = []
    for name, case in result["cases"].items():
        each = case["growth_bytes"] / case["requests"]
        limit = "-" if name == "all" else "yes" if case["growth_bytes"] <= AT_MOST else "NO"
        row = (f"{case['requests']:,}", f"{case['iterations']:,}", number(case["warm_up_bytes"] / 1e6, 1))
        rows.append((name, *row, number(case["growth_bytes"] / 1e6, 1), number(each), limit))
    note = (
        f"A model of one small layer, {MAX_NUM_SEQS} requests at a time and {result['queued']:,} that wait, {PROMPT} "
        f"tokens in and {OUTPUT} out, outputs popped. warm-up: the first {2 * result['kept']:,} iterations, in which a "
        "bounded trace becomes full; growth: of the resident memory, after them, while the requests of the second "
        f"column are served. limit: {AT_MOST / 1e6:g} MB of growth."
    )
    header = ("trace keeps", "requests", "iterations", "warm-up MB", "growth MB", "bytes a request", "within limit")
    return Table(header, rows, note)
