"""The stall: a long prompt arrives among decodes. Who pays for it, and how much, before and after chunked prefill?

The budget is made as a user would make it: a profile of the model on this machine, and a promise.
"""

import random
from itertools import pairwise
from statistics import median

from tinyengine.bench.table import Table, number, percent
from tinyengine.budget import SIZES, Line, choose_budget, profile
from tinyengine.engine import Engine
from tinyengine.metrics import token_times
from tinyengine.model.load import load_model
from tinyengine.request import SamplingParams

PROMPT = 32  # tokens of the requests that decode


def run(
    device: str = "cpu",
    decodes: int = 8,
    long_prompt: int = 1500,
    max_tokens: int = 200,
    tbt_target: float | None = None,
    sizes: tuple[int, ...] = SIZES,
    repeats: int = 9,
) -> dict:
    """Seconds, as medians of `repeats` runs of each stage that take turns; the two ratios are medians of pairs of runs.

    tbt_target: the promise; None promises a sixth of the stall, as it is found on this machine.
    """
    model = load_model("tiny", device=device)
    sizes_of_run = (decodes, long_prompt, max_tokens)
    if tbt_target is None:
        stalls = [_once(model, "paged", 1, *sizes_of_run)["worst_tbt"] for _ in range(3)]
        tbt_target = median(stalls) / 6
    points = profile(model, sizes, context=long_prompt, decode_context=PROMPT + max_tokens // 2, decodes=decodes)
    line = Line.fit(points)
    budget = choose_budget(line, tbt_target)
    runs: dict[str, list[dict]] = {"paged": [], "chunked": []}
    for _ in range(repeats + 1):
        for stage, own in runs.items():
            own.append(_once(model, stage, budget, *sizes_of_run))
    before, after = (own[1:] for own in runs.values())  # the first of each has warmed caches and thread pools up
    return {
        "decodes": decodes,
        "long_prompt": long_prompt,
        "max_tokens": max_tokens,
        "repeats": repeats,
        "profile": points,
        "line": {"fixed": line.fixed, "per_token": line.per_token},
        "tbt_target": tbt_target,
        "budget": budget,
        "stages": {stage: _medians(own) for stage, own in (("paged", before), ("chunked", after))},
        "worst_tbt_falls": median(old["worst_tbt"] / new["worst_tbt"] for old, new in zip(before, after)),
        "throughput_keeps": median(new["tokens_per_s"] / old["tokens_per_s"] for old, new in zip(before, after)),
    }


def _once(model, stage: str, budget: int, decodes: int, long_prompt: int, max_tokens: int) -> dict:
    rng = random.Random(0)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)

    def words(n: int) -> list[int]:
        return [rng.randrange(model.config.vocab_size) for _ in range(n)]

    room = long_prompt + decodes * (PROMPT + max_tokens) + 16 * (decodes + 2)
    engine = Engine(model, stage, max_num_seqs=decodes + 1, max_num_batched_tokens=budget, num_slots=room)
    for index in range(decodes):
        engine.add_request(words(PROMPT), params, f"decode {index}")
    for _ in range(max_tokens // 4):
        engine.step()
    engine.add_request(words(long_prompt), SamplingParams(max_tokens=1), "long")
    while engine.has_unfinished():
        engine.step()
    times = token_times(engine.trace)
    arrival, first = engine.trace.requests["long"].arrival, times.pop("long")[0]
    return {
        "worst_tbt": max(later - sooner for own in times.values() for sooner, later in pairwise(own)),
        "ttft_of_long_prompt": first - arrival,
        "tokens_per_s": sum(map(len, times.values())) / engine.trace.iterations[-1].end,
        "iterations": len(engine.trace.iterations),
    }


def _medians(runs: list[dict]) -> dict:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def table(result: dict) -> Table:
    rows = [
        (
            stage if stage == "paged" else f"{stage}, budget {result['budget']}",
            number(1000 * row["worst_tbt"], 1),
            number(1000 * row["ttft_of_long_prompt"], 1),
            number(row["tokens_per_s"]),
            number(row["iterations"]),
        )
        for stage, row in result["stages"].items()
    ]
    line, target = result["line"], number(1000 * result["tbt_target"], 1)
    note = (
        f"{result['decodes']} requests decode {result['max_tokens']} tokens each; a prompt of "
        f"{number(result['long_prompt'])} tokens arrives among them. The budget follows from a promise of {target} ms "
        f"and a profile: {number(1000 * line['fixed'], 1)} ms an iteration and {number(1e6 * line['per_token'])} "
        "microseconds a token behind a context of that length. The worst gap between two tokens of a request falls by "
        f"{result['worst_tbt_falls']:.1f}x, and {percent(result['throughput_keeps'])} of the throughput is kept "
        f"(medians of {result['repeats']} pairs of runs)."
    )
    return Table(("stage", "worst TBT ms", "long prompt's TTFT ms", "tokens/s", "iterations"), rows, note)
