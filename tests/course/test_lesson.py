"""predict, quiz and scoreboard: the same output for the same arguments."""

import pytest

from tinyengine.course import predict, quiz, scoreboard
from tinyengine.course.lesson import inline, number_text


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


@pytest.mark.parametrize("number", [..., None, "9", True, float("nan")])
def test_a_prediction_is_a_number(number):
    with pytest.raises(ValueError, match="type a finite number"):
        predict("n?", number)


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
