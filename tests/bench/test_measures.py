"""The benchmarks in a tiny configuration: they measure what they say, and the README says what they measured."""

import io
import json
import subprocess
import sys
from pathlib import Path
from shutil import which
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from tinyengine import STAGES, Engine, SamplingParams, bench, operators
from tinyengine.bench import (
    BENCHMARKS,
    ON_CUDA,
    benchmark,
    limits,
    parts,
    peers,
    profile,
    readme,
    record,
    scheduler,
    stages,
    stall,
    usage,
)
from tinyengine.bench.table import Table, number, percent
from tinyengine.cli import main
from tinyengine.trace import Event, Iteration, Span, Trace
from tinyengine.workload import workload

RESULTS = sorted(readme.RESULTS.glob("*.json"))
KEYS = {"command", "date", "commit", "device", "machine", "versions", "benchmarks"}


@pytest.fixture(scope="module")
def ladder():
    return stages.run(workloads=("course",), repeats=2)


@pytest.fixture(scope="module")
def stalled():
    return stall.run(decodes=2, long_prompt=300, max_tokens=40, sizes=(9, 17, 64), tbt_target=1e-6, repeats=2)


# ------------------------------------------------------------------------------------------------ what they measure


def test_the_ladder_counts_and_times_every_stage(ladder):
    rows = ladder["workloads"]["course"]
    assert [row["stage"] for row in rows] == list(STAGES)
    assert all(row["exact"] is True for row in rows)
    iterations = {row["stage"]: row["iterations"] for row in rows}
    assert iterations["static"] > iterations["orca"] == iterations["selective"] == iterations["paged"]
    padded = {row["stage"]: row["padded_rows"] for row in rows}
    assert padded["static"] > 0 < padded["orca"] and padded["selective"] == padded["paged"] == padded["chunked"] == 0
    assert all(row["ttft_p50_ms"] > 0 < row["tbt_p99_ms"] and row["tokens_per_s"] > 0 for row in rows)


def test_blocks_waste_less_than_4_percent_beyond_each_last_one_and_less_than_a_reservation(ladder):
    rows = {row["stage"]: row for row in ladder["workloads"]["course"]}
    for stage in ("paged", "chunked"):
        assert rows[stage]["kv_waste_past_last_block"] < 0.04
        assert rows[stage]["kv_waste"] < rows["selective"]["kv_waste"] / 2
    assert rows["selective"]["kv_waste"] == rows["selective"]["kv_waste_past_last_block"] > 0.5


def test_the_ladder_takes_medians_of_times_and_says_no_to_one_wrong_output(tiny):
    runs = [stages.Ladder(workload("course"), tiny).run("paged") for _ in range(3)]
    times = sorted(run.row()["tokens_per_s"] for run in runs)
    assert stages._row(runs)["tokens_per_s"] == times[1] and stages._row(runs)["exact"] is True
    runs[1].exact -= 1
    row = stages._row(runs)
    assert row["exact"] is False
    assert "NO" in stages.table({"repeats": 3, "workloads": {"course": [row]}}).markdown()


def test_the_ladder_refuses_an_unknown_stage_before_it_runs():
    with pytest.raises(ValueError, match="stage is 'nope', but the stages are static, orca"):
        stages.run(stages=("paged", "nope"))


def test_the_stall_is_that_of_a_prompt_among_decodes(stalled):
    paged, chunked = stalled["stages"]["paged"], stalled["stages"]["chunked"]
    assert stalled["budget"] == 16  # nothing keeps a promise of a microsecond
    assert paged["iterations"] == 40  # a prompt taken whole costs the decodes no iteration more
    # a prompt is cut as soon as the two decodes leave room: 64 tokens of theirs at first, 300 of the long one
    assert chunked["iterations"] > paged["iterations"]
    assert all(time > 0 for row in (paged, chunked) for time in row.values())
    assert [tokens for tokens, _ in stalled["profile"]] == [9, 17, 64]


