"""`python -m tinyengine.bench.readme` writes the tables of README.md and docs/, between their markers, from
results/*.json, and the README's table of rooms from the files themselves."""

import argparse
import json
import re
from pathlib import Path

from tinyengine.bench import BENCHMARKS, benchmark, rooms

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
PAGES = {
    ROOT / "README.md": ("stages", "stall", "usage"),
    ROOT / "docs" / "measured.md": ("peers", "peers_2_threads", "invariance", "scheduler", "memory", "simulate", "fit"),
    ROOT / "docs" / "profile.md": ("profile",),
}
APART = {"peers_2_threads": "peers"}  # a file of results that has a place of its own, and its benchmark
ALSO_ON_CUDA = ("profile",)  # of these, a page says where they have not been measured on a GPU


def blocks(folder: Path = RESULTS) -> dict[str, str]:
    """What stands between `<!-- name -->` and `<!-- /name -->`, by name of the benchmark: one table for each file of
    results that has it, and what it was run on. The files that stand APART are there by their own names."""
    records = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    apart = {file: _part(name, [records.pop(file)] if file in records else []) for file, name in APART.items()}
    together = {name: [one for one in records.values() if name in one["benchmarks"]] for name in BENCHMARKS}
    return apart | {name: _part(name, own) for name, own in together.items()}


def fill(text: str, parts: dict[str, str]) -> str:
    """The text with every part between its markers. Raises ValueError where the text has no place for one."""
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the page has no one place for {name!r}, but needs a line {begin} and a line {end}")
        text = re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{part}\n{end}", text, flags=re.DOTALL)  # noqa: B023
    return text


def _part(name: str, records: list[dict]) -> str:
    tables = [_block(name, record) for record in records]
    if not tables:
        tables.append(f"Not yet measured: `tinyengine bench {name}` measures it.")
    if name in ALSO_ON_CUDA and not any(record["device"] == "cuda" for record in records):
        tables.append(f"Not yet measured on CUDA: `tinyengine bench {name} --device cuda` measures it.")
    return "\n\n".join(tables)


def _block(name: str, record: dict) -> str:
    table = benchmark(name).table(record["benchmarks"][name])
    return f"{table.markdown()}\n\n{table.note} {_circumstances(record)}"


def _circumstances(record: dict) -> str:
    machine, versions = record["machine"], record["versions"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores"
    if machine.get("waiting"):
        where += f", threads that wait {machine['waiting'].lower()}"
    load = "" if machine["load"] is None else f", load {machine['load']:.1f}"
    return (
        f"Measured on {where}{load}, with torch {versions['torch']}, at commit `{record['commit']}` on "
        f"{record['date'][:10]}, by `{record['command']}`."
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description="Writes the tables of README.md and docs/ from bench/results.").parse_args()
    made = blocks()
    for page, names in PAGES.items():
        parts = {name: made[name] for name in names}
        if page.name == "README.md":
            parts["rooms"] = rooms.markdown()
        page.write_text(fill(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
