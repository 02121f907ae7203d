"""The script for a machine with a GPU, where there is none: what it says, and what it does with a Python that only says
what a GPU would have said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

PRETENDER = """#!{python}
import json, os, sys
text = " ".join(sys.argv[1:])
if "is_available" in text:
    sys.exit(0)
if "-m pytest" in text:
    print("3 passed in 1s" if "cuda" in text else "1 failed in 1s")
    sys.exit("cuda" not in text)
if "tinyengine demo" in text:
    print("timeline: there")
    sys.exit(0)
if "bench profile" in text:
    sys.exit("it has failed")
if "tinyengine bench" in text:
    rows = [dict(name="all on", seconds=2.0, tokens_per_s=12345.0)]
    record = dict(machine=dict(gpu="NVIDIA Pretender"), versions=dict(torch="2.11"), commit="abc",
                  benchmarks=dict(gpu_serving=dict(workloads=dict(toy=rows))))
    json.dump(record, open(sys.argv[sys.argv.index("--json") + 1], "w"))
    sys.exit(0)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


def script(*parts, **environment):
    env = {key: value for key, value in os.environ.items() if key != "OUT"} | environment
    return subprocess.run([ROOT / "tests" / "gpu_run.sh", *parts], env=env, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_exits_2(tmp_path):
    done = script(OUT=str(tmp_path), PYTHON=sys.executable)
    assert done.returncode == 2 and "torch finds no CUDA GPU on this machine" in done.stderr and not done.stdout


def test_what_it_needs_is_a_folder_and_a_part_that_it_knows(tmp_path):
    assert "OUT: is not set" in script().stderr
    done = script("suit", OUT=str(tmp_path))
    assert done.returncode == 2 and "part is 'suit', but the parts are cuda, suite" in done.stderr


def test_it_runs_its_parts_and_ends_with_a_table(tmp_path):
    python = tmp_path / "python"
    python.write_text(PRETENDER.format(python=sys.executable))
    python.chmod(0o755)
    done = script("cuda", "notebooks", "demo", "profile", "serving", OUT=str(tmp_path / "out"), PYTHON=str(python))
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "NVIDIA Pretender torch 2.11 commit abc" and "12,345" in done.stdout
    last = [line.split() for line in lines[-5:]]
    ends = {"cuda": "ok", "notebooks": "FAILED", "demo": "ok", "profile": "FAILED", "serving": "ok"}
    assert {row[0]: row[1] for row in last} == ends
    assert "3 passed" in lines[-5] and "1 failed" in lines[-4] and "it has failed" in lines[-2]
    assert json.loads((tmp_path / "out" / "gpu_serving.json").read_text())["commit"] == "abc"
    assert (tmp_path / "out" / "notebooks.log").read_text().strip() == "1 failed in 1s"