def run_of(*durations: float) -> Trace:
    """Two decodes; the second gets no token in the third iteration, where the long prompt, which arrives after the
    first, gets its only one. The machine is away for a while before every iteration but the first."""
    emitting = [("decode 0", "decode 1"), ("decode 0", "decode 1"), ("decode 0", "long"), ("decode 0", "decode 1")]
    trace = Trace(max_num_seqs=3, requests={key: None for key in ("decode 0", "decode 1", "long")})
    trace.events.append(Event(1, "arrive", "long"))
    for names, duration in zip(emitting, durations, strict=True):
        start = trace.iterations[-1].end if trace.iterations else 0.0
        away = 0.5 if trace.iterations else 0.0
        spans = tuple(Span(name, 0, 1, (7,)) for name in names)
        trace.iterations.append(Iteration(start + away, duration - away, spans))
    return trace


def test_the_stall_is_the_longest_gap_of_the_decodes_in_a_typical_run():
    runs = [run_of(1, 2, 3, 4), run_of(1, 2, 30, 5), run_of(10, 2, 4, 5)]
    typical = stall._typical(runs)
    assert [iteration.end for iteration in typical.iterations] == [1, 3, 7, 12]  # medians 1, 2, 4, 5
    assert stall._measure(typical) == {
        "worst_tbt": 9,  # decode 1 from 3 to 12
        "ttft_of_long_prompt": 6,  # from 1 to 7
        "tokens_per_s": 7 / 12,  # of the decodes
        "iterations": 4,
    }


def test_a_promise_left_open_is_a_sixth_of_the_stall(monkeypatch):
    monkeypatch.setattr(stall, "profile", lambda *args, **options: [(16, 0.016), (512, 0.512)])
    runs = {"paged": run_of(0.1, 0.1, 0.3, 0.3), "chunked": run_of(0.1, 0.1, 0.1, 0.1)}
    monkeypatch.setattr(stall, "_once", lambda model, stage, *sizes: runs[stage])
    result = stall.run(repeats=1)
    assert result["tbt_target"] == pytest.approx(0.1)
    assert result["budget"] in (80, 96)  # 100 tokens at a millisecond each, aligned
    assert result["worst_tbt_falls"] == pytest.approx(3) and result["throughput_keeps"] == pytest.approx(2)


def test_the_scheduler_is_measured_with_all_requests_decoding():
    result = scheduler.run(running=8, steps=20)
    assert result["schedulers"].keys() == {"Paged", "Chunked"}
    for row in result["schedulers"].values():
        assert 0 < row["schedule"] < row["both"] and 0 < row["commit"] < row["both"]
    for kind in scheduler.SCHEDULERS:
        made = scheduler._decoding(kind, running=8, steps=20)
        for _ in range(20):  # to the last step all decode, and nobody ends
            plan = made.schedule()
            assert [n for _, n in plan] == [1] * 8
            assert not any(token.finish_reason for token in made.commit(plan, [1] * 8))
            made.memory.check()


@pytest.fixture(scope="module")
def profiled():
    shapes = peers.SHAPES | dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2)
    return profile.run(shapes=shapes, batches=(2, 3), budget=12, matrix=32, rounds=1)


def test_a_profile_has_every_part_of_a_step_and_no_other(profiled):
    steps = profiled["steps"]
    assert list(steps) == ["2 decode", "3 decode", "2 decode, a chunk"]
    assert [step["tokens"] for step in steps.values()] == [2, 3, 12]
    for step in steps.values():
        assert sum(step["parts"].values()) == pytest.approx(step["seconds"])
        assert {*step["parts"]} - {parts.OPERATORS["heads"]} == {*parts.PARTS} - {parts.OPERATORS["heads"]}
        assert all(value > 0 for value in step["parts"].values()) and step["gpu"] is None
        for name in ("bytes_per_s", "flop_per_s", "with_timers", "in_one_go", parts.LINEAR, parts.ATTENTION):
            assert step[name] > 0
        assert all(value > 0 for value in step["others"].values())
        layer = 64 * 16 * 32 + 8 * 32 * 64 + 3 * 64 * 96 + 2 * 64 + 2 * 32
        per_position = 2 * 4 * 32  # K and V, heads, size of a head
        floats = 1024 * 64 + 2 * layer + 64 + step["positions"] * 2 * per_position
        assert step["bytes"] == 4 * floats
    assert profile.table(profiled).markdown().count("| the step |") == 1


def test_a_timed_moment_is_the_innermost_parts(monkeypatch):
    clock = iter([0, 1, 3, 7, 12, 20])
    monkeypatch.setattr(parts, "perf_counter", lambda: next(clock))
    meter = parts.Meter()
    inner = meter.wrap(lambda: None, "inner")

    def work():
        inner()
        inner()

    meter.wrap(work, "outer")()
    assert meter.seconds == {"outer": 1 + 4 + 8, "inner": 2 + 5}


