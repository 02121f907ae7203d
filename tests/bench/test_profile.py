"""Where the time of a step goes: every part has its own, and none has another's."""

from types import SimpleNamespace

import pytest
import torch

from tinyengine import STAGES, Engine, SamplingParams
from tinyengine.bench import parts, profile


def test_a_profile_has_every_part_of_a_step_and_no_other(profiled):
    steps = profiled["steps"]
    assert list(steps) == ["2 decode", "3 decode", "2 decode, a chunk"]
    assert [step["tokens"] for step in steps.values()] == [2, 3, 12]
    for step in steps.values():
        assert sum(step["parts"].values()) == pytest.approx(step["seconds"])
        assert {*step["parts"]} == {*parts.PARTS}
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


def layer_by_layer(model, stage: str, fast: bool) -> Engine:
    engine = Engine(model, stage, num_slots=256, fast=fast, **({"compiled_decode": False} if fast else {}))
    engine.add_request([300, 400, 500], SamplingParams(max_tokens=6, ignore_eos=True), "it")
    return engine


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_every_part_of_every_stage_is_watched(tiny, stage, fast):
    engine, meter = layer_by_layer(tiny, stage, fast), parts.Meter()
    with parts.watched(engine, meter.wrap) as step:
        while engine.has_unfinished():
            step()
    assert meter.seconds.keys() == {*parts.PARTS} and min(meter.seconds.values()) > 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_watched_engine_gives_the_same_tokens_and_is_left_as_it_was(tiny, stage):
    def tokens(watch: bool) -> list[int]:
        engine = layer_by_layer(tiny, stage, fast=True)
        whole = engine, engine.outputs, engine.trace, engine.scheduler, engine.attention, engine.model
        before = [{*vars(one), "batch_size"} for one in (*whole, engine.attention.cache)]  # Static's, once it runs
        meter, call = parts.Meter(), type(engine.attention).__call__
        with parts.watched(engine, meter.wrap) as step:
            while engine.has_unfinished():
                step() if watch else engine.step()
        assert [{*vars(one), "batch_size"} for one in (*whole, engine.attention.cache)] == before
        assert type(engine.attention).__call__ is call and (parts.LOOP in meter.seconds) is watch
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
