"""start, grade, progress and home in a notebook: links that lead somewhere, and one sentence for what goes wrong."""

import json
import re
import subprocess
import sys

import pytest

from tinyengine.course import grade, grader, home, in_notebook, progress, start

LESSON = "# Lesson 02 · Orca: a < b\n\n*About 30 minutes, then 40 minutes of exercises.*"


@pytest.fixture
def shown(course, monkeypatch):
    """What a notebook in lessons/ has shown, as (text, HTML)."""
    monkeypatch.delenv("TINYENGINE_WORK", raising=False)
    notebook = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": LESSON}
    text = json.dumps({"cells": [notebook], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    (course.root / "lessons" / "02_orca.ipynb").write_text(text)
    monkeypatch.chdir(course.root / "lessons")
    outputs = []
    monkeypatch.setattr(
        in_notebook, "publish", lambda plain, **rich: outputs.append((plain, rich.get("text/html", "")))
    )
    return outputs


def card(*points, **more):
    """A scorecard of exercises of 2 points each."""
    states = {0: "failed", 1: "partial", 2: "passed"}
    exercises = [
        {
            "id": f"2.{n}", "title": "Dou<ble", "status": states[p], "points": p, "max_points": 2,
            "messages": ["call `f(3)`"] * (p < 2),
        }
        for n, p in enumerate(points, 1)
    ]  # fmt: skip
    return {"notebook": "x", "points": sum(points), "max_points": 4, "messages": [], "exercises": exercises, **more}


def graded(course, monkeypatch, result):
    monkeypatch.setattr(grader, "grade", lambda path, root: result if path == course.copy else None)
    start(2)
    result["messages"].clear()
    grade(2)


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_start_copies_once_and_links_from_where_the_notebook_runs(course, shown):
    start(2)
    start("02")
    assert '<a href="../work/02_orca.ipynb">work/02_orca.ipynb</a>' in shown[0][1]
    said, head, *rows = shown[0][0].splitlines()
    assert said == "Your exercises are in work/02_orca.ipynb. Nothing overwrites them."
    assert head.startswith("exercise | minutes | lines | points") and [row[:4] for row in rows] == ["2.1 ", "2.2 "]
    assert "as you left them; `start('02', fresh=True)`" in shown[1][0]
    assert course.copy.read_bytes() == (course.root / "exercises/02_orca.ipynb").read_bytes()
    course.copy.write_text("mine")
    start(2, fresh=True)
    assert course.copy.read_text() == "mine" and "../work/02_orca-2.ipynb" in shown[2][1]


def test_what_goes_wrong_is_one_sentence(course, shown):
    start(9)
    grade(2)
    grade("nowhere/x.ipynb")
    course.copy.write_text("{")
    grade(2)
    course.copy.unlink()
    course.copy.parent.rmdir()
    course.copy.parent.write_text("a file where the folder should be")
    start(2)
    said = [plain for plain, _ in shown]
    assert said[:3] == [
        "Lesson 9 has no exercises yet. Available: 2.",
        "You have no copy of exercises 2 yet: run `start(2)` first.",
        "There is no notebook nowhere/x.ipynb: check the path.",
    ]
    assert "cannot be read as a notebook" in said[3] and said[4].endswith("cannot be used (File exists): check it.")


def test_a_sentence_for_the_terminal_is_said_as_a_call():
    said = in_notebook.as_called("`tinyengine start 2 --fresh`, `tinyengine grade work/a.ipynb`, `tinyengine build`")
    assert said == '`start(2, fresh=True)`, `grade("work/a.ipynb")`, `tinyengine build`'


def test_the_scorecard_says_each_reason_and_is_remembered(course, shown, monkeypatch):
    graded(course, monkeypatch, card(2, 1))
    grade("work/02_orca.ipynb")
    assert shown[2] == shown[1]
    del shown[2]
    plain, rich = shown[1]
    assert "2.2 Dou<ble | 1/2 | partial\ncall f(3)" in plain and "3 of 4 points." in plain and "Well done" not in plain
    assert "2.2 Dou&lt;ble" in rich and "<code>f(3)</code>" in rich and ">partial</span>" in rich
    assert json.loads((course.root / "work/.grades/02.json").read_text())["points"] == 3
    progress()
    assert "Orca by hand | 1/2 | 3/4" in shown[2][0]


def test_all_points_are_praised_and_the_next_step_is_linked(course, shown, monkeypatch):
    graded(course, monkeypatch, card(2, 2, parts={"MyOrca": "class MyOrca: pass\n"}))
    plain, _ = shown[1]
    assert "Well done. Your engine has kept MyOrca, in work/engine/." in plain
    assert plain.endswith("Every lesson that is written is done.")


def test_progress_before_the_first_start(shown):
    progress()
    assert shown[0][0] == "Nothing is started yet: `start(2)` copies the first exercises to work/."


def test_home_before_anything_is_done_begins_with_the_first_lesson(course, shown):
    home()
    plain, rich = shown[0]
    assert "00 Two phases | in preparation" in plain and "02 Orca: a < b | 30 | 2, 5 min | 0 of 4" in plain
    assert plain.endswith("Begin: lesson 02, Orca: a < b") and "No predictions yet." in plain
    assert '<a href="02_orca.ipynb">02 Orca: a &lt; b</a>' in rich


def test_home_says_what_is_done_and_links_what_is_next(course, shown, monkeypatch):
    graded(course, monkeypatch, card(2, 1))
    (course.root / "work/.predictions.json").write_text('{"a": [10, 10], "b": [1, 10]}')
    before = files(course.root)
    home()
    plain, rich = shown[-1]
    assert "| 3 of 4\n" in plain and "2 predictions, 1 within 25 %." in plain
    assert plain.endswith("Go on: the exercises of lesson 02, 3 of 4 points.")
    assert all((course.root / "lessons" / address).is_file() for address in re.findall(r'href="([^"]+)"', rich))
    assert files(course.root) == before  # it reads work/, and writes nothing
    graded(course, monkeypatch, card(2, 2))
    home()
    assert "a < b ✓ |" in shown[-1][0] and "| 4 of 4, all\n" in shown[-1][0]
    assert shown[-1][0].endswith("Every lesson that is written is done.")


@pytest.mark.parametrize("junk", ["", "[]", '{"points": "many"}', '{"points": null}', '{"points": 99}', "[" * 9999])
def test_home_survives_grades_that_are_none(course, shown, junk):
    (course.root / "work/.grades").mkdir()
    (course.root / "work/.grades/02.json").write_text(junk)
    home()
    assert "of 4" in shown[0][0]


def test_a_work_folder_elsewhere_is_shown_as_if_it_were_here(course, shown, monkeypatch, tmp_path_factory):
    """Authors store outputs from an empty work/ in a temporary folder."""
    monkeypatch.setenv("TINYENGINE_WORK", str(tmp_path_factory.mktemp("elsewhere")))
    start(2)
    said, head, *rows = shown[0][0].splitlines()
    assert said == "Your exercises are in work/02_orca.ipynb. Nothing overwrites them."
    assert head.startswith("exercise | minutes | lines | points") and [row[:4] for row in rows] == ["2.1 ", "2.2 "]
    assert 'href="../work/02_orca.ipynb"' in shown[0][1] and not course.copy.exists()


def test_importing_the_course_is_cheap():
    program = (
        "import sys, tinyengine.course; print([m for m in 'torch nbformat ipywidgets'.split() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
