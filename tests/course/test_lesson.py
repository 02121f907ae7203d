"""goal, predict, quiz and scoreboard: the same output for the same arguments and the same typing."""

import json

import numpy as np
import pytest

from tinyengine.course import goal, lesson, predict, predictions, quiz, scoreboard
from tinyengine.course.lesson import GoalMissed, inline, number_text
from tinyengine.course.widgets import NumberBox, number_in


@pytest.fixture(autouse=True)
def learner(monkeypatch):
    monkeypatch.delenv("TINYENGINE_GOALS", raising=False)


def test_a_goal_says_whether_it_is_reached(capsys):
    goal("iterations", 5, 5)
    goal("iterations", 8, 5)
    assert capsys.readouterr().out.splitlines() == [
        "iterations: 5: reached.",
        "iterations: 8, and the goal is 5: not yet. Change the line marked `your turn` above, "
        "and run its cell and this one again.",
    ]


def test_a_goal_must_be_reached_where_the_answers_are_put_in(monkeypatch, capsys):
    monkeypatch.setenv("TINYENGINE_GOALS", "must")
    goal("iterations", 5, 5)
    with pytest.raises(GoalMissed, match="8, and the goal is 5: not yet"):
        goal("iterations", 8, 5)


@pytest.mark.parametrize(
    "got, want, reached",
    [
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 3]), np.array([1, 2]), False),
        (np.array([1, 2]), np.zeros((3, 4)), False),
        (None, 5, False),
        (..., 5, False),
        (True, True, True),
        ([["A"], ["B"]] * 40, [["A"]], False),
    ],
)
def test_a_goal_may_be_anything(capsys, got, want, reached):
    goal("it", got, want)
    said = capsys.readouterr().out
    assert ("reached." in said) is reached and ("not yet." in said) is not reached and len(said) < 300


def test_a_goal_in_a_notebook_says_it_in_words_and_not_by_colour_alone(monkeypatch):
    shown = []
    monkeypatch.setattr(lesson, "publish", lambda plain, **rich: shown.append(rich["text/html"]))
    goal("a < b", 5, 5)
    goal("a < b", 8, 5)
    assert "Reached</b> · a &lt; b: 5</div>" in shown[0] and "Not yet</b> · a &lt; b: 8, and the goal is 5." in shown[1]


def test_a_prediction_is_scored(capsys):
    guess = predict("How many iterations?", 500, "iterations")
    guess.score(672)
    guess.score(500)
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "How many iterations? Your prediction: 500 iterations.",
        "Predicted 500 iterations, measured 672 iterations, 172 below: within a factor of 2.",
        "Predicted 500 iterations, measured 500 iterations: exact.",
    ]


@pytest.mark.parametrize(
    "measured, verdict",
    [
        (105, "within 10 %"),
        (0, "far off"),
        (150, "within a factor of 2"),
        (60, "within a factor"),
        (10, "far off"),
        (201, "far off"),
        (120, "within 25 %"),
    ],
)
def test_verdicts(capsys, measured, verdict):
    predict("n?", 100).score(measured)
    assert verdict in capsys.readouterr().out


@pytest.mark.parametrize("number", [..., "9", True, float("nan")])
def test_a_prediction_is_a_number(number):
    with pytest.raises(ValueError, match="type a finite number"):
        predict("n?", number)


def test_without_a_front_end_there_is_the_question_and_no_score(capsys):
    predict("How many iterations?", unit="iterations").score(53)
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["How many iterations?", "You made no prediction; measured: 53 iterations."]


@pytest.mark.parametrize(
    "text, number",
    [
        ("45", 45), (" 45 iterations ", 45), ("1,024", 1024), ("0.5", 0.5), ("1e3", 1000), ("-3", -3), ("", None),
        ("  ", None),
    ],
)  # fmt: skip
def test_a_box_reads_numbers_as_people_write_them(text, number):
    assert number_in(text, "iterations") == number


