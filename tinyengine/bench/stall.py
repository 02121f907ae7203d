"""The stall: a long prompt arrives among decodes. Who pays for it, and how much, before and after chunked prefill?

The budget is made as a user would make it: a profile of the model on this machine, and a promise.
"""

import random
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import median

from tinyengine.bench.iterations import SIZES, profile
from tinyengine.bench.table import Table, number, percent
from tinyengine.budget import Line, choose_budget
from tinyengine.engine import Engine
from tinyengine.metrics import token_times
from tinyengine.model.load import load_model
from tinyengine.params import SamplingParams
from tinyengine.trace import Trace

PROMPT = 32  # tokens of the requests that decode


@dataclass(frozen=True)
class Sizes:
    """So many requests decode max_tokens each, and a prompt of long_prompt tokens arrives among them."""

    decodes: int
    long_prompt: int
    max_tokens: int


def run(
    device: str = "cpu",
    decodes: int = 8,
    long_prompt: int = 1500,
    max_tokens: int = 200,
    tbt_target: float | None = None,
    sizes: tuple[int, ...] = SIZES,
    repeats: int = 9,
) -> dict:
    """Seconds of a typical run of each stage, made of `repeats` runs that took turns.

    tbt_target: the promise; None promises a sixth of the stall, as it is found on this machine.
    """
    model, of_run = load_model("tiny", device=device), Sizes(decodes, long_prompt, max_tokens)
    stall = _first_stall(model, of_run) if tbt_target is None else None
    tbt_target = tbt_target or stall / 6
    points = profile(model, sizes, context=long_prompt, decode_context=PROMPT + max_tokens // 2, decodes=decodes)
    line = Line.fit(points)
    budget = choose_budget(line, tbt_target)
    before, after = _before_and_after(model, budget, of_run, repeats)
    return {
        "decodes": decodes,
        "long_prompt": long_prompt,
        "max_tokens": max_tokens,
        "repeats": repeats,
        "profile": points,
        "line": {"fixed": line.fixed, "per_token": line.per_token},
        "first_stall": stall,
        "tbt_target": tbt_target,
        "budget": budget,
        "stages": {"paged": before, "chunked": after},
        "worst_tbt_falls": before["worst_tbt"] / after["worst_tbt"],
        "throughput_keeps": after["tokens_per_s"] / before["tokens_per_s"],
    }


def _first_stall(model, sizes: Sizes) -> float:
    return _measure(_typical([one_run(model, "paged", 1, sizes) for _ in range(3)]))["worst_tbt"]


def _before_and_after(model, budget: int, sizes: Sizes, repeats: int) -> list[dict]:
    runs: dict[str, list[Trace]] = {"paged": [], "chunked": []}
    for _ in range(repeats + 1):
        for stage, done in runs.items():
            done.append(one_run(model, stage, budget, sizes))
    return [_measure(_typical(done[1:])) for done in runs.values()]  # the first of each has warmed thread pools up


def one_run(model, stage: str, budget: int, sizes: Sizes) -> Trace:
    rng = random.Random(0)
    params = SamplingParams(max_tokens=sizes.max_tokens, ignore_eos=True)

    def words(n: int) -> list[int]:
        return [rng.randrange(model.config.vocab_size) for _ in range(n)]

    decodes = sizes.decodes
    room = sizes.long_prompt + decodes * (PROMPT + sizes.max_tokens) + 16 * (decodes + 2)
    engine = Engine(model, stage, max_num_seqs=decodes + 1, max_num_batched_tokens=budget, num_slots=room)
    for index in range(decodes):
        engine.add_request(words(PROMPT), params, f"decode {index}")
    for _ in range(sizes.max_tokens // 4):
        engine.step()
    engine.add_request(words(sizes.long_prompt), SamplingParams(max_tokens=1), "long")
    while engine.has_unfinished():
        engine.step()
    return engine.trace


def _typical(traces: list[Trace]) -> Trace:
    """The run in which every iteration took its median over the runs, from the end of the one before to its own. They
    all planned the same; what differs is when the machine was away, and a maximum would report nothing else."""
    ends = [[0.0, *(iteration.end for iteration in trace.iterations)] for trace in traces]
    gaps = ([end - start for start, end in pairwise(moments)] for moments in ends)
    durations = [median(column) for column in zip(*gaps, strict=True)]
    moments = accumulate(durations, initial=0.0)
    iterations = [
        replace(iteration, time=moment, duration=duration)
        for iteration, moment, duration in zip(traces[0].iterations, moments, durations)
    ]
    return replace(traces[0], iterations=iterations)


def _measure(trace: Trace) -> dict:
    times = token_times(trace)
    first = times.pop("long")[0]
    index = next(event.iteration for event in trace.events if (event.kind, event.request_id) == ("arrive", "long"))
    arrival = trace.iterations[index].time
    return {
        "worst_tbt": max(later - sooner for moments in times.values() for sooner, later in pairwise(moments)),
        "ttft_of_long_prompt": first - arrival,
        "tokens_per_s": sum(map(len, times.values())) / trace.iterations[-1].end,
        "iterations": len(trace.iterations),
    }


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
    line, target = result["line"], f"{number(1000 * result['tbt_target'], 1)} ms"
    if result["first_stall"]:
        target += f" (a sixth of the {number(1000 * result['first_stall'], 1)} ms that the first runs stalled)"
    note = (
        f"{result['decodes']} requests decode {result['max_tokens']} tokens each; a prompt of "
        f"{number(result['long_prompt'])} tokens arrives among them. The budget follows from a promise of {target} "
        f"and a profile: {number(1000 * line['fixed'], 1)} ms an iteration and {number(1e6 * line['per_token'])} "
        "microseconds a token behind a context of that length. The worst gap between two tokens of a request falls by "
        f"{result['worst_tbt_falls']:.1f}x, and {percent(result['throughput_keeps'])} of the throughput is kept; "
        f"every iteration's time is its median over {result['repeats']} runs of each stage that took turns."
    )
    return Table(("stage", "worst TBT ms", "long prompt's TTFT ms", "tokens/s", "iterations"), rows, note)
