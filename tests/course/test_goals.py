"""The course's lessons leave something to do, and with their own answers put in every goal is reached."""

import re
from pathlib import Path

import pytest

from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT
from tinyengine.course.notebooks import execute, read
from tinyengine.course.your_turn import answered

LESSONS = sorted((ROOT / "lessons").glob("[0-9]*.ipynb"))
every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def outputs(nb) -> list[str]:
    """The plain text of everything that a notebook has shown."""
    return [
        output["data"].get("text/plain", "")
        for cell in nb.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "data" in output
    ]


def said(nb, words: str) -> list[str]:
    return [text for text in outputs(nb) if re.search(words, text)]


@every_lesson
def test_the_lesson_as_it_is_stored_has_a_goal_that_is_not_reached_yet(path: Path):
    nb = read(path)
    assert said(nb, r": not yet\. Change the line marked `your turn`"), "no goal is open: nothing is left to do"
    answered(nb)  # each mark has its answer


@every_lesson
@pytest.mark.slow
def test_with_its_answers_every_goal_of_the_lesson_is_reached(path: Path, monkeypatch, tmp_path):
    monkeypatch.setenv("TINYENGINE_GOALS", "must")  # a goal that is not reached stops the lesson
    monkeypatch.setenv("TINYENGINE_WORK", str(tmp_path))
    nb = answered(read(path))
    execute(nb, path.parent)
    assert said(nb, r": reached\.$"), "the lesson has no goal"
