"""The house in one table: which files belong together, and how many lines they have."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]

# Room, its modules or its folder, what is in it.
ROOMS = [
    (
        "textbook",
        "request memory scheduler batch qwen3 operators attention sampler stages engine".split(),
        "the engine that the lessons show; it names nothing that comes later",
    ),
    (
        "front desk",
        "params checks queue holding arrivals noise inputs outputs stream guard clock detokenizer trace".split(),
        "what users need beside it: refusals, text, failures, time, what happened",
    ),
    (
        "later ideas",
        "extras prefix_cache speculate priority ablation budget overlap".split(),
        "one file each, put before a class of the textbook by the table in `extras`",
    ),
    ("fast/", "fast", "every acceleration for CPU and GPU; without the folder all stages still run"),
    ("invariant/", "invariant", "the last stage's attention and operators, its self-test, planted faults"),
    ("numbers", "metrics perfetto workload oracle".split(), "what a trace says; workloads; transformers as reference"),
    ("model/", "model", "the embedded model, the script that trained it, the loader"),
    ("simulate/", "simulate", "the same schedulers with a cost model in the model's place"),
    ("verify/", "verify", "the checks of batch invariance"),
    ("bench/", "bench", "what measures, and writes these tables"),
    ("course/", "course", "what notebooks need: shown source, checks, the grader"),
    ("commands", "__init__ __main__ cli demo".split(), "`tinyengine` in a terminal"),
]


def files(modules: list[str] | str) -> list[Path]:
    if isinstance(modules, str):
        return sorted((PACKAGE / modules).rglob("*.py"))
    return [PACKAGE / f"{name}.py" for name in modules]


def lines(paths: list[Path]) -> int:
    """As `wc -l` counts them."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def markdown() -> str:
    """The rooms of `tinyengine/` as a table."""
    rows = ["| room | files | lines | what is in it |", "| --- | --- | ---: | --- |"]
    for name, modules, what in ROOMS:
        paths = files(modules)
        named = f"{len(paths)} files" if isinstance(modules, str) else ", ".join(f"`{module}`" for module in modules)
        rows.append(f"| {name} | {named} | {lines(paths):,} | {what} |")
    return "\n".join(rows)
