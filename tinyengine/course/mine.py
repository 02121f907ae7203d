"""The learner's engine: the parts that are kept in work/engine/, in place of the package's own.

    mine.part("MyOrca")                          # the learner's class, or None
    mine.engine(model, "orca", max_num_seqs=3)   # an Engine with the learner's parts, where there are some
    mine.row("orca", work, alone)                # its line for the scoreboard, or None

A part is kept when its exercise has all points (tinyengine.course.keep), and is read anew when its file has changed.
"""

import importlib.util
import linecache
import sys
from pathlib import Path

from tinyengine.course.checks import words
from tinyengine.course.display import publish
from tinyengine.course.grader import manifest
from tinyengine.course.notebooks import CourseError, find_root, short, work_folder
from tinyengine.course.source import KEPT

# The parts of a stage, in the order in which a sentence names them, and the lesson that teaches the stage.
STAGE_PARTS = {
    "static": (1, ("rectangle", "MyStatic", "MySlots", "sample")),
    "orca": (2, ("rectangle", "MyOrca", "MySlots", "sample")),
    "selective": (3, ("MyOrca", "MySlots", "flat", "attend", "attend_each", "sample")),
    "paged": (4, ("MyPaged", "MyBlocks", "flat", "paged_attention", "sample")),
    "chunked": (5, ("MyChunked", "MyBlocks", "flat", "paged_attention", "sample")),
    "invariant": (6, ("MyChunked", "MyBlocks", "flat", "fixed_split_attention", "sample")),
}

PLACES = {  # what each is in the engine, as a sentence names the package's
    "rectangle": "the rectangle",
    "MyStatic": "the scheduler",
    "MyOrca": "the scheduler",
    "MyPaged": "the scheduler",
    "MyChunked": "the scheduler",
    "MyBlocks": "the pool of blocks",
    "paged_attention": "attention over blocks",
    "fixed_split_attention": "attention with fixed splits",
    "MySlots": "the arena",
    "flat": "the stream",
    "attend": "the attention of a request",
    "attend_each": "split and merge",
    "sample": "the sampler",
}

COUNTED = {  # the column that a stage's lesson adds to the scoreboard
    "paged": ("K/V held and empty", lambda m, trace: f"{m.kv_waste:.0%}"),
    "chunked": ("most tokens in one", lambda m, trace: max(step.num_tokens for step in trace.iterations)),
}

_read = {}  # by path: when the file was written, and its module


class PartError(Exception):
    """A part of the learner's engine fails while it serves. A notebook shows the sentence and no traceback."""

    def _render_traceback_(self):
        return [str(self)]


def part(name: str):
    """The learner's function or class of this name; None where none is kept, or where it cannot be imported."""
    path = folder() / f"{name}.py"
    if not path.is_file():
        return None
    try:
        return getattr(module(path), name)
    except (Exception, SystemExit) as error:
        number = exercises().get(name)
        again = f"grade exercise {number} again" if number else "mend it"
        print(f"{place(path)} cannot be used ({words(error)}): {again}; until then the package's own is used.")
        return None


def engine(model, stage: str = "selective", **sizes):
    """An Engine of this stage, fast=False, with the learner's parts in place of the package's. sizes: of Engine.

    Raises ValueError for a stage that has no parts; a part that fails while it serves raises PartError, in a sentence
    that names it.
    """
    from tinyengine.course.plugged import plugged  # imported here: it needs torch

    return plugged(model, stage, parts_of(stage), **sizes)


def row(stage: str, work, alone, **sizes) -> dict | None:
    """The learner's line for the scoreboard, or None without a part of theirs; a sentence says whose each part is.

    work: a workload. alone: the token ids of each of its requests, decoded alone. sizes: of Engine, beside the
    workload's own.
    """
    if not (parts := parts_of(stage)):
        say(whose(stage, parts))
        return None
    from tinyengine import load_model
    from tinyengine.clock import IterationClock
    from tinyengine.metrics import measure

    sizes = dict(max_num_seqs=work.max_num_seqs, num_slots=work.num_slots) | sizes
    yours = engine(load_model("tiny"), stage, **sizes, clock=IterationClock())
    try:
        outputs = [output.token_ids for output in work.replay(yours)]
    except PartError as error:
        print(error)
        return None
    say(whose(stage, parts, yours.called))
    print(first_wrong(outputs, alone), end="")
    m, name, counted = measure(yours.trace), *COUNTED.get(stage, ("", None))
    own = {name: counted(m, yours.trace)} if name else {}
    return {
        "stage": f"yours: {stage}",
        "iterations": m.iterations,
        "idle slot-steps": m.idle_slot_steps,
        "padded rows": m.padded_rows,
        **own,
        "exact": f"{sum(map(same, outputs, alone))}/{len(alone)}",
    }


