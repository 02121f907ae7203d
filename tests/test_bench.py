"""The benchmarks in a tiny configuration: they measure what they say, and the README says what they measured."""

import io
import json

import pytest
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from tinyengine import STAGES, bench
from tinyengine.bench import BENCHMARKS, ON_CUDA, benchmark, limits, peers, readme, record, scheduler, stages, stall
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


def test_tables_fit_a_terminal_of_80_columns(ladder, stalled):
    results = {"stages": ladder, "stall": stalled, "scheduler": scheduler.run(running=4, steps=5)}
    for name, result in results.items():
        out = io.StringIO()
        benchmark(name).table(result).show(name, Console(file=out, width=80))
        text = out.getvalue()
        assert all(len(line) <= 80 for line in text.splitlines()) and "…" not in text
        for cell in [word for column in benchmark(name).table(result).header for word in column.split()]:
            assert cell in text, f"{name} has lost {cell!r}"


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
    parts = readme.blocks()
    assert all(parts.values()), "a benchmark has no results"
    assert sorted(name for names in readme.PAGES.values() for name in names) == sorted(BENCHMARKS)
    for page, names in readme.PAGES.items():
        text = page.read_text(encoding="utf-8")
        assert readme.fill(text, {name: parts[name] for name in names}) == text


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_committed_results_are_whole(path):
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written.keys() == KEYS and written["benchmarks"].keys() <= {*BENCHMARKS, *ON_CUDA}
    assert written["versions"].keys() == {"python", "torch", "transformers"} and written["commit"]
    assert written["machine"].keys() == {"cpu", "cores", "threads", "load", "gpu"}
    for rows in written["benchmarks"].get("stages", {"workloads": {}})["workloads"].values():
        assert {row["stage"] for row in rows} <= set(STAGES) and all(row["exact"] for row in rows)


def test_peers_say_the_same_as_every_stage_and_are_compared_with_the_limit():
    result = peers.run(loads=(peers.mixed(requests=3, longest=32, max_num_seqs=2),), repeats=1)
    rows = result["loads"]["mixed"]["rows"]
    assert [row["name"] for row in rows[:4]] == [
        "transformers, one by one",
        "transformers, static batches",
        "transformers, generate_batch",
        "ours, a forward for each request",
    ]
    assert [row["name"] for row in rows[4:]] == [f"ours, {stage}" for stage in peers.STAGES_COMPARED]
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
def test_the_limit_is_the_products_that_a_schedule_cannot_do_without_and_no_more(tiny, stage):
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


def test_a_peer_with_one_wrong_token_is_not_exact():
    load = peers.mixed(requests=2, longest=32)
    runs = [peers.Run(1.0, 1.0, [[1, 2], [3]]), peers.Run(1.0, 1.0, [[1, 2], [4]])]
    assert peers._row("x", runs[:1], [], [[1, 2], [3]], load)["exact"] is True
    assert peers._row("x", runs, [], [[1, 2], [3]], load)["exact"] is False
