"""The README says what was measured."""

import io
import json

import pytest
from helpers.results import USAGE
from rich.console import Console

from tinyengine import STAGES
from tinyengine.bench import BENCHMARKS, ON_CUDA, benchmark, readme, scheduler
from tinyengine.bench.table import Table, number, percent

RESULTS = sorted(readme.RESULTS.glob("*.json"))
KEYS = {"command", "date", "commit", "device", "machine", "versions", "benchmarks"}


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
