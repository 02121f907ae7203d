"""The command line: what it prints and writes, and its one-sentence errors."""

import json

import pytest

from tinyengine.cli import main
from tinyengine.metrics import measure
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


def test_a_capacity_holds_and_twice_of_it_does_not(tmp_path):
    path = tmp_path / "capacity.json"
    command = [*SMALL, "--scheduler", "orca", "--max-num-seqs", "16", "--capacity", "--slo", "0.1"]
    assert main([*command, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
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
        (["--plot", "curve.png"], ["--plot draws a curve", "give --rates"]),
        (["--trace", "run.json", "--rates", "1,2"], ["--trace writes one run"]),
    ],
)
def test_errors_are_one_sentence_and_list_what_is_known(options, words, capsys):
    assert main([*SMALL, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tinyengine: ") and error.count("\n") == 1
    assert all(word in error for word in words)
