"""Benchmarks: what is claimed of speed, measured by one command, `tinyengine bench`, with the machine beside it.

A benchmark is a module with `run(device, **sizes) -> dict`, which measures, and `table(result) -> Table`, which tells.
A file in results/ is what one such command wrote; the README's tables are made from there (tinyengine.bench.readme).
"""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

BENCHMARKS = ("stages", "stall", "peers", "usage", "invariance", "scheduler", "memory", "simulate", "fit", "profile")
ON_CUDA = ("gpu", "gpu_serving")  # of a GPU alone; `--device cuda` runs these unless others are named


def benchmark(name: str) -> ModuleType:
    """The module of that name. Raises ValueError for an unknown one."""
    known = BENCHMARKS + ON_CUDA
    if name not in known:
        raise ValueError(f"benchmark is {name!r}, but the benchmarks are {', '.join(known)}")
    return import_module(f"tinyengine.bench.{name}")


def run(
    names: Sequence[str],
    device: str = "cpu",
    path: Path | None = None,
    threads: int | None = None,
    tests: bool = False,
):
    """Runs the benchmarks, prints their tables, and writes all that is to be kept to `path`.

    threads: of torch's products, in this process; as torch chooses if None. tests: `usage` runs `make test` too.
    Raises ValueError for an unknown name, for threads below 1, for tests without `usage`, and for a device that is not
    there, before anything runs.
    """
    modules = {name: benchmark(name) for name in names}
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}, but must be at least 1")
    if tests and "usage" not in modules:
        raise ValueError("tests are run by the benchmark 'usage', which is not asked for: name it too")
    import torch  # `tinyengine bench --help` needs none
    from rich.console import Console

    from tinyengine.bench.record import check_device, circumstances

    check_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    given = f"--device {device}" + (f" --threads {threads}" if threads else "") + (" --tests" if tests else "")
    console, before, results = Console(), circumstances(device), {}
    for name, module in modules.items():
        options = {"tests": True} if tests and name == "usage" else {}
        results[name] = module.run(device, **options)
        if path:  # after each: an hour's results do not hang on the last of them
            whole = {"command": f"tinyengine bench {' '.join(results)} {given}", **before, "benchmarks": results}
            path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        module.table(results[name]).show(name, console)
