"""What a lesson says in its own cells: a goal, a prediction that is scored, a quiz that answers, a scoreboard.

Each output depends on its arguments, and on what a person types or clicks: a lesson that runs unattended always shows
the same.
"""

import html
import math
import os
import re

from tinyengine.course import predictions
from tinyengine.course.display import in_notebook, publish, view


class GoalMissed(AssertionError):
    """A goal that is not reached where it must be: with the answers put in."""


def goal(name: str, got, want) -> None:
    """Say whether a number that the learner works for is reached; raises only where TINYENGINE_GOALS=must is set."""
    reached = same(got, want)
    now, aim = value_text(got), value_text(want)
    todo = "Change the line marked `your turn` above, and run its cell and this one again."
    plain = f"{name}: {now}: reached." if reached else f"{name}: {now}, and the goal is {aim}: not yet. {todo}"
    if not reached and os.environ.get("TINYENGINE_GOALS") == "must":
        raise GoalMissed(plain)
    colour, word = ("46,160,67", "✓ Reached") if reached else ("212,140,0", "○ Not yet")
    box = f"margin: 4px 0; padding: 6px 12px; border-left: 4px solid rgb({colour}); background: rgba({colour},0.12)"
    rest = f"{name}: {now}" + ("" if reached else f", and the goal is {aim}. {todo}")
    publish(plain, **{"text/html": f'<div style="{box}"><b>{word}</b> · {inline(rest)}</div>'})


def same(got, want) -> bool:
    """Equality of anything, arrays included; what cannot be compared is not equal."""
    try:
        equal = got == want
        return bool(equal.all() if hasattr(equal, "all") else equal)
    except Exception:
        return False


def value_text(value) -> str:
    """A number as a person writes it, anything else short enough for a sentence."""
    if isinstance(value, (bool, int, float, str)):
        return number_text(value)
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


class Prediction:
    """A number typed before the measurement, in code or in a box; `score` compares it with the measured one."""

    def __init__(self, question: str, number: float | None = None, unit: str = "", box=None):
        self.question, self.unit, self.box, self._number = question, unit, box, number

    @property
    def number(self) -> float | None:
        """What was predicted; None where the box is empty or holds no number."""
        return self.box.number if self.box else self._number

    def __repr__(self) -> str:
        return f"Prediction({self.question!r}, {self.number})"

    def score(self, measured: float) -> None:
        """Say how far the prediction was from the measured number."""
        unit = f" {self.unit}" if self.unit else ""
        number = self.number
        if number is None:
            publish(f"You made no prediction; measured: {number_text(measured)}{unit}.")
            return
        if self.box:  # a person was there to type it: no lesson that runs unattended is remembered
            predictions.remember(self.question, number, measured)
        gap = abs(number - measured)
        verdict = next(words for limit, words in VERDICTS if predictions.ratio(number, measured) <= limit)
        away = "" if gap == 0 else f", {number_text(gap)} {'above' if number > measured else 'below'}"
        plain = f"Predicted {number_text(number)}{unit}, measured {number_text(measured)}{unit}{away}: {verdict}."
        publish(plain, **{"text/markdown": plain.replace(verdict, f"**{verdict}**")})


VERDICTS = [  # by the larger of the two numbers / the smaller
    (1.0, "exact"),
    (1.1, "within 10 %"),
    (1.25, "within 25 %"),
    (2.0, "within a factor of 2"),
    (math.inf, "far off, so this is the place to learn something"),
]


def predict(question: str, number: float | None = None, unit: str = "") -> Prediction:
    """Ask for a guess before the measurement: `guess = predict("How many?", unit="tokens")`, later `guess.score(7)`.

    Without `number` a box for it stands under the question; without a front end, the question alone.
    """
    if number is None:
        box = None
        if in_notebook():
            from tinyengine.course.widgets import NumberBox  # imported where it is shown: it is slow to load

            box = NumberBox(question, unit)
        publish(question, **{"text/markdown": f"**{question}**"}, **(view(box) if box else {}))
        return Prediction(question, None, unit, box)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise ValueError(f"predict() got {number!r} for {question!r}: type a finite number, any guess is fine.")
    said = f"{number_text(number)} {unit}".rstrip()
    publish(f"{question} Your prediction: {said}.", **{"text/markdown": f"**{question}** Your prediction: {said}."})
    return Prediction(question, number, unit)


def quiz(*questions) -> None:
    """Show questions that are answered by a click, each option with its reason, and a score at the end.

    A question is `("Why ...?", {"an option": "No: because ...", "another": "Yes: because ..."})`; exactly one
    explanation starts with `Yes`. Where no kernel runs (GitHub, a notebook that was only opened) it is static HTML, in
    which every option unfolds into its answer.
    """
    plain, rich, shown = [], [], []
    for number, (question, options) in enumerate(questions, 1):
        require_one_answer(question, options)
        plain.append(f"{number}. {question}")
        rich.append(f'<p style="margin: 16px 0 6px"><b>{number}. {inline(question)}</b></p>')
        choices = []
        for option, why in options.items():
            plain.append(f"   - {option}\n     {why}")
            rich.append(f"<details><summary>{inline(option)}</summary>{inline(why)}</details>")
            reason = re.sub(r"^(Yes|No)[:,.]? *", "", why)
            choices.append({"text": inline(option), "why": inline(reason), "right": why.startswith("Yes")})
        shown.append({"question": inline(question), "options": choices})
    forms = {"text/html": "\n".join(rich)}
    if in_notebook():
        from tinyengine.course.widgets import QuizWidget

        forms |= view(QuizWidget(questions=shown, chosen=[-1] * len(shown)))
    publish("\n".join(plain), **forms)


def require_one_answer(question: str, options: dict[str, str]) -> None:
    """Raises ValueError unless exactly one explanation starts with Yes, and each other one with No."""
    right = [option for option, why in options.items() if why.startswith("Yes")]
    silent = [option for option, why in options.items() if not why.startswith(("Yes", "No"))]
    if len(right) != 1 or silent:
        raise ValueError(
            f"quiz question {question!r} has {len(right)} explanations that start with 'Yes' and "
            f"{len(silent)} that start with neither 'Yes' nor 'No': it needs exactly 1 and 0."
        )


def scoreboard(rows: list[dict], caption: str = "") -> None:
    """Show rows as a table; the columns are the keys in the order in which they first appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = {c for c in columns if all(is_number(row.get(c, 0)) for row in rows)}
    cells = [[number_text(row.get(c, "")) for c in columns] for row in rows]
    widths = [max(len(c), *(len(line[i]) for line in cells)) if cells else len(c) for i, c in enumerate(columns)]

    def line(values):
        padded = [v.rjust(w) if c in numeric else v.ljust(w) for v, w, c in zip(values, widths, columns, strict=True)]
        return "| " + " | ".join(padded) + " |"

    rules = ["-" * (w + 1) + ":" if c in numeric else "-" * (w + 2) for c, w in zip(columns, widths, strict=True)]
    rule = f"|{'|'.join(rules)}|"
    table = "\n".join([line(columns), rule, *map(line, cells)])
    text = f"{caption}\n\n{table}" if caption else table
    publish(text, **{"text/markdown": text})


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_text(value) -> str:
    """Counts in full, other numbers with three significant digits, booleans as yes or no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def inline(text: str) -> str:
    """Escaped HTML in which `code` between backticks becomes <code>."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
