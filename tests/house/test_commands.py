"""The commands as a user types them: what they print, and how they refuse."""

import json
import subprocess
import sys

import pytest
import torch

from tinyengine import STAGES, cli, demo
from tinyengine.cli import main

REFUSED = [
    (["demo", "--workload", "nope"], "workload is 'nope', but the workloads are course, equal_size"),
    (["demo", "--stages", "static,nope"], f"stage is 'nope', but the stages are {', '.join(STAGES)}"),
    (["demo", "--stages", ""], "stage is ''"),
    (["demo", "--html", "no/such/page.html"], "--html is no/such/page.html, but there is no folder no/such"),
    (["demo", "--json", "/"], "--json is /, but that is a folder"),
    (["verify", "--json", "no/such/ledger.json"], "there is no folder no/such: make it first"),
    (["demo", "--model", "/no/such/folder"], "model folder '/no/such/folder' does not exist"),
    (["generate", "hi", "--model", "nowhere"], "model folder 'nowhere' does not exist"),
    (["generate", "hi", "--max-tokens", "0"], "max_tokens is 0, but must be a whole number of at least 1"),
    (["generate", "hi", "--temperature", "nan"], "temperature is nan"),
    (["generate", "hi", "--temperature", "-1"], "temperature is -1.0"),
    (["generate", "hi", "--top-p", "1.5"], "top_p is 1.5"),
    (["generate", "hi", "--seed", "-1"], "seed is -1"),
    (["generate", "hi", "--max-tokens", "100000"], "positions"),
    (["generate", ""], "the prompt is '', but must have a character that is no space: ask something"),
    (["generate", " \n ", "--raw"], "the prompt is ' \\n ', but must have a character that is no space"),
]


@pytest.mark.parametrize(("argv", "message"), REFUSED, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_what_cannot_be_done_is_refused_in_one_sentence(capsys, tiny, argv, message):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert not out.strip() and message in err
    assert err.startswith("tinyengine: ") and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("argv", [[], ["fly"], ["generate"], ["demo", "--seed", "x"], ["generate", "a", "b"]])
def test_a_wrong_command_line_shows_its_usage(capsys, argv):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "usage: tinyengine" in capsys.readouterr().err


def test_a_model_without_tokenizer_cannot_read_a_prompt(capsys, random_folder):
    assert main(["generate", "hi", "--model", str(random_folder)]) == 2
    assert "has no tokenizer, so it cannot read a prompt" in capsys.readouterr().err


ANSWERS = {
    "capitals": "Paris",
    "sums": "68",
    "counting": "7 8 9 10",
    "look-ups": "owl",
    "facts": "cold",
    "greetings": "Hello Mia",
    "repeating": "river",
    "stories": "",
}


@pytest.mark.parametrize("kind", cli.QUESTIONS)
def test_generate_answers_what_its_help_lists(capsys, kind):
    assert main(["generate", cli.QUESTIONS[kind]]) == 0
    out, err = capsys.readouterr()
    assert out.strip().startswith(ANSWERS[kind]) and out.strip() and "tinyengine: " not in err
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    assert f"{kind:<10} {cli.QUESTIONS[kind]}" in capsys.readouterr().out


def test_an_empty_answer_is_said_to_be_empty(capsys):
    assert main(["generate", "--raw", "<|user|>What is 23 + 45?<|assistant|>68"]) == 0
    out, err = capsys.readouterr()
    assert out == "\n" and "the model's answer is empty; `tinyengine generate --help` lists what it can be asked" in err


def test_generate_draws_by_its_seed(capsys):
    argv = ["generate", "Tell me a short story about a fox.", "--temperature", "2", "--max-tokens", "20"]
    said = []
    for seed in ("1", "1", "2"):
        assert main([*argv, "--seed", seed]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_a_raw_prompt_goes_to_the_model_as_it_is(capsys):
    assert main(["generate", "--raw", "<|user|>What is the capital of France?<|assistant|>"]) == 0
    assert capsys.readouterr().out.strip().startswith("Paris")


@pytest.fixture(scope="module")
def board():
    return demo.run("course", ["orca", "selective"])


def test_demo_prints_every_stage_and_writes_the_scoreboard(capsys, tmp_path):
    path = tmp_path / "board.json"
    assert main(["demo", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert all(stage in out for stage in STAGES) and "Paris" in out
    board = json.loads(path.read_text())
    assert board.keys() == {"workload", "seed", "device", "stages"} and board["workload"] == "course"
    assert [row["stage"] for row in board["stages"]] == list(STAGES)
    for row in board["stages"]:
        assert row.keys() == {
            "stage",
            "iterations",
            "slot_occupancy",
            "idle_slot_steps",
            "padded_rows",
            "kv_waste",
            "ttft_p50_ms",
            "tbt_p99_ms",
            "tokens_per_s",
            "exact",
        }
        assert row["exact"] is True and row["iterations"] > 0 and 0 < row["slot_occupancy"] <= 1
    rows = {row["stage"]: row for row in board["stages"]}
    assert rows["orca"]["iterations"] < rows["static"]["iterations"]
    assert rows["orca"]["padded_rows"] > 0 == rows["selective"]["padded_rows"]


def test_demo_runs_only_the_stages_asked_for(board):
    assert [row["stage"] for row in board.to_json()["stages"]] == ["orca", "selective"]


def test_demo_says_no_where_a_stage_is_not_exact(monkeypatch, board, capsys):
    """The exit code is 1: a scoreboard of wrong answers is worth nothing."""
    board.runs[0].exact -= 1
    try:
        monkeypatch.setattr(demo, "run", lambda *args: board)
        assert main(["demo"]) == 1
        assert "7/8" in capsys.readouterr().out
    finally:
        board.runs[0].exact += 1


def test_demo_writes_the_timeline_as_one_page(board, tmp_path):
    page = tmp_path / "timeline.html"
    board.write_html(page)
    text = page.read_text(encoding="utf-8")
    assert '<h1>tinyengine demo: workload &quot;course&quot; on the model &quot;tiny&quot;</h1>' in text
    assert "<td>selective</td><td>53</td>" in text
    assert "<p>orca and selective ran the same batches here: they differ in padding" in text
    assert "<html" in text and "selective" in text and "https://" not in text.replace("https://www.w3.org", "")


def test_demo_takes_another_model_and_says_what_does_not_suit_it(capsys, random_folder):
    assert main(["demo", "--model", str(random_folder), "--workload", "equal_size", "--stages", "selective"]) == 2
    assert "the model's vocabulary ends at 299" in capsys.readouterr().err


def test_a_path_that_cannot_be_written_is_no_traceback(monkeypatch, board, capsys, tmp_path):
    monkeypatch.setattr(demo, "run", lambda *args: board)
    assert main(["demo", "--json", str(tmp_path / "no" / "board.json")]) == 2
    assert main(["demo", "--json", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("tinyengine: ") == 2 and "Traceback" not in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU")
def test_cuda_is_refused_where_there_is_none(capsys):
    assert main(["verify", "--device", "cuda"]) == 2
    assert "torch finds no CUDA GPU on this machine" in capsys.readouterr().err


def test_a_reader_that_leaves_ends_it_quietly():
    command = [sys.executable, "-m", "tinyengine", "generate", "Count from 1 to 24."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 141


def test_the_package_runs_as_a_module_and_help_needs_no_torch():
    code = "import sys; from tinyengine.cli import build_parser; build_parser(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    done = subprocess.run([sys.executable, "-m", "tinyengine", "fly"], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
