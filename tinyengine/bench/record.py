"""What the results of benchmarks depend on: the machine, the versions, the commit."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "transformers")


def circumstances(device: str) -> dict:
    """To be asked before a run: it takes minutes, and it is itself a load. device: "cpu" or "cuda"."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": device,
        "machine": machine(device),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


def machine(device: str) -> dict:
    """waiting: how OpenMP's threads were told to wait for each other, which two or more of them may hang on.
    load: processes that want a core, the mean of the last minute; above `cores`, others kept the machine busy."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "waiting": os.environ.get("OMP_WAIT_POLICY") if torch.get_num_threads() > 1 else None,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
    }


def check_device(device: str | None):
    """Raises ValueError for CUDA where there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no CUDA GPU on this machine: use cpu")


def cpu_model() -> str:
    """As Linux names it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit that was measured, with "-dirty" where files differ from it; outside of a clone what COMMIT in the
    environment says, or None."""
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return os.environ.get("COMMIT")
    return done.stdout.strip() or os.environ.get("COMMIT")
