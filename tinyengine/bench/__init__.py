"""Benchmarks: what is claimed of speed, measured by one command, `tinyengine bench`, with the machine beside it.

A benchmark is a module with `run(device, **sizes) -> dict`, which measures, and `table(result) -> Table`, which tells.
A file in results/ is what one such command wrote; the README's tables are made from there (tinyengine.bench.readme).
"""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

BENCHMARKS = ("stages", "stall", "peers", "invariance", "scheduler", "simulate", "fit")
ON_CUDA = ("gpu", "gpu_serving")  # of a GPU alone; `--device cuda` runs these unless others are named


def benchmark(name: str) -> ModuleType:
    """The module of that name. Raises ValueError for an unknown one."""
    known = BENCHMARKS + ON_CUDA
    if name not in known:
        raise ValueError(f"benchmark is {name!r}, but the benchmarks are {', '.join(known)}")
    return import_module(f"tinyengine.bench.{name}")


def run(names: Sequence[str], device: str = "cpu", path: Path | None = None):
    """Runs the benchmarks, prints their tables, and writes all that is to be kept to `path`.

    Raises ValueError for an unknown name and for a device that is not there, before anything runs.
    """
    modules = {name: benchmark(name) for name in names}
    from rich.console import Console  # imported here: the command line's help needs none of it

    from tinyengine.bench.record import check_device, circumstances

    check_device(device)
    console, before, results = Console(), circumstances(device), {}
    for name, module in modules.items():
        results[name] = module.run(device)
        if path:  # after each: an hour's results do not hang on the last of them
            command = f"tinyengine bench {' '.join(results)} --device {device}"
            whole = {"command": command, **before, "benchmarks": results}
            path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        module.table(results[name]).show(name, console)
