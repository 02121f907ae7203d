"""The growth of a process that serves for long, measured on a few requests."""

import sys
from types import SimpleNamespace

import torch

from tinyengine.bench import memory


def test_every_kind_of_trace_is_measured_in_a_process_of_its_own(monkeypatch, capsys):
    """Here in this one, to save the seconds in which torch is imported."""

    def in_this_process(command, **options):
        monkeypatch.setattr(sys, "argv", command[2:])
        exec(compile(command[2], "case", "exec"), {})  # as `python -c` does
        return SimpleNamespace(stdout=capsys.readouterr().out)

    monkeypatch.setattr(memory.subprocess, "run", in_this_process)
    result = memory.run(requests=40, unbounded=20, queued=10, kept=5)
    assert list(result["cases"]) == ["the last 5", "none", "all"]
    for case, count in zip(result["cases"].values(), (40, 40, 20), strict=True):
        assert count <= case["requests"] < count + memory.MAX_NUM_SEQS and case["iterations"] > 0
    table = memory.table(result)
    assert [row[-1] for row in table.rows] == ["yes", "yes", "-"]


def test_more_than_may_be_is_said():
    case = {"requests": 100_000, "iterations": 9, "warm_up_bytes": 1e6, "growth_bytes": 2.1e7, "seconds": 1.0}
    table = memory.table({"queued": 9, "kept": 1000, "cases": {"the last 1,000": case}})
    assert table.rows == [("the last 1,000", "100,000", "9", "1.0", "21.0", "210", "NO")]


def test_the_memory_of_this_process_is_known():
    before = memory.resident()
    held = torch.ones(20_000_000)
    assert 70e6 < memory.resident() - before < 100e6 and len(held)
