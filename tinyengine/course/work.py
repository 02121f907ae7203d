"""The learner's folder work/: copies of exercises, which no command overwrites, and the last grades."""

import json
import os
from pathlib import Path

from tinyengine.course.grader import manifest
from tinyengine.course.keep import keep
from tinyengine.course.notebooks import CourseError, short, work_folder, write_json


def start(number: str, root: Path, fresh: bool = False) -> tuple[Path, bool]:
    """Copy exercises to work/; returns the path, and False when the copy was there already."""
    stem = find(number, root)
    text = (root / "exercises" / f"{stem}.ipynb").read_bytes()
    path = work_folder(root) / f"{stem}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nth = 2
    while True:
        try:
            with open(path, "xb") as file:  # x: never overwrite, not even in a race
                file.write(text)
            return path, True
        except FileExistsError:
            if not fresh:
                return path, False
            path, nth = path.with_name(f"{stem}-{nth}.ipynb"), nth + 1


def find(number: str, root: Path) -> str:
    """The name of the exercises with this number: 2, 02 and 02_orca all mean 02_orca."""
    stems = sorted(manifest(root))
    number = str(number).removesuffix(".ipynb")
    for stem in stems:
        head = stem.split("_")[0]
        if number in (stem, head) or (number.isdecimal() and head.isdecimal() and int(number) == int(head)):
            return stem
    known = ", ".join(stem.split("_")[0].lstrip("0") or "0" for stem in stems) or "none"
    what = f"Lesson {int(number)} has no exercises yet" if number.isdecimal() else f"There is no lesson {number}"
    raise CourseError(f"{what}. Available: {known}.")


def locate(number: str, root: Path) -> tuple[Path, list[str]]:
    """The notebook to grade, from a number or a path, and the learner's other copies of the same exercises."""
    path = Path(number)
    if path.suffix == ".ipynb" and (path.is_file() or os.sep in number):
        if not path.is_file():
            raise CourseError(f"There is no notebook {number}: check the path.")
        return path, []
    stem = find(number, root)
    copies = sorted(work_folder(root).glob(f"{stem}*.ipynb"))
    path = work_folder(root) / f"{stem}.ipynb"
    if path in copies:
        return path, [short(copy, root) for copy in copies if copy != path]
    if copies:
        raise CourseError(
            f"work/{stem}.ipynb is not there: give the path of the copy you mean, as in "
            f"`tinyengine grade {short(copies[0], root)}`."
        )
    raise CourseError(f"You have no copy of exercises {number} yet: run `tinyengine start {number}` first.")


def grades_file(stem: str, root: Path) -> Path:
    return work_folder(root) / ".grades" / f"{stem.split('_')[0]}.json"


def remember(card: dict, path: Path, root: Path) -> None:
    """Keep the last grade of a notebook in work/, and the parts of the learner's engine that had all points; a notebook
    elsewhere is graded without a trace.

    The card tells what was kept, by name, and at full points the notebook that comes next: card["kept"], card["next"].
    """
    path, parts = Path(path).resolve(), card.pop("parts", {})
    if path.parent != work_folder(root):
        return
    for name, source in parts.items():
        keep(name, source, path.parent / "engine")
    card["kept"] = list(parts)
    if card["points"] == card["max_points"]:
        card["next"] = next_lesson(path.stem, root)
    if path.stem in manifest(root):
        write_json(grades_file(path.stem, root), card)


def next_lesson(stem: str, root: Path) -> str:
    """The notebook of the lesson behind this one, as seen from the checkout; nothing behind the last one."""
    names = sorted(path.name for path in (root / "lessons").glob("[0-9][0-9]_*.ipynb"))
    return next((f"lessons/{name}" for name in names if name[:2] > stem[:2]), "")


def progress(root: Path) -> list[dict]:
    """One row per exercise notebook that was started, with the points of its last grade."""
    rows = []
    for stem, entry in sorted(manifest(root).items()):
        copy, grades = work_folder(root) / f"{stem}.ipynb", grades_file(stem, root)
        if not copy.is_file():
            continue
        row = {
            "notebook": entry["title"],
            "passed": 0,
            "exercises": len(entry["exercises"]),
            "points": 0,
            "max_points": sum(exercise["points"] for exercise in entry["exercises"]),
            "note": "not graded yet",
        }
        try:
            card = json.loads(grades.read_text(encoding="utf-8"))
            passed, points = sum(exercise["status"] == "passed" for exercise in card["exercises"]), card["points"]
            if not isinstance(points, int):
                raise TypeError(points)
            row["passed"], row["points"] = passed, points
            row["note"] = "saved since it was graded" if copy.stat().st_mtime > grades.stat().st_mtime else ""
        except FileNotFoundError:
            pass
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            row["note"] = "its last grade cannot be read: grade it again"
        rows.append(row)
    return rows
