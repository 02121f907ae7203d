"""What using it costs: fresh processes, their peaks, and the limits."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from helpers.results import USAGE

from tinyengine.bench import usage


def test_usage_is_held_to_its_limits():
    assert [row[3] for row in usage.table(USAGE).rows] == ["NO", "-", "yes", "yes", "-"]
    assert usage.table(USAGE).rows[4][1:3] == ("not measured", "20 minutes")
    for seconds, passed, told in [(600, True, "yes"), (1201, True, "NO"), (600, False, "FAILED")]:
        tests = {"commit": "abc", "date": "2026-01-02T03", "seconds": seconds, "passed": passed}
        table = usage.table(USAGE | {"tests": tests})
        assert table.rows[4][3] == told and "at commit `abc` on 2026-01-02" in table.note


def test_usage_measures_fresh_processes_and_keeps_what_was_measured_of_the_tests(monkeypatch, tmp_path):
    calls = []

    def watch(command, quiet=True):
        calls.append(command[-1])
        return {"status": 0, "seconds": 5.0, "peak_bytes": 10 * len(calls)}

    monkeypatch.setattr(usage, "watch", watch)
    monkeypatch.setattr(usage, "RESULTS", tmp_path)
    times = {"pass": 1.0, "Engine": 4.0, "import sys, tinyengine": 1.5}  # of a process, by what is in its program
    monkeypatch.setattr(usage, "seconds_of_python", lambda text: next(times[own] for own in times if own in text))
    first = usage.run(repeats=1, demos=2)
    assert calls == ["demo", "demo"] and first["demo_peak_bytes"] == 20 and first["tests"] is None
    assert first["bare_s"] == 1.0 and first["engine_s"] == 3.0 and first["import_s"] == 0.5
    second = usage.run(repeats=1, demos=1, tests=True)
    assert calls[-1] == "test" and second["tests"]["passed"] is True and second["tests"]["seconds"] == 5.0
    (tmp_path / "usage.json").write_text(json.dumps({"benchmarks": {"usage": second}}), encoding="utf-8")
    assert usage.run(repeats=1, demos=1)["tests"] == second["tests"]
    monkeypatch.setattr(usage, "watch", lambda command: {"status": 2, "seconds": 1.0, "peak_bytes": 1})
    with pytest.raises(ValueError, match="`make demo` has failed"):
        usage.run(repeats=1, demos=1)
    monkeypatch.setattr(usage, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="there is no Makefile in"):
        usage.run()


def test_a_fresh_python_that_fails_is_an_error():
    assert usage.seconds_of_python("import sys, tinyengine\nassert 'torch' not in sys.modules") > 0
    with pytest.raises(subprocess.CalledProcessError):
        usage.seconds_of_python("assert False")


def test_the_peak_is_that_of_the_process_that_held_most_and_not_of_the_one_that_asks():
    ours = bytearray(200 * 2**20)  # a new process begins as a copy of this one
    hold = f"{sys.executable} -c 'bytearray({100 * 2**20})'"
    for command, least in ((["true"], 0), (["sh", "-c", f"{hold}; true"], 100 * 2**20)):
        found = usage.watch(command)
        assert found["status"] == 0 and least < found["peak_bytes"] < least + 60 * 2**20
    assert usage.watch(["sh", "-c", "exit 3"])["status"] == 3 and len(ours)


@pytest.mark.skipif(which("make") is None, reason="there is no make")
def test_make_runs_with_this_environment_and_makes_none():
    said = subprocess.run([*usage.make("demo"), "-n"], capture_output=True, text=True, check=True).stdout
    assert f"{Path(sys.executable).parent}/tinyengine demo" in said and "venv " not in said and "pip" not in said
