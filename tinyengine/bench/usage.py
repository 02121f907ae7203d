"""What using it costs: `import tinyengine`, `make demo`, and, when asked for, `make test`."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter

from tinyengine.bench.readme import RESULTS
from tinyengine.bench.record import ROOT, commit
from tinyengine.bench.table import Table, number

# one gigabyte is 1e9 bytes
AT_MOST = {"import_s": 0.3, "demo_s": 60.0, "demo_peak_bytes": 2e9, "tests_s": 20 * 60.0}

# A process of its own: what the kernel calls the peak of a new process begins with the size of the one that made it.
WATCH = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
status = subprocess.run(sys.argv[1:], stdout=sys.stderr).returncode
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"status": status, "seconds": seconds, "peak_bytes": peak}))
"""


def run(device: str = "cpu", tests: bool = False, repeats: int = 9, demos: int = 3) -> dict:
    """Seconds and bytes. tests: runs `make test` too, which takes minutes; else the result keeps what the last recorded
    run of it took, or None. Every process chooses its device itself, so `device` makes no difference.

    Raises ValueError where there is no Makefile, and for a demo that fails.
    """
    if not (ROOT / "Makefile").exists():
        raise ValueError(f"usage runs `make`, but there is no Makefile in {ROOT}: run it in a clone")
    bare, imported, engine = [], [], []
    for _ in range(repeats):
        bare.append(seconds_of_python("pass"))
        imported.append(seconds_of_python("import sys, tinyengine\nassert 'torch' not in sys.modules"))
        engine.append(seconds_of_python("from tinyengine import Engine, load_model"))
    runs = [watch(make("demo")) for _ in range(demos)]
    if any(one["status"] for one in runs):
        raise ValueError("`make demo` has failed: run it by itself to see why")
    return {
        "repeats": repeats,
        "bare_s": median(bare),
        "import_s": median(imported) - median(bare),
        "engine_s": median(engine) - median(bare),
        "demos": demos,
        "demo_s": median(one["seconds"] for one in runs),
        "demo_peak_bytes": max(one["peak_bytes"] for one in runs),
        "tests": _tests() if tests else _recorded_tests(),
    }


def make(target: str) -> list[str]:
    """The command, with this Python's environment in the place of .venv."""
    return ["make", "-C", str(ROOT), "-o", ".venv/installed", f"BIN={Path(sys.executable).parent}", target]


def watch(command: list[str], quiet: bool = True) -> dict:
    """Runs a command to its end: "status", "seconds", and as "peak_bytes" the most memory that a process of it held."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def seconds_of_python(program: str) -> float:
    started = perf_counter()
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    return perf_counter() - started


def _tests() -> dict:
    before = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    done = watch(make("test"), quiet=False)
    return {**before, "seconds": done["seconds"], "passed": done["status"] == 0}


def _recorded_tests() -> dict | None:
    path = RESULTS / "usage.json"
    return json.loads(path.read_text(encoding="utf-8"))["benchmarks"]["usage"]["tests"] if path.exists() else None


def table(result: dict) -> Table:
    tests = result["tests"]
    rows = [
        _row("`import tinyengine`", result["import_s"], AT_MOST["import_s"], "s", 1, 3),
        ("with its engine", f"{number(result['engine_s'], 1)} s", "-", "-"),
        _row("`make demo`", result["demo_s"], AT_MOST["demo_s"], "s", 1, 1),
        _row("its peak memory", result["demo_peak_bytes"], AT_MOST["demo_peak_bytes"], "GB", 1e9, 2),
    ]
    if tests is None:
        rows.append(("`make test`", "not measured", f"{AT_MOST['tests_s'] / 60:g} minutes", "-"))
    else:
        row = _row("`make test`", tests["seconds"], AT_MOST["tests_s"], "minutes", 60, 1)
        rows.append(row if tests["passed"] else (*row[:-1], "FAILED"))
    when = "" if tests is None else f" `make test`: at commit `{tests['commit']}` on {tests['date'][:10]}."
    note = (
        f"`import tinyengine`: beyond the {number(result['bare_s'], 3)} s that Python takes to start, medians of "
        f"{result['repeats']} fresh processes in turn; torch is not loaded before its engine is. `make demo`: the "
        f"median of {result['demos']} runs, and the most that a process of theirs held. Both `make` without making "
        f"the environment.{when}"
    )
    return Table(("", "measured", "at most", "kept"), rows, note)


def _row(name: str, value: float, limit: float, unit: str, size: float, digits: int) -> tuple[str, ...]:
    kept = "yes" if value <= limit else "NO"
    return name, f"{number(value / size, digits)} {unit}", f"{limit / size:g} {unit}", kept
