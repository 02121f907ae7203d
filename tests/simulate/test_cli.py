"""The command line: what it prints and writes, and its one-sentence errors."""

import json
import subprocess
import sys

import pytest

from tinyengine.cli import main
from tinyengine.metrics import measure
from tinyengine.request import SLO_CLASSES
from tinyengine.simulate import paper
from tinyengine.trace import Trace

SMALL = ["simulate", "--requests", "64"]


def test_one_run_is_a_table_and_json(tmp_path, capsys):
    path = tmp_path / "run.json"
    assert main([*SMALL, "--rate", "2", "--slo", "0.1", "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert written["settings"]["gpu"] == "a100-pcie" and written["report"]["finished"] == 64
    text = capsys.readouterr().out
    assert "chunked, mistral-7b on 1 x a100-pcie, sharegpt" in text
    assert f"{written['report']['tbt']['p99']:.4g}" in text


def test_a_run_can_be_recorded_as_the_engine_records_its_own(tmp_path):
    path = tmp_path / "trace.json"
    assert main(["simulate", "--requests", "5", "--trace", str(path)]) == 0
    trace = Trace.load(path)
    assert trace.stage == "chunked" and measure(trace).output_tokens == sum(
        r.max_tokens for r in trace.requests.values()
    )


def test_a_curve_is_a_table_json_and_a_plot(tmp_path, capsys):
    path, plot = tmp_path / "curve.json", tmp_path / "curve.png"
    command = [*SMALL, "--scheduler", "vllm-v0", "--rates", "0.5,4", "--json", str(path), "--plot", str(plot)]
    assert main(command) == 0
    slow, fast = json.loads(path.read_text())["points"]
    assert (slow["rate"], fast["rate"]) == (0.5, 4.0) and slow["ttft"]["p50"] < fast["ttft"]["p50"]
    assert plot.read_bytes().startswith(b"\x89PNG") and "at 4/s" in capsys.readouterr().out


def test_a_capacity_holds_and_a_higher_rate_does_not(tmp_path, capsys):
    path, plot = tmp_path / "capacity.json", tmp_path / "capacity.png"
    command = [*SMALL, "--scheduler", "orca", "--max-num-seqs", "16", "--capacity", "--slo", "0.1"]
    assert main([*command, "--json", str(path), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG") and f"plot: {plot}" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert all(trial["tbt"]["p99"] <= 0.1 for trial in found["trials"] if trial["holds"])
    held = [trial["rate"] for trial in found["trials"] if trial["holds"]]
    missed = [trial["rate"] for trial in found["trials"] if not trial["holds"]]
    assert found["capacity"] == max(held) and 1 < min(missed) / max(held) < 1.03


def test_a_trace_file_and_a_pipeline(tmp_path, capsys):
    trace = tmp_path / "azure.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.2224670,879,55\n"
    )
    path = tmp_path / "run.json"
    command = ["simulate", "--workload", str(trace), "--gpu", "a40", "--model", "llama2-70b", "--tp", "4", "--pp", "2"]
    assert main([*command, "--json", str(path)]) == 0
    report = json.loads(path.read_text())["report"]
    assert report["output_tokens"] == 44 + 109 + 55 and report["bubble_share"] > 0


def test_a_search_that_found_no_limit_prints_no_capacity(tmp_path, capsys):
    path = tmp_path / "capacity.json"
    command = ["simulate", "--requests", "1", "--capacity", "--slo", "0.1", "--json", str(path)]
    assert main(command) == 0 and json.loads(path.read_text())["capacity"] is None
    text = capsys.readouterr().out
    assert "no limit found: 4096 requests/s" in text and "capacity:" not in text


def test_a_promise_that_no_rate_keeps_is_said_to_be_one(capsys):
    assert main([*SMALL, "--capacity", "--slo", "0.000001"]) == 0
    text = capsys.readouterr().out
    assert "no rate keeps the promise (P99 TBT <= 1e-06 s" in text and "capacity:" not in text


def test_a_capacity_says_which_promises_it_asks_for(capsys):
    assert main([*SMALL, "--scheduler", "orca", "--max-num-seqs", "16", "--capacity", "--slo", "interactive"]) == 0
    text = capsys.readouterr().out
    ttft = SLO_CLASSES["interactive"].ttft
    assert (
        "median delay <= 2 s" in text and f"a TTFT of {ttft:g} s, which interactive promises too, is not asked" in text
    )
    assert "at RATE: how fast requests arrive" in text


def test_arxiv_has_longer_requests_than_the_default(tmp_path):
    path = tmp_path / "run.json"
    assert main([*SMALL, "--workload", "arxiv", "--scheduler", "orca", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["settings"]["max_model_len"] == 16384


@pytest.mark.parametrize(("text", "words"), [("# a page", "is no recorded trace"), ("[]", "is no recorded trace")])
def test_a_fit_to_no_trace_names_the_file(text, words, tmp_path, capsys):
    path = tmp_path / "README.md"
    path.write_text(text)
    assert main([*SMALL, "--fit", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and words in error and error.count("\n") == 1


def test_an_empty_file_is_called_empty(tmp_path, capsys):
    path = tmp_path / "none.csv"
    path.write_text("")
    assert main(["simulate", "--workload", str(path)]) == 2
    assert f"{path} is empty: it needs the columns arrival, prompt, output or TIMESTAMP" in capsys.readouterr().err


@pytest.mark.parametrize("start", [["tinyengine", "simulate"], ["tinyengine.simulate"]])
def test_the_paper_table_is_reached_both_ways(start):
    done = subprocess.run([sys.executable, "-m", *start, "paper", "--tp", "2"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == (
        "tinyengine: the paper table has settings of its own: leave --tp out\n"
    )


def test_the_paper_table_says_what_its_classes_are(monkeypatch, capsys):
    monkeypatch.setattr(paper, "rows", paper.counted)
    assert main(["simulate", "paper"]) == 0
    text = capsys.readouterr().out
    assert "class" in text and "class: A exact, B a roofline by hand" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpu", "b200"], ["'b200'", "a100-pcie", "rtx-4090"]),
        (["--model", "gpt"], ["'gpt'", "mistral-7b", "qwen3-0.6b"]),
        (["--scheduler", "sarathi"], ["'sarathi'", "chunked", "vllm-v0"]),
        (["--workload", "lmsys"], ["'lmsys'", "sharegpt", "short_long_mix", ".csv"]),
        (["--workload", "course"], ["'course' has prompts of text"]),
        (["--workload", "none.csv"], ["none.csv"]),
        (["--slo", "soon"], ["'soon'", "interactive", "batch"]),
        (["--slo", "-1"], ["-1"]),
        (["--capacity"], ["--slo"]),
        (["--rates", "1,x"], ["'1,x'"]),
        (["--rate", "0"], ["rate is 0.0"]),
        (["--workload", "equal_size", "--rates", "1"], ["'equal_size'", "sharegpt, arxiv"]),
        (["--model", "yi-34b", "--gpu", "rtx-4090"], ["yi-34b has", "1 x rtx-4090", "raise tp or pp"]),
        (["--tp", "0"], ["tp is 0"]),
        (["--plot", "curve.png"], ["--plot draws a curve", "give --rates or --capacity"]),
        (["--trace", "run.json", "--rates", "1,2"], ["--trace writes one run"]),
        (["--requests", "0"], ["--requests is 0"]),
        (["--requests", "-3"], ["--requests is -3"]),
        (["--max-model-len", "-5"], ["--max-model-len is -5"]),
        (["--max-model-len", "0", "--scheduler", "orca"], ["--max-model-len is 0"]),
        (["--max-model-len", "100"], ["'r0'", "--max-model-len is 100"]),
        (["--max-model-len", "100", "--scheduler", "orca"], ["'r0'", "--max-model-len is 100"]),
        (["--max-model-len", "100", "--rates", "1"], ["'r0'", "--max-model-len is 100"]),
        (["--num-slots", "100", "--scheduler", "orca"], ["--max-model-len", "100 slots", "--num-slots"]),
        (["--token-budget", "0"], ["--token-budget is 0"]),
        (["--tp", "3"], ["tp is 3", "32 heads", "1, 2, 4, 8, 16, 32"]),
        (["--rates", ""], ["rates is ''"]),
        (["--rate", "4", "--capacity", "--slo", "0.1"], ["--rate is of one run"]),
        (["--rate", "4", "--rates", "1"], ["--rate is of one run"]),
        (["--rate", "4", "--workload", "short_long_mix"], ["--rate makes Poisson arrivals", "short_long_mix"]),
        (["--json", "no/such/run.json"], ["--json is no/such/run.json", "make it first"]),
        (["--full"], ["simulate paper --full"]),
        (["paper"], ["leave --requests out"]),
    ],
)
def test_errors_are_one_sentence_and_list_what_is_known(options, words, capsys):
    assert main([*SMALL, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tinyengine: ") and error.count("\n") == 1
    assert all(word in error for word in words)
