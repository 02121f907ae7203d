"""What batch invariance costs: the same requests through the stages that promise no bits and the one that does."""

import random
from statistics import median
from time import perf_counter

import torch

from tinyengine.bench.table import Table, number
from tinyengine.engine import Engine
from tinyengine.model.load import load_model
from tinyengine.params import SamplingParams

OTHERS = ("selective", "paged", "chunked")
STAGES = (*OTHERS, "invariant")
DTYPES = ("float32", "bfloat16")
REQUESTS = 4  # for each place in the batch: it is full most of the time


def run(device: str = "cpu", batches: tuple[int, ...] = (1, 8, 32), rounds: int = 7, model: str = "tiny") -> dict:
    """Seconds for REQUESTS times `batch` requests, `batch` at a time, the stages taking turns, and as cost the median
    over the rounds of invariant / the best of the others."""
    cases = []
    for dtype in DTYPES:
        loaded = load_model(model, device, getattr(torch, dtype))
        for stage in STAGES:
            _seconds(loaded, stage, 1)  # thread pools, packed weights, the self-test
        for batch in batches:
            times = [{stage: _seconds(loaded, stage, batch) for stage in STAGES} for _ in range(rounds)]
            seconds = {stage: median(row[stage] for row in times) for stage in STAGES}
            best = min(OTHERS, key=seconds.__getitem__)
            cost = median(row["invariant"] / row[best] for row in times)
            cases.append({"dtype": dtype, "batch": batch, "seconds": seconds, "best": best, "cost": cost})
    return {"model": model, "rounds": rounds, "cases": cases}


def _seconds(model, stage: str, batch: int) -> float:
    chance = random.Random(0)
    engine = Engine(model, stage, max_num_seqs=batch, num_slots=400 * batch)
    for _ in range(REQUESTS * batch):
        prompt = chance.choices(range(model.config.vocab_size), k=chance.randrange(16, 257))
        engine.add_request(prompt, SamplingParams(max_tokens=chance.randrange(16, 129), ignore_eos=True))
    started = perf_counter()
    while engine.has_unfinished():
        engine.step()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - started


def table(result: dict) -> Table:
    rows = [
        (
            f"{case['dtype']}, {case['batch']} at a time",
            *(number(1000 * case["seconds"][stage]) for stage in STAGES),
            f"{case['cost']:.2f}",
        )
        for case in result["cases"]
    ]
    note = (
        f"{result['model']}, prompts of 16 to 256 tokens, outputs of 16 to 128: milliseconds for {REQUESTS} requests "
        f"for each place in the batch, medians of {result['rounds']} rounds in which the stages take turns; cost: "
        "invariant / the fastest of the others, round by round."
    )
    return Table(("dtype, batch", *(f"{stage} ms" for stage in STAGES), "cost"), rows, note)
