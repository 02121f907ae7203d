"""What the playground has on offer: its controls, the presets of the lessons, and what a setting of all controls is in
work, in traces, in numbers and in code. No widgets."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

from tinyengine.metrics import measure, token_times
from tinyengine.trace import Trace
from visualizers.dummy import STAGES, dry_run


@dataclass(frozen=True)
class Control:
    """A number between low and high, or one of `choices`. Its value is 0 where it is switched off."""

    label: str
    what: str  # the tooltip
    value: int
    low: int = 1
    high: int = 0
    step: int = 1
    choices: tuple[tuple[str, int], ...] = ()


WORKLOAD = {
    "requests": Control("requests", "how many requests there are", 8, 1, 40),
    "prompt": Control("prompt tokens", "tokens of a prompt, in the middle", 8, 1, 120),
    "output": Control("output tokens", "tokens of an output, in the middle", 14, 1, 80),
    "spread": Control("spread, %", "how far the lengths lie from their middle: 0 is all the same", 70, 0, 100, 5),
    "every": Control("arrival gap", "iterations between two arrivals; 0: all are there from the start", 0, 0, 20),
    "order": Control(
        "order", "who stands first in the queue", 0,
        choices=(("as they come", 0), ("short outputs first", 1), ("long outputs first", 2)),
    ),
    "long_prompt": Control("one long prompt", "prompt tokens of a request in the middle; 0: none", 0, 0, 400, 4),
    "max_tokens": Control("max_tokens", "what each asks for, however short its output; 0: its output", 0, 0, 128),
    "shared": Control("shared prefix", "tokens that all prompts begin with, before their own", 0, 0, 128, 4),
}  # fmt: skip
ENGINE = {
    "max_num_seqs": Control("batch slots", "max_num_seqs: most requests in a batch", 3, 1, 16),
    "num_slots": Control("K/V slots", "num_slots: tokens whose keys and values have a place", 320, 16, 1024, 8),
    "block_size": Control(
        "block size", "K/V slots of a block", 8, choices=tuple((str(n), n) for n in (1, 2, 4, 8, 16, 32))
    ),
    "max_num_batched_tokens": Control("token budget", "max_num_batched_tokens: of an iteration", 32, 4, 256, 4),
    "policy": Control(
        "policy", "whose turn it is", 0, choices=(("first come, first served", 0), ("every third is urgent", 3))
    ),
    "ridge": Control("rows a second", "an iteration takes at least a second; 0: always one", 0, 0, 128, 4),
}  # fmt: skip
CONTROLS = WORKLOAD | ENGINE
COLUMNS = {  # of the scoreboard, by name: the title, and what a trace gives. The smaller, the better.
    "iterations": "iterations",
    "time": "time",
    "idle": "idle slot-steps",
    "padding": "padding rows",
    "waste": "K/V held, but empty",
    "ttft": "TTFT, mean",
    "tbt": "TBT, worst",
    "preemptions": "preemptions",
}


@dataclass(frozen=True)
class Preset:
    """What a lesson's reader sees at first. stages, controls, columns: those that the reader knows; all others stand
    behind "more". values: of controls, other than their own. views, clock: of the player."""

    about: str
    stages: tuple[str, ...]
    controls: tuple[str, ...]
    columns: tuple[str, ...]
    values: dict[str, int] = field(default_factory=dict)
    views: tuple[str, ...] = ("slots",)
    clock: str = "iteration"


FIRST = ("iterations", "ttft", "tbt")
SIZES = ("requests", "prompt", "output", "spread")
PRESETS = {
    "00": Preset(
        "one request at a time: a prefill, then decodes of one row each",
        ("static",), ("requests", "prompt", "output"), FIRST,
        {"requests": 4, "max_num_seqs": 1, "output": 10, "spread": 50}, ("slots", "batch"),
    ),
    "01": Preset(
        "static batching: the batch is refilled when its longest request has ended",
        ("static",), ("requests", "output", "spread", "order", "max_num_seqs"), ("iterations", "idle", "ttft", "tbt"),
        {"max_num_seqs": 4},
    ),
    "02": Preset(
        "iteration-level scheduling beside static batching",
        ("static", "orca"), (*SIZES, "every", "max_num_seqs", "num_slots"), ("iterations", "idle", "ttft", "tbt"),
        {"num_slots": 96},
    ),
    "03": Preset(
        "a rectangle of rows beside a flat batch",
        ("orca", "selective"), (*SIZES, "max_num_seqs"), ("iterations", "idle", "padding"),
        {"prompt": 16}, ("slots", "batch"),
    ),
    "04": Preset(
        "K/V slots reserved in one piece beside blocks on demand",
        ("selective", "paged"), (*SIZES, "max_tokens", "shared", "max_num_seqs", "num_slots", "block_size"),
        ("iterations", "idle", "waste", "ttft", "preemptions"),
        {"requests": 12, "max_tokens": 32, "num_slots": 160, "max_num_seqs": 8}, ("memory",),
    ),
    "05": Preset(
        "a long prompt stalls the others, unless it is cut into chunks",
        ("paged", "chunked"),
        ("requests", "output", "every", "long_prompt", "max_num_seqs", "max_num_batched_tokens", "ridge"),
        ("iterations", "time", "ttft", "tbt", "preemptions"),
        {
            "requests": 6, "output": 24, "every": 2, "long_prompt": 240, "ridge": 32,
            "max_num_seqs": 8, "num_slots": 1000,
        },
        ("slots", "batch"), "time",
    ),
}  # fmt: skip


def preset(name: str | int) -> Preset:
    """Raises ValueError for a lesson without one."""
    key = f"{name:02}" if isinstance(name, int) else str(name)
    if key not in PRESETS:
        raise ValueError(f"preset is {name!r}, but the presets are {', '.join(PRESETS)}: the numbers of lessons")
    return PRESETS[key]


def settings_of(chosen: Preset) -> dict[str, int]:
    return {name: control.value for name, control in CONTROLS.items()} | chosen.values


def work(settings: dict[str, int], seed: int) -> list[tuple[int, ...]]:
    """(prompt, output) of each request, and its arrival where not all are there from the start. The same seed gives
    similar requests when a slider moves."""
    chance, spread = random.Random(seed), settings["spread"] / 100

    def around(middle: int) -> int:
        return max(1, round(middle * (1 + spread * (2 * chance.random() - 1))))

    sizes = [(around(settings["prompt"]), around(settings["output"])) for _ in range(settings["requests"])]
    if settings["order"]:
        sizes.sort(key=lambda size: size[1], reverse=settings["order"] == 2)
    if settings["long_prompt"]:
        place = len(sizes) // 2
        sizes[place] = settings["long_prompt"], sizes[place][1]
    sizes = [(prompt + settings["shared"], output) for prompt, output in sizes]
    every = settings["every"]
    return [(*size, number * every) for number, size in enumerate(sizes)] if every else sizes


def options(stage: str, settings: dict[str, int]) -> dict:
    """What dry_run is given: of the settings, those that have an effect on the stage."""
    _, memory, _ = STAGES[stage]
    given = {name: settings[name] for name in ("max_tokens", "shared", "ridge") if settings[name]}
    given |= {"max_num_seqs": settings["max_num_seqs"], "num_slots": settings["num_slots"]}
    if memory.__name__ == "Blocks":
        given["block_size"] = settings["block_size"]
        given |= {"enable_prefix_caching": True} if settings["shared"] else {}
    if stage == "chunked":
        given["max_num_batched_tokens"] = settings["max_num_batched_tokens"]
        given |= {"policy": "priority", "urgent": settings["policy"]} if settings["policy"] else {}
    return given


def name_of(stage: str, settings: dict[str, int]) -> str:
    return "one_by_one" if stage == "static" and settings["max_num_seqs"] == 1 else stage


def traces(stages: list[str], settings: dict[str, int], seed: int) -> dict[str, Trace]:
    """Raises ValueError for a request that can never fit."""
    requests = work(settings, seed)
    return {name_of(stage, settings): dry_run(stage, requests, **options(stage, settings)) for stage in stages}


def scores(trace: Trace) -> dict[str, float]:
    """A row of the scoreboard; times are in iterations, or in seconds where there is a ridge."""
    numbers = measure(trace)
    gaps = [later - sooner for times in token_times(trace).values() for sooner, later in pairwise(times)]
    return {
        "iterations": numbers.iterations,
        "time": max((iteration.end for iteration in trace.iterations), default=0),
        "idle": numbers.idle_slot_steps,
        "padding": numbers.padded_rows,
        "waste": numbers.kv_waste,
        "ttft": numbers.ttft.mean,
        "tbt": max(gaps, default=0),
        "preemptions": numbers.preemptions,
    }


def code(stages: list[str], settings: dict[str, int], seed: int, views: tuple[str, ...]) -> str:
    """The lines that make the same run."""
    requests, lines = work(settings, seed), []
    words = "(prompt, output, arrival)" if len(requests[0]) == 3 else "(prompt, output)"
    for start in range(0, len(requests), 6):
        lines.append("    " + " ".join(f"{size}," for size in requests[start : start + 6]))
    given = [options(stage, settings) for stage in stages]
    common = {name: value for name, value in given[0].items() if all(one.get(name) == value for one in given)}
    runs = []
    for stage, theirs in zip(stages, given):
        own = "".join(f", {name}={value!r}" for name, value in theirs.items() if name not in common)
        runs.append(f'    {name_of(stage, settings)}=dry_run("{stage}", work, **sizes{own}),')
    return "\n".join(
        [
            "from visualizers import compare, dry_run", "",
            f"work = [  # {words} of each request, in tokens", *lines, "]",
            f"sizes = dict({', '.join(f'{name}={value!r}' for name, value in common.items())})",
            "compare(", *runs, f"    views={list(views)},".replace("'", '"'), ")",
        ]
    )  # fmt: skip