def test_a_watched_engine_gives_the_same_tokens_and_is_left_as_it_was(tiny):
    def tokens(watch: bool) -> list[int]:
        engine = Engine(tiny, num_slots=256)
        engine.add_request([300, 400, 500], SamplingParams(max_tokens=6, ignore_eos=True), "it")
        before = [dict(vars(one)) for one in (engine.scheduler, engine.attention, engine.model, engine.attention.cache)]
        meter, call = parts.Meter(), type(engine.attention).__call__
        with parts.watched(engine, meter.wrap) as step:
            while engine.has_unfinished():
                step() if watch else engine.step()
        after = [dict(vars(one)) for one in (engine.scheduler, engine.attention, engine.model, engine.attention.cache)]
        assert [list(own) for own in after] == [list(own) for own in before]
        assert type(engine.attention).__call__ is call and (parts.LOOP in meter.seconds) is watch
        assert "step" not in vars(engine) and "_layout" not in vars(engine)
        return engine.outputs["it"].token_ids

    assert tokens(True) == tokens(False)


def test_a_gpus_time_goes_to_the_innermost_part_that_launched_it():
    def event(name, parent=None, *kernels):
        each = [SimpleNamespace(name=kernel, duration=duration) for kernel, duration in kernels]
        return SimpleNamespace(name=name, cpu_parent=parent, kernels=each)

    loop = event(parts.LOOP, None, ("attention", 9.0))  # the range itself, as the GPU shows it
    attention = event(parts.ATTENTION, loop, ("triton kernel", 5.0))
    write = event("K/V write", attention)
    events = [loop, attention, write, event("aten::copy_", event("aten::to", write), ("memcpy", 2.0)),
              event("aten::mm", loop, ("gemm", 4.0)), event("aten::fill_", None, ("fill", 1.0))]  # fmt: skip
    assert parts.gpu_parts(events) == pytest.approx({parts.ATTENTION: 5e-6, "K/V write": 2e-6, parts.LOOP: 5e-6})


def test_torchs_profiler_finds_every_operation_of_a_step_in_its_part(tiny):
    engine = Engine(tiny, num_slots=256)
    engine.add_request([300, 400, 500], SamplingParams(max_tokens=6, ignore_eos=True))
    engine.step()
    on_cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=on_cpu) as profiler, parts.watched(engine, parts.ranged) as step:
        step()
    work = SimpleNamespace(name="kernel", duration=1e6)  # as if every operation launched one
    operations = [event for event in profiler.events() if "::" in event.name]
    found = parts.gpu_parts(
        SimpleNamespace(name=event.name, cpu_parent=event.cpu_parent, kernels=[work]) for event in operations
    )
    assert sum(found.values()) == len(operations) and found.keys() <= {*parts.PARTS}
    config = tiny.config
    assert found[parts.LINEAR] >= 4 * config.num_hidden_layers + 1 and found["sampling"] >= 1
    assert {parts.REST, "transfer back"} <= found.keys()


def test_a_profile_with_a_gpu_tells_its_times(profiled):
    on_gpu = {"gpu": {parts.LINEAR: 1e-3, parts.ATTENTION: 2e-3}}
    steps = {name: step | on_gpu for name, step in profiled["steps"].items()}
    table = profile.table(profiled | {"steps": steps})
    rows = {row[0]: row for row in table.rows}
    assert table.header[1:3] == ("2 decode: host µs", "GPU µs")
    assert rows[parts.LINEAR][2] == "1,000" and rows["the step"][2] == "3,000" and rows["schedule"][2] == "-"


SCHEDULED = {"running": 1, "steps": 1, "schedulers": {}}
USAGE = {
    "repeats": 9, "bare_s": 0.02, "import_s": 0.31, "engine_s": 1.9, "demos": 3, "demo_s": 50.0,
    "demo_peak_bytes": 0.5e9, "tests": None,
}  # fmt: skip


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
    monkeypatch.setattr(usage, "_seconds_of_python", lambda text: next(times[own] for own in times if own in text))
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
    assert usage._seconds_of_python("import sys, tinyengine\nassert 'torch' not in sys.modules") > 0
    with pytest.raises(subprocess.CalledProcessError):
        usage._seconds_of_python("assert False")


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


