"""The command: what it writes, and what it refuses."""

import json

import pytest
import torch
from helpers.results import SCHEDULED, USAGE

from tinyengine import bench
from tinyengine.bench import BENCHMARKS, benchmark, record, scheduler, usage
from tinyengine.cli import main

KEYS = {"command", "date", "commit", "device", "machine", "versions", "benchmarks"}


# ------------------------------------------------------------------------------------------------ what is written


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_module_that_runs_and_tells(name):
    module = benchmark(name)
    assert module.run.__defaults__[0] == "cpu" and callable(module.table)


def test_the_command_writes_results_and_all_that_they_depend_on(capsys, tmp_path, monkeypatch):
    whole = scheduler.run
    monkeypatch.setattr(scheduler, "run", lambda device: whole(device, running=4, steps=5))
    path = tmp_path / "bench.json"
    assert main(["bench", "scheduler", "--json", str(path)]) == 0
    assert "4 requests decode; medians of 5 steps" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert written.keys() == KEYS
    assert written["command"] == "tinyengine bench scheduler --device cpu" and written["device"] == "cpu"
    assert written["benchmarks"].keys() == {"scheduler"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nope"], f"benchmark is 'nope', but the benchmarks are {', '.join(BENCHMARKS)}"),
        (["scheduler", "nope"], "benchmark is 'nope', but the benchmarks are"),
    ],
)
def test_an_unknown_benchmark_is_refused_before_anything_runs(capsys, argv, message):
    assert main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert not out and message in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["scheduler", "--threads", "0"], "threads is 0, but must be at least 1"),
        (["scheduler", "--tests"], "tests are run by the benchmark 'usage', which is not asked for"),
    ],
)
def test_options_out_of_their_limits_are_refused(capsys, argv, message):
    assert main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert not out and message in err and "Traceback" not in err


def test_threads_are_set_and_recorded(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(scheduler, "run", lambda device: seen.append(torch.get_num_threads()) or SCHEDULED)
    before = torch.get_num_threads()
    try:
        bench.run(["scheduler"], path=tmp_path / "a.json", threads=2)
    finally:
        torch.set_num_threads(before)
    written = json.loads((tmp_path / "a.json").read_text())
    assert seen == [2] and written["machine"]["threads"] == 2
    assert written["command"] == "tinyengine bench scheduler --device cpu --threads 2"


def test_tests_are_run_by_usage_alone(tmp_path, monkeypatch):
    given = {}
    for module, result in ((scheduler, SCHEDULED), (usage, USAGE)):

        def run(device, *, module=module, result=result, **options):
            given[module] = options
            return result

        monkeypatch.setattr(module, "run", run)
    bench.run(["scheduler", "usage"], path=tmp_path / "a.json", tests=True)
    assert given == {scheduler: {}, usage: {"tests": True}}
    assert json.loads((tmp_path / "a.json").read_text())["command"].endswith("usage --device cpu --tests")


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(record.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is 'cuda', but torch finds no CUDA GPU"):
        bench.run(["scheduler"], "cuda")


def test_a_record_outside_of_a_clone_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record.commit() is None
