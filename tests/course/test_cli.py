"""start, grade, progress and build as a learner types them: exit codes and one-sentence errors."""

import argparse
import json
import os
import subprocess
import sys
import time
from xml.etree import ElementTree

import nbformat
import pytest

from tinyengine.course.cli import register
from tinyengine.course.grader import entry_for
from tinyengine.course.notebooks import PACKAGE_PARENT


@pytest.fixture
def cli(course, monkeypatch, capsys):
    """Run a command line in the course's folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(course.root)
    parser = argparse.ArgumentParser(prog="tinyengine")
    register(parser.add_subparsers(required=True))

    def run(*words):
        args = parser.parse_args(words)
        code = args.func(args)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_start_never_overwrites(cli, course):
    assert cli("start", "2")[1].startswith("Your copy is work/02_orca.ipynb")
    course.copy.write_text("my work")
    code, out, _ = cli("start", "02_orca")
    assert code == 0 and out == (
        "work/02_orca.ipynb is there already and was left as it is: `tinyengine start 02_orca "
        "--fresh` writes a fresh copy beside it.\n"
    )
    said = cli("start", "2", "--fresh")[1]
    assert said.startswith("Your copy is work/02_orca-2.ipynb")
    assert "`tinyengine grade work/02_orca-2.ipynb`" in said  # the number alone would grade the first copy
    assert "work/02_orca-3.ipynb" in cli("start", "2", "--fresh")[1]
    assert course.copy.read_text() == "my work"


def test_from_a_folder_below(cli, course, monkeypatch):
    monkeypatch.chdir(course.root / "work")
    assert cli("start", "2")[0] == 0 and course.copy.is_file()


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["start", "9"], "Lesson 9 has no exercises yet. Available: 2."),
        (["start", "two"], "There is no lesson two. Available: 2."),
        (["start", "²"], "There is no lesson ². Available: 2."),
        (["grade", "9"], "Lesson 9 has no exercises yet."),
        (["grade", "2"], "You have no copy of exercises 2 yet: run `tinyengine start 2` first."),
        (["grade", "work/none.ipynb"], "There is no notebook work/none.ipynb"),
        (["grade", "work/broken.ipynb"], "cannot be read as a notebook"),
        (["grade", "work/odd.ipynb"], "cannot be read as a notebook"),
        (["grade", "work/other.ipynb"], "is no exercise notebook of this course (there are: 02_orca)"),
        (["grade", "2", "--timeout", "0"], "--timeout is 0"),
        (["build", "--run", "9"], "There is no lesson or solution 9"),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_code_2(cli, course, words, sentence):
    (course.root / "work" / "broken.ipynb").write_text("{not json")
    odd = {"cells": [{}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (course.root / "work" / "odd.ipynb").write_text(json.dumps(odd))
    nbformat.write(nbformat.v4.new_notebook(), course.root / "work" / "other.ipynb")
    code, out, err = cli(*words)
    assert code == 2 and sentence in err and err.count("\n") == 1 and out == ""


def odd_notebook(**change):
    cell = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": None, "id": "a"}
    nb = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    for key, value in change.items():
        (nb if key in ("cells", "nb_metadata") else cell)[key] = value
    nb["metadata"] = nb.pop("nb_metadata", nb["metadata"])
    return json.dumps(nb)


ODD = {
    **{f"source {source}": odd_notebook(source=source) for source in (5, None, ["x", 5])},
    **{f"cells {cells}": odd_notebook(cells=cells) for cells in ({}, None, [1, 2], [None])},
    "half a character": odd_notebook(source="\ud800"),
    "metadata of a cell": odd_notebook(metadata=[]),
    "metadata": odd_notebook(nb_metadata=[]),
    "outputs": odd_notebook(outputs=5),
    "an output": odd_notebook(outputs=[5]),
    "nested": "[" * 100_000,
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_a_notebook_of_another_form_is_one_sentence(cli, course, text):
    course.copy.write_text(text)
    code, out, err = cli("grade", "2")
    assert code == 2 and "02_orca.ipynb cannot be read as a notebook" in err and err.count("\n") == 1 and out == ""


@pytest.mark.parametrize("note", [5, None, [2], {}])
def test_an_odd_note_of_the_builder_leaves_the_files_name(course, note):
    nb = course.exercise()
    nb.metadata["tinyengine"] = {"exercises": note}
    assert entry_for(nb, course.copy, course.root)["title"] == "Orca by hand"


@pytest.mark.parametrize("text", ["[]", "5", '{"02_orca": 5}', '{"02_orca": {}}', "[" * 100_000])
def test_an_odd_manifest_is_one_sentence(cli, course, text):
    (course.root / "exercises" / "manifest.json").write_text(text)
    code, _, err = cli("progress")
    assert code == 2 and "run `tinyengine build`" in err and err.count("\n") == 1


def test_a_missing_manifest_says_what_to_do(cli, course):
    (course.root / "exercises" / "manifest.json").unlink()
    code, _, err = cli("start", "2")
    assert code == 2 and "run `tinyengine build`" in err


def test_grade_and_progress(cli, course):
    assert "Nothing is started yet" in cli("progress")[1]
    cli("start", "2")
    assert "not graded yet" in cli("progress")[1]

    nb = nbformat.read(course.copy, as_version=4)
    answer = next(c for c in nb.cells if c.id == "answer-2-1")
    answer.source = "def double_1(x):\n    return x * x"
    nb.cells.append(nbformat.v4.new_code_cell("double_2(3)"))  # meets the stub of 2.2, which needs no note
    course.save(nb)
    code, out, _ = cli("grade", "2", "--json", "out/card.json", "--junit", "out/card.xml")
    assert code == 1
    assert "2.1 Double" in out and "partial" in out and "you square it" in out and "total: 1 of 4 points" in out
    card = json.loads((course.root / "out" / "card.json").read_text())
    assert {key: card[key] for key in ("notebook", "points", "max_points")} == {
        "notebook": "work/02_orca.ipynb",
        "points": 1,
        "max_points": 4,
    }
    assert card["exercises"][0] == {
        "id": "2.1",
        "title": "Double",
        "status": "partial",
        "points": 1,
        "max_points": 2,
        "messages": ["twice 3: you square it."],
        "check": "intact",
    }
    assert card["exercises"][1]["status"] == "not attempted"
    assert card["messages"] == []
    suite = ElementTree.parse(course.root / "out" / "card.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped"), suite.get("errors")) == (
        "2",
        "1",
        "1",
        "0",
    )
    code, out, _ = cli("progress")
    assert code == 0 and "0/2" in out and "1/4" in out and "total: 1 of 4 points" in out

    for broken in ("{", "[]", "[" * 100_000, json.dumps({**card, "points": "x"}), json.dumps({**card, "points": None})):
        (course.root / "work" / ".grades" / "02.json").write_text(broken)
        assert "grade it again" in cli("progress")[1]


def test_the_solution_gets_all_points_whatever_the_environment_says(cli, course, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:nbval --collect-only")
    (course.root / "solutions" / "conftest.py").write_text("raise SystemExit")
    code, out, _ = cli("grade", "solutions/02_orca.ipynb")
    assert code == 0 and "total: 4 of 4 points" in out
    assert not (course.root / "work" / ".grades").exists()  # a notebook elsewhere is graded without a trace


def test_all_points_are_praised_and_tell_what_was_kept_and_what_comes_next(cli, course):
    path = course.root / "exercises" / "manifest.json"
    entries = json.loads(path.read_text())
    entries["02_orca"]["exercises"][1]["part"] = "double_2"
    path.write_text(json.dumps(entries))
    nb = course.exercise()
    answers = [c for c in nb.cells if c.id.startswith("answer")]
    answers[1].source = "def double_2(x):\n    return 2 * x"
    course.save(nb)
    out = cli("grade", "2")[1]
    assert "double_2: a part of your engine, in work/engine/." in out and "Well done" not in out and "Next" not in out
    answers[0].source = "def double_1(x):\n    return 2 * x"
    course.save(nb)
    out = cli("grade", "2", "--json", "card.json")[1]
    assert "Well done: all 4 points.\ndouble_2: a part of your engine" in out
    assert "That was the last lesson that is written." in out
    (course.root / "lessons" / "00_two_phases.ipynb").touch()
    (course.root / "lessons" / "03_selective.ipynb").touch()
    assert "Next: lessons/03_selective.ipynb" in cli("grade", "2", "--json", "card.json")[1]
    card = json.loads((course.root / "card.json").read_text())
    assert (card["kept"], card["next"]) == (["double_2"], "lessons/03_selective.ipynb") and "parts" not in card


def test_the_scorecard_tells_when_the_graded_copy_was_saved(cli, course, monkeypatch):
    cli("start", "2")
    os.utime(course.copy, (0, 0))

    def slow(path, root, timeout):
        os.utime(path, (3600, 3600))  # saved again while it is graded
        return {"notebook": "x", "points": 0, "max_points": 0, "messages": [], "exercises": []}

    monkeypatch.setattr("tinyengine.course.grader.grade", slow)
    assert f"as saved at {time.strftime('%H:%M:%S', time.localtime(0))}" in cli("grade", "2")[1]


def test_build_and_build_check(cli, course):
    path = course.root / "exercises" / "02_orca.ipynb"
    path.write_text("{}")
    code, out, _ = cli("build", "--check")
    assert code == 1 and "exercises/02_orca.ipynb is not what its solution gives" in out
    code, out, _ = cli("build")
    assert code == 0 and out == "exercises/02_orca.ipynb was written.\n"


def test_importing_the_course_imports_no_torch_and_the_cli_no_notebook_library():
    code = (
        "import sys, tinyengine.course.cli; light = 'nbformat' not in sys.modules;"
        "import tinyengine.course.grader, tinyengine.course.builder, tinyengine.course.report, tinyengine.course.work;"
        "print(light, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE_PARENT, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