@pytest.mark.parametrize("text", ["many", "1,5", "1,,000", "nan", "inf", "4 5", "45 tokens", "x" * 500])
def test_a_box_says_what_it_cannot_read(text):
    with pytest.raises(ValueError, match=r"is no number that can be scored: type one like 45 or 0\.5\.") as refused:
        number_in(text, "iterations")
    assert len(str(refused.value)) < 120


@pytest.fixture
def in_a_course(tmp_path, monkeypatch):
    """The folder work/ of a course in which this process runs, and its notebook's boxes."""
    for folder in ("exercises", "solutions"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TINYENGINE_WORK", raising=False)
    monkeypatch.setattr(lesson, "in_notebook", lambda: True)
    return tmp_path / "work"


def test_a_typed_number_is_scored_and_the_first_guess_remembered(in_a_course, capsys):
    guess = predict("How many?", unit="iterations")
    guess.box.text.value = "lots"
    assert guess.number is None and "no number that can be scored" in guess.box.said.value
    guess.score(53)
    assert not in_a_course.exists()
    guess.box.text.value = "45"
    assert "Noted" in guess.box.said.value
    guess.score(53)
    guess.box.text.value = "53"
    guess.score(53)
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [
        "You made no prediction; measured: 53 iterations.",
        "Predicted 45 iterations, measured 53 iterations, 8 below: within 25 %.",
        "Predicted 53 iterations, measured 53 iterations: exact.",
    ]
    assert json.loads((in_a_course / ".predictions.json").read_text()) == {"How many?": [45, 53]}
    assert NumberBox("How many?", "").text.value == "53"  # its cell is run again
    second = predict("How far?")
    second.box.text.value = "1"
    second.score(50)
    assert predictions.tally(in_a_course) == (2, 1)


@pytest.mark.parametrize(
    "junk", ["", "[]", "{", '{"q": 3}', '{"q": ["a", "b"]}', '{"q": [1]}', '{"q": [NaN, 1]}', "[" * 9999]
)
def test_a_file_that_is_no_list_of_predictions_is_taken_for_empty(tmp_path, junk):
    (tmp_path / predictions.FILE).write_text(junk)
    assert predictions.tally(tmp_path) == (0, 0)


def test_where_nothing_can_be_written_the_score_is_told(in_a_course, capsys):
    in_a_course.write_text("a file where the folder should be")
    guess = predict("How much?")
    guess.box.text.value = "4"
    guess.score(4)
    assert "exact" in capsys.readouterr().out


def test_what_is_typed_in_code_is_not_remembered(in_a_course):
    predict("How many?", 45).score(53)
    assert not in_a_course.exists()


def test_a_quiz_answers_every_option(capsys):
    quiz(("Why `select`?", {"memory": "No: the same.", "time": "Yes: a slot is free at once."}))
    shown = capsys.readouterr().out
    assert "1. Why `select`?" in shown and "No: the same." in shown and "Yes: a slot" in shown


@pytest.mark.parametrize(
    "options", [{"a": "No: x", "b": "No: y"}, {"a": "Yes: x", "b": "Yes: y"}, {"a": "Yes: x", "b": "because"}]
)
def test_a_quiz_needs_one_right_option_and_a_verdict_for_each(options):
    with pytest.raises(ValueError, match="it needs exactly 1 and 0"):
        quiz(("q", options))


def test_inline_escapes_html():
    assert inline("a < b in `x<y`") == "a &lt; b in <code>x&lt;y</code>"


def test_the_scoreboard_is_a_markdown_table(capsys):
    scoreboard([{"stage": "static", "iterations": 1024}, {"stage": "orca", "iterations": 672, "exact": True}])
    assert capsys.readouterr().out.splitlines() == [
        "| stage  | iterations | exact |",
        "|--------|-----------:|-------|",
        "| static |       1024 |       |",
        "| orca   |        672 | yes   |",
    ]


def test_numbers_have_three_digits():
    assert [number_text(v) for v in (1234.5, 0.12345, 12.0, 7, "x")] == ["1234", "0.123", "12", "7", "x"]
