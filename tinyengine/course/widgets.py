"""What a lesson shows where a kernel runs: the box of a prediction, and the quiz with buttons."""

import html
import math
import re
from pathlib import Path

import anywidget
import traitlets
from ipywidgets import HTML, HBox, Label, Layout, Text, VBox

STATIC = Path(__file__).parent / "static"
typed: dict[str, str] = {}  # by question: a cell that is run again shows what was typed


class NumberBox(VBox):
    """A question, a box for a number, its unit; a sentence below says whether it was understood."""

    def __init__(self, question: str, unit: str):
        self.question, self.unit = question, unit
        self.text = Text(typed.get(question, ""), placeholder="your guess", layout=Layout(width="140px"))
        self.text.tooltip = question  # what a screen reader calls the box
        self.said = HTML()
        self.text.observe(lambda change: self.hear(), "value")
        self.hear()
        title = HTML(f"<b>{html.escape(question)}</b>")
        super().__init__([title, HBox([self.text, Label(unit)]), self.said])

    def hear(self) -> None:
        typed[self.question] = self.text.value
        try:
            number = number_in(self.text.value, self.unit)
            said = "Noted: it is scored after the measurement." if number is not None else ""
        except ValueError as error:
            said = str(error)
        self.said.value = f'<span style="opacity: 0.8">{html.escape(said)}</span>'

    @property
    def number(self) -> float | None:
        try:
            return number_in(self.text.value, self.unit)
        except ValueError:
            return None


def number_in(text: str, unit: str = "") -> float | None:
    """45, 1,024, 1e3 or "45 iterations" as a number; None for an empty text. Raises ValueError with a sentence."""
    bare = text.strip().removesuffix(unit).strip()
    if not bare:
        return None
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d*)?", bare):
        bare = bare.replace(",", "")
    try:
        number = float(bare)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text.strip()[:40]!r} is no number that can be scored: type one like 45 or 0.5.")
    return int(number) if number.is_integer() else number


class QuizWidget(anywidget.AnyWidget):
    """questions: [{"question", "options": [{"text", "why", "right"}]}], all HTML. chosen: the option committed for each
    question, or -1; the page writes it, so that a notebook that is opened again shows it."""

    _esm = STATIC / "quiz.js"
    _css = STATIC / "quiz.css"
    questions = traitlets.List().tag(sync=True)
    chosen = traitlets.List().tag(sync=True)
