"""The box of a prediction and the quiz in a real JupyterLab, as a learner uses them: with the keyboard alone."""

import json

import pytest
from helpers.browser import chromium
from helpers.lab import jupyterlab, run_all, write_notebook

from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT

pytestmark = pytest.mark.browser

PREDICT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tinyengine.course import predict, quiz

guess = predict("How many?", unit="iterations")
"""
QUIZ = """
quiz(
    ("Why `select`?", {"For memory": "No: the same.", "For time": "Yes: a slot is free at once."}),
    ("And why not?", {"It costs": "Yes: a step.", "It is wrong": "No: it is not."}),
)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A page with the two cells, run: where the notebook lies is a course, so that scores are remembered there."""
    with chromium() as browser, jupyterlab(tmp_path_factory.mktemp("lab")) as (address, folder):
        for name in ("exercises", "solutions"):
            (folder / name).mkdir()
        write_notebook(folder / "look.ipynb", PREDICT, "guess.score(53)", QUIZ)
        page = run_all(browser, f"{address}/tree/look.ipynb?reset")
        page.locator(".te-quiz").wait_for()
        page.folder = folder
        yield page


def run_cell(page, index: int):
    page.evaluate(
        f"""async () => {{
            jupyterapp.shell.currentWidget.content.activeCellIndex = {index};
            await jupyterapp.commands.execute('notebook:run-cell');
        }}"""
    )


def test_a_number_is_typed_scored_and_remembered(notebook):
    box, folder = notebook.get_by_placeholder("your guess"), notebook.folder
    notebook.get_by_text("You made no prediction; measured: 53 iterations.").wait_for()
    box.click()
    notebook.keyboard.type("many")
    notebook.get_by_text("'many' is no number that can be scored").wait_for()
    box.fill("")
    notebook.keyboard.type("45")
    notebook.get_by_text("Noted: it is scored after the measurement.").wait_for()
    run_cell(notebook, 1)
    notebook.get_by_text("Predicted 45 iterations, measured 53 iterations, 8 below: within 25 %.").wait_for()
    assert json.loads((folder / "work/.predictions.json").read_text()) == {"How many?": [45, 53]}


def test_the_quiz_is_answered_with_keys_and_says_the_score(notebook):
    first, second = notebook.locator(".te-quiz fieldset").all()
    cells = notebook.locator(".jp-Notebook .jp-Cell").count()
    assert first.locator("button").is_disabled()
    first.locator("input").first.focus()
    for key in ("Space", "a", "d", "d", "Tab", "Enter"):  # letters are commands of JupyterLab
        notebook.keyboard.press(key)
    first.get_by_text("Not quite: the same.").wait_for()
    first.get_by_text("The answer: a slot is free at once.").wait_for()
    assert notebook.locator(".jp-Notebook .jp-Cell").count() == cells
    notebook.get_by_text("1 of 2 answered.").wait_for()
    second.locator("input").first.focus()
    for key in ("ArrowDown", "ArrowUp", "Tab", "Enter"):
        notebook.keyboard.press(key)
    second.get_by_text("Right: a step.").wait_for()
    notebook.get_by_text("1 of 2 right.").wait_for()
    notebook.get_by_text("Start again").click()
    notebook.get_by_text("0 of 2 answered.").wait_for()
    assert notebook.locator(".te-quiz input:checked").count() == 0 and first.locator("button").is_disabled()


def test_the_static_form_stands_beside_the_quiz(notebook):
    notebook.evaluate("jupyterapp.commands.execute('docmanager:save')")
    notebook.wait_for_function("!jupyterapp.shell.currentWidget.context.model.dirty")
    cells = json.loads((notebook.folder / "look.ipynb").read_text())["cells"]
    assert "<details><summary>For memory</summary>" in "".join(cells[2]["outputs"][0]["data"]["text/html"])
