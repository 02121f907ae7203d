"""The predictions that a learner typed, kept in work/.predictions.json: each question with its first scored guess."""

import json
import math
from pathlib import Path

FILE = ".predictions.json"


def ratio(predicted: float, measured: float) -> float:
    """The larger of the two numbers / the smaller: 1.0 is exact, and 0 is near nothing but itself."""
    low, high = sorted((predicted, measured))
    return 1.0 if low == high else high / low if low > 0 else math.inf


def remember(question: str, predicted: float, measured: float) -> None:
    """Keep the first guess at a question, in a checkout of the course; a lesson never fails because of it."""
    from tinyengine.course.notebooks import CourseError, find_root, work_folder, write_json

    try:
        path = work_folder(find_root()) / FILE
        kept = read(path)
        if question not in kept:
            write_json(path, {**kept, question: [float(predicted), float(measured)]})
    except (CourseError, OSError, TypeError, ValueError):
        pass


def read(path: Path) -> dict[str, tuple[float, float]]:
    """What the file holds of predictions; nothing where it is missing or another program's."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8")).items()
        return {question: pair for question, pair in entries if all(map(math.isfinite, pair)) and len(pair) == 2}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def tally(work: Path) -> tuple[int, int]:
    """How many predictions were scored, and how many of them were within 25 %."""
    pairs = read(work / FILE).values()
    return len(pairs), sum(ratio(*pair) <= 1.25 for pair in pairs)
