"""How fast the simulator is, and how much memory a million requests take."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from tinyengine.bench.table import Table, number
from tinyengine.simulate.deployment import Deployment
from tinyengine.workload import stream

# requests a second; the last of each scheduler is its capacity, for Mistral-7B under a P99 TBT of 0.1 s
RATES = {"orca": 1.0, "vllm-v0": 1.0, "chunked": 1.5, "chunked, full": 3.0}
SCALE_RATE = 1.5


def run(
    device: str = "cpu", requests: int = 2048, repeats: int = 3, scales: tuple[int, ...] = (10_000, 1_000_000)
) -> dict:
    """Trials of `requests` requests, medians of `repeats`; then streams of `scales` requests, each in a process of its
    own, with the most memory that it ever held. No model runs, so `device` makes no difference."""
    trials = [{"name": name, "rate": rate, **_trial(name, rate, requests, repeats)} for name, rate in RATES.items()]
    return {"requests": requests, "trials": trials, "scale": [_alone(count) for count in scales]}


def _trial(name: str, rate: float, requests: int, repeats: int) -> dict:
    scheduler = name.partition(",")[0]
    batch = 16 if scheduler == "orca" else 128
    deployment = Deployment("a100-pcie", "mistral-7b", scheduler, max_num_seqs=batch)
    times = []
    for _ in range(repeats):
        jobs = list(stream("sharegpt", rate, requests))
        started = perf_counter()
        report = deployment.run(jobs)
        times.append(perf_counter() - started)
    return {
        "seconds": median(times),
        "iterations": report.iterations,
        "jumped": report.jumped,
        "iterations_per_s": report.iterations / median(times),
        "batch": report.mean_batch,
        "tbt_p99": report.tbt.percentile(0.99),
        "delay_p50": report.delay.percentile(0.5),
    }


def _alone(requests: int) -> dict:
    """In a fresh process, whose peak is its own."""
    program = f"import json; from tinyengine.bench.simulate import scale; print(json.dumps(scale({requests})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def scale(requests: int) -> dict:
    started = perf_counter()
    report = Deployment("a100-pcie", "mistral-7b").run(stream("sharegpt", SCALE_RATE, requests))
    return {
        "requests": report.finished,
        "seconds": perf_counter() - started,
        "iterations": report.iterations,
        "output_tokens": report.output_tokens,
        "peak_mib": _peak_mib(),
    }


def _peak_mib() -> float:
    """The most memory that was ever resident. Linux's getrusage would count what the parent had before it became us."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes, as macOS has it


def table(result: dict) -> Table:
    rows = [
        (
            f"{trial['name']}, {trial['rate']:g}/s",
            number(result["requests"]),
            number(trial["seconds"], 2),
            number(trial["iterations"]),
            number(trial["iterations_per_s"]),
            "-",
        )
        for trial in result["trials"]
    ]
    rows += [
        (
            f"chunked, {SCALE_RATE:g}/s",
            number(run["requests"]),
            number(run["seconds"], 1),
            number(run["iterations"]),
            number(run["iterations"] / run["seconds"]),
            number(run["peak_mib"]),
        )
        for run in result["scale"]
    ]
    note = (
        "Mistral-7B on one A100 as a roofline, ShareGPT's lengths, so many requests a second, one process. /s: "
        "iterations a second. The simulator takes a stretch of equal iterations, or of a request's decodes, in one go "
        "and with the same result; all of them are counted. full: the highest rate under a P99 TBT of 0.1 s, where "
        "every batch has a chunk. Peak: the process's largest resident memory, most of which is Python and its modules."
    )
    header = ("simulated", "requests", "seconds", "iterations", "/s", "peak MiB")
    return Table(header, rows, note)
