"""The simulator needs no torch, and its import is cheap: what is heavy is imported where it is used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "numpy", "matplotlib", "rich", "tqdm", "pandas", "scipy"}
RUN = """
from tinyengine.simulate.deployment import Deployment
from tinyengine.workload import stream
assert Deployment("h100", "qwen3-8b").run(stream(requests=5)).finished == 5
"""


@pytest.mark.parametrize("program", ["import tinyengine.simulate.cli, tinyengine.simulate.paper", RUN])
def test_no_torch_and_nothing_heavy_is_loaded(program):
    program += "\nimport json, sys\nprint(json.dumps(sorted(name.partition('.')[0] for name in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not HEAVY & set(json.loads(done.stdout))


def test_the_simulator_names_no_clock():
    for path in (ROOT / "tinyengine" / "simulate").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import time" not in text and "perf_counter" not in text and "datetime" not in text, path.name