# ------------------------------------------------------------------------------------------------ what is told


def test_a_table_for_a_page_and_for_a_terminal():
    table = Table(("name", "a size", "much"), [("one", "1", "2"), ("two", "", "33")], "A note.")
    assert table.markdown() == "| name | a size | much |\n| --- | ---: | ---: |\n| one | 1 | 2 |\n| two |  | 33 |"
    out = io.StringIO()
    table.show("title", Console(file=out, width=80))
    assert out.getvalue().startswith("title") and out.getvalue().endswith("A note.\n\n")


def test_tables_fit_a_terminal_of_80_columns(ladder, stalled, profiled):
    results = {
        "stages": ladder,
        "stall": stalled,
        "scheduler": scheduler.run(running=4, steps=5),
        "profile": profiled,
        "usage": USAGE,
        "peers": json.loads((readme.RESULTS / "peers.json").read_text(encoding="utf-8"))["benchmarks"]["peers"],
    }
    for name, result in results.items():
        out = io.StringIO()
        benchmark(name).table(result).show(name, Console(file=out, width=80))
        text = out.getvalue()
        assert all(len(line) <= 80 for line in text.splitlines()) and "…" not in text
        for cell in [word for column in benchmark(name).table(result).header for word in column.split()]:
            assert cell in text, f"{name} has lost {cell!r}"


def test_every_record_has_a_table_and_what_is_missing_is_said(tmp_path):
    assert readme.blocks(tmp_path)["usage"] == "Not yet measured: `tinyengine bench usage` measures it."
    whole = json.loads((readme.RESULTS / "peers.json").read_text(encoding="utf-8"))
    for threads in (1, 2):
        whole["machine"]["threads"] = threads
        whole["command"] = f"tinyengine bench peers --device cpu --threads {threads}"
        (tmp_path / f"peers_{threads}.json").write_text(json.dumps(whole), encoding="utf-8")
    both = readme.blocks(tmp_path)["peers"]
    assert both.count("| engine | wall s |") == 2 and both.index("1 of 2 cores") < both.index("2 of 2 cores")
    assert "--threads 2" in both and "Not yet measured" not in both
    whole["machine"]["waiting"] = "PASSIVE"
    (tmp_path / "peers_2.json").unlink()
    (tmp_path / "peers_2_threads.json").write_text(json.dumps(whole), encoding="utf-8")
    parts = readme.blocks(tmp_path)
    assert "2 of 2 cores" not in parts["peers"]
    assert "2 of 2 cores, threads that wait passive" in parts["peers_2_threads"]


def test_a_page_says_where_a_profile_has_no_gpu(profiled, tmp_path):
    record = json.loads((readme.RESULTS / "peers.json").read_text(encoding="utf-8"))
    record["benchmarks"] = {"profile": profiled}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    assert readme.blocks(tmp_path)["profile"].endswith("`tinyengine bench profile --device cuda` measures it.")
    path.write_text(json.dumps(record | {"device": "cuda"}), encoding="utf-8")
    assert "Not yet measured" not in readme.blocks(tmp_path)["profile"]


def test_numbers_and_shares():
    assert [number(None), number(1234.56), number(0.26, 1)] == ["-", "1,235", "0.3"]
    assert percent(0.1234) == "12.3%"


def test_a_page_is_filled_between_its_markers_and_nowhere_else():
    page = "a <!-- one -->\nold\n<!-- /one --> b <!-- two --><!-- /two --> c"
    filled = readme.fill(page, {"one": r"new \1", "two": "2"})
    assert filled == "a <!-- one -->\nnew \\1\n<!-- /one --> b <!-- two -->\n2\n<!-- /two --> c"
    assert readme.fill(filled, {"one": "newer"}).count("newer") == 1
    for half in ("", "<!-- three -->", "<!-- /three -->", 2 * "<!-- three --><!-- /three -->"):
        with pytest.raises(ValueError, match="the page has no one place for 'three'"):
            readme.fill(page + half, {"three": "3"})