def same(tokens, right) -> bool:
    return list(tokens) == list(right)


def first_wrong(outputs, alone) -> str:
    """A sentence for the first output that is not that of its request alone; nothing where all are."""
    for number, (tokens, right) in enumerate(zip(outputs, alone)):
        if not same(tokens, right):
            pairs = enumerate(zip([*tokens, None], [*right, None]), 1)
            token = next(place for place, (got, want) in pairs if got != want)
            return f"With your parts the first wrong token is token {token} of r{number}.\n"
    return ""


def parts_of(stage: str) -> dict:
    """The learner's parts of a stage, by name. Raises ValueError for a stage that has none."""
    if stage not in STAGE_PARTS:
        raise ValueError(f"stage is {stage!r}, but the stages with parts of yours are {', '.join(STAGE_PARTS)}")
    found = {name: part(name) for name in STAGE_PARTS[stage][1]}
    return {name: value for name, value in found.items() if value is not None}


def whose(stage: str, parts: dict, called=()) -> str:
    """Which parts of a stage are the learner's, and which are the package's as yet; of lessons up to the stage's.

    called: the names of the learner's parts that have run. Another one is not named: nothing used it.
    """
    lesson, names = STAGE_PARTS[stage]
    numbers = exercises()
    missing = [name for name in names if name not in parts and name in numbers]
    missing = [name for name in missing if int(numbers[name].split(".")[0]) <= lesson]
    yours = f"Yours: {', '.join(name for name in parts if name in called)}."
    yours = yours if parts else "No part of this stage is yours yet."
    theirs = ", ".join(f"{PLACES[name]} (exercise {numbers[name]})" for name in missing)
    return f"{yours} From the package: {theirs}." if missing else yours


def say(sentence: str) -> None:
    publish(sentence, **{"text/markdown": sentence})  # printed, JupyterLab would break it inside words


def exercises() -> dict[str, str]:
    """The exercise of each part, by its name."""
    try:
        entries = manifest(find_root()).values()
    except CourseError:
        return {}
    found = [exercise for entry in entries for exercise in entry["exercises"]]
    return {exercise["part"]: exercise["id"] for exercise in found if "part" in exercise}


def folder() -> Path:
    return work_folder(find_root()) / "engine"


def place(path: Path) -> str:
    """work/engine/MyOrca.py"""
    return short(path, find_root())


def module(path: Path):
    """The module of a part, read again where its file has changed."""
    written = path.stat().st_mtime_ns, path.stat().st_size
    if _read.get(path, (None,))[0] != written:
        linecache.checkcache(str(path))
        name = f"{KEPT}{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        made = importlib.util.module_from_spec(spec)
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(made))  # never from a stale .pyc
        sys.modules[name] = made
        _read[path] = written, made
    return _read[path][1]


def blamed(error: BaseException, parts: dict) -> str:
    """One sentence for an error of an engine with these parts: which part it came from, and where."""
    frames, step = [], error.__traceback__
    while step:
        frames.append((step.tb_frame.f_code.co_filename, step.tb_lineno))
        step = step.tb_next
    files = {file: name for name, value in parts.items() for file in files_of(value)}
    inside = [(files[file], file, line) for file, line in frames if file in files]
    if not inside:
        return f"The engine stops with your {', '.join(parts)}: {words(error)}."
    name, file, line = inside[-1]
    code, is_kept = linecache.getline(file, line).strip(), Path(file).parent == folder()
    where = place(Path(file)) if is_kept else "your cell"
    return f"Your {name} stops the engine: {words(error)} at line {line} of {where}" + (
        f" (`{code}`)." if code else "."
    )


def files_of(value) -> set[str]:
    """Where a function, or the methods of a class, are written."""
    codes = [getattr(part, "__code__", None) for part in (value, *vars(value).values())]
    return {code.co_filename for code in codes if code}
