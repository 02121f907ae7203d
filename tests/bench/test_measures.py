"""The benchmarks in a tiny configuration measure what they say."""

import pytest

from tinyengine import STAGES
from tinyengine.bench import scheduler, stages, stall
from tinyengine.trace import Event, Iteration, Span, Trace
from tinyengine.workload import workload


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
    monkeypatch.setattr(stall, "one_run", lambda model, stage, *sizes: runs[stage])
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
        made = scheduler.decoding(kind, running=8, steps=20)
        for _ in range(20):  # to the last step all decode, and none ends
            plan = made.schedule()
            assert [n for _, n in plan] == [1] * 8
            assert not any(token.finish_reason for token in made.commit(plan, [1] * 8))
            made.memory.check()