def test_the_readme_states_the_measured_figures():
    """They are generated (python -m tinyengine.bench.readme), never typed."""
    made = readme.blocks()
    assert sorted(name for names in readme.PAGES.values() for name in names) == sorted([*BENCHMARKS, *readme.APART])
    for page, names in readme.PAGES.items():
        text = page.read_text(encoding="utf-8")
        assert readme.fill(text, {name: made[name] for name in names}) == text


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_committed_results_are_whole(path):
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written.keys() == KEYS and written["benchmarks"].keys() <= {*BENCHMARKS, *ON_CUDA}
    assert written["versions"].keys() == {"python", "torch", "transformers"} and written["commit"]
    assert written["machine"].keys() == {"cpu", "cores", "threads", "waiting", "load", "gpu"}
    for rows in written["benchmarks"].get("stages", {"workloads": {}})["workloads"].values():
        assert {row["stage"] for row in rows} <= set(STAGES) and all(row["exact"] for row in rows)


def test_peers_say_the_same_as_every_stage_and_are_compared_with_the_limit():
    result = peers.run(loads=(peers.mixed(requests=3, longest=32, max_num_seqs=2),), repeats=1)
    rows = result["loads"]["mixed-2"]["rows"]
    assert [row["name"] for row in rows[:5]] == [
        "transformers, one by one",
        "transformers, static batches",
        "transformers, generate_batch",
        "ours, one by one, layer by layer",
        "ours, one by one",
    ]
    assert [row["name"] for row in rows[5:]] == [f"ours, {stage}" for stage in peers.STAGES_COMPARED]
    assert all(row["exact"] and row["wall_s"] > 0 and row["cpu_s"] > 0 for row in rows)
    assert all(row["limit_s"] > 0 for row in rows[4:])
    assert peers.table(result).markdown().count("yes") == len(rows)


class Multiplications(TorchDispatchMode):
    """Counts them, of the linear layers and of other products."""

    def __init__(self):
        super().__init__()
        self.linear = self.other = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if name in ("linear", "_linear_pointwise"):
            self.linear += out.numel() * args[0].shape[-1]
        elif name in ("matmul", "mm", "bmm"):
            self.other += out.numel() * args[0].shape[-1]
        return out


@pytest.mark.parametrize("stage", peers.STAGES_COMPARED)
def test_the_limit_is_the_products_that_a_schedule_cannot_do_without_and_no_more(tiny, stage, monkeypatch):
    monkeypatch.setattr(operators.PackedForOneThread, "suits", lambda model: False)  # only torch's own can be counted
    load = peers.mixed(requests=5, longest=48, max_num_seqs=3)
    with Multiplications() as engine:
        run = peers.serve(tiny, load, stage)
    with Multiplications() as limit:
        limits.products(tiny, run.trace)
    assert limit.linear == engine.linear > 0
    config = tiny.config
    per_pair = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    least = most = 0
    for span in (span for iteration in run.trace.iterations for span in iteration.spans):
        # decodes of nearly one length share a product, in which the shorter ones are padded
        longest = max(span.end + 2 * limits.PAGE, (span.end + limits.PAGE) * 9 // 8) if span.n_tokens == 1 else span.end
        least += span.n_tokens * span.end * per_pair
        most += span.n_tokens * longest * per_pair
    assert least <= limit.other <= most


def test_the_operations_of_a_step_are_those_of_its_rows_and_of_each_query_with_the_keys_up_to_its_own(tiny):
    spans = [(3, 5), (1, 7), (4, 4)]
    with Multiplications() as rows:
        for layer in tiny.layers:
            own = layer.self_attn, layer.mlp
            for linear in (own[0].qkv_proj, own[0].o_proj, own[1].gate_up_proj, own[1].down_proj):
                linear(torch.zeros(8, linear.in_features))
        tiny.lm_head(torch.zeros(2, tiny.config.hidden_size))
    pairs = (3 + 4 + 5) + 7 + (1 + 2 + 3 + 4)
    config = tiny.config
    per_pair = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    # aten.linear may be seen as its transposed product
    assert limits.flop_of(tiny, spans, due=2) == 2 * (rows.linear + rows.other + pairs * per_pair)


def test_a_peer_with_one_wrong_token_is_not_exact():
    load = peers.mixed(requests=2, longest=32)
    runs = [peers.Run(1.0, 1.0, [[1, 2], [3]]), peers.Run(1.0, 1.0, [[1, 2], [4]])]
    assert peers._row("x", runs[:1], [], [[1, 2], [3]], load)["exact"] is True
    assert peers._row("x", runs, [], [[1, 2], [3]], load)["exact"] is False
