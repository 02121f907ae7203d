"""What a lesson says in its own cells: a prediction that is scored, a quiz that answers, a scoreboard.

Each output depends on its arguments only, so a lesson that runs unattended always shows the same.
"""

import html
import math
import re

from tinyengine.course.display import publish


class Prediction:
    """A number typed before the measurement; `score` compares it with the measured one."""

    def __init__(self, question: str, number: float, unit: str = ""):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"predict() got {number!r} for {question!r}: type a finite number, any guess is fine.")
        self.question, self.number, self.unit = question, number, unit

    def __repr__(self) -> str:
        return f"Prediction({self.question!r}, {self.number})"

    def score(self, measured: float) -> None:
        """Say how far the prediction was from the measured number."""
        unit = f" {self.unit}" if self.unit else ""
        gap = abs(self.number - measured)
        low, high = sorted((self.number, measured))
        ratio = 1.0 if gap == 0 else high / low if low > 0 else math.inf
        verdict = next(words for limit, words in VERDICTS if ratio <= limit)
        away = "" if gap == 0 else f", {number_text(gap)} {'above' if self.number > measured else 'below'}"
        plain = f"Predicted {number_text(self.number)}{unit}, measured {number_text(measured)}{unit}{away}: {verdict}."
        publish(plain, **{"text/markdown": plain.replace(verdict, f"**{verdict}**")})


VERDICTS = [  # by the larger of the two numbers / the smaller
    (1.0, "exact"),
    (1.1, "within 10 %"),
    (1.25, "within 25 %"),
    (2.0, "within a factor of 2"),
    (math.inf, "far off, so this is the place to learn something"),
]


def predict(question: str, number: float, unit: str = "") -> Prediction:
    """Write down a guess before the measurement: `guess = predict("How many?", 9)`, later `guess.score(7)`."""
    prediction = Prediction(question, number, unit)
    unit = f" {unit}" if unit else ""
    publish(
        f"{question} Your prediction: {number_text(number)}{unit}.",
        **{"text/markdown": f"**{question}** Your prediction: {number_text(number)}{unit}."},
    )
    return prediction


def quiz(*questions) -> None:
    """Show questions whose every option unfolds into its answer.

    A question is `("Why ...?", {"an option": "No: because ...", "another": "Yes: because ..."})`; exactly one
    explanation starts with `Yes`. It is static HTML (<details>), so it also works on GitHub and without a kernel.
    """
    plain, rich = [], []
    for number, (question, options) in enumerate(questions, 1):
        right = [option for option, why in options.items() if why.startswith("Yes")]
        silent = [option for option, why in options.items() if not why.startswith(("Yes", "No"))]
        if len(right) != 1 or silent:
            raise ValueError(
                f"quiz question {question!r} has {len(right)} explanations that start with 'Yes' and "
                f"{len(silent)} that start with neither 'Yes' nor 'No': it needs exactly 1 and 0."
            )
        plain.append(f"{number}. {question}")
        rich.append(f'<p style="margin: 16px 0 6px"><b>{number}. {inline(question)}</b></p>')
        for option, why in options.items():
            plain.append(f"   - {option}\n     {why}")
            rich.append(f"<details><summary>{inline(option)}</summary>{inline(why)}</details>")
    publish("\n".join(plain), **{"text/html": "\n".join(rich)})


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
