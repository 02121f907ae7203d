"""`start`, `grade`, `progress` and `home` as a notebook calls them: what the terminal's commands do, shown as HTML.

Links are relative to the folder of the notebook that runs, so JupyterLab opens them. What goes wrong is one sentence
and no traceback. What work/ is, and who may write there, is tinyengine.course.work's affair.
"""

import functools
import html
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from tinyengine.course import predictions
from tinyengine.course.display import publish
from tinyengine.course.lesson import inline

# What a lesson that is not there yet is about. What is there says it itself, in its first cell.
PLANNED = (
    "Two phases, Static batching, Orca, Selective batching, Paged attention, Chunked prefill, Batch invariance, "
    "Which engine for a service"
).split(", ")
COLOURS = {"passed": "46,160,67", "partial": "212,140,0", "not attempted": "128,128,128"}  # every other state is red


def told(function):
    """Say a CourseError, or a file that cannot be used, in its sentence."""

    @functools.wraps(function)
    def run(*args, **options) -> None:
        from tinyengine.course.notebooks import CourseError, find_root

        try:
            function(find_root(), *args, **options)
        except CourseError as error:
            publish(as_called(str(error)))
        except OSError as error:
            publish(f"{error.filename or 'A file'} cannot be used ({error.strerror}): check it.")

    return run


def as_called(text: str) -> str:
    """`tinyengine start 2` of a terminal, as a notebook says it: `start(2)`."""

    def call(found):
        name, number, fresh = found.groups()
        return f"`{name}({number if number.isdecimal() else json.dumps(number)}{', fresh=True' if fresh else ''})`"

    return re.sub(r"`tinyengine (start|grade) (\S+?)( --fresh)?`", call, text)


@told
def start(root: Path, number, fresh: bool = False) -> None:
    """Copy the exercises of a lesson to work/ unless they are there, show where, and list them: `start(2)`."""
    from tinyengine.course import grader, work

    path, new = work.start(str(number), root, fresh)
    again = f", as you left them; `start({number!r}, fresh=True)` makes a fresh copy beside it."
    where = f"Your exercises are in {link(path, root)}{'. Nothing overwrites them.' if new else again}"
    rows = []
    for exercise in grader.manifest(root)[work.find(str(number), root)]["exercises"]:
        part = f"<code>{exercise['part']}</code>, a part of your engine" if "part" in exercise else ""
        name = html.escape(f"{exercise['id']} {exercise['title']}".strip())
        minutes, lines = exercise["minutes"] or "", f"about {exercise['lines']}"
        rows.append([name, minutes, lines, exercise["points"], part])
    show(where, table(["exercise", "minutes", "lines", "points", ""], rows))


@told
def grade(root: Path, number) -> None:
    """Grade your copy of the exercises of a lesson, as it is saved, and show why: `grade(2)`."""
    from tinyengine.course import grader, work

    named = root / str(number)  # a path as the course writes it, wherever the notebook lies
    path, others = work.locate(str(named if named.is_file() else number), root)
    saved = time.strftime("%H:%M:%S", time.localtime(path.stat().st_mtime))
    card = grader.grade(path, root)
    card["messages"] += [f'{other} is graded by its path: `grade("{other}")`' for other in others]
    work.remember(card, path, root)
    rows = []
    for exercise in card["exercises"]:
        reasons = "".join(f"<br>{inline(as_called(message))}" for message in exercise["messages"])
        name = f"{exercise['id']} {exercise['title']}".strip()
        points = f"{exercise['points']}/{exercise['max_points']}"
        rows.append([html.escape(name), points, badge(exercise["status"]) + reasons])
    show(
        f"{link(path, root)}, as it was saved at {saved} (Ctrl + S saves it)",
        table(["exercise", "points", "state, and why"], rows),
        *(inline(as_called(message)) for message in card["messages"]),
        f"<b>{card['points']} of {card['max_points']} points.</b>",
        *after_all_points(card, path, root),
    )


def after_all_points(card: dict, path: Path, root: Path) -> list[str]:
    """What was won, and where it goes on; nothing while points are missing."""
    if card["points"] < card["max_points"]:
        return []
    parts = ", ".join(f"<code>{name}</code>" for name in card.get("kept", ()))
    won = [f"Well done. Your engine has kept {parts}, in work/engine/."] if parts else ["Well done."]
    return [*won, go_on(root, lessons(root))] if path.parent == work_of(root) else won


@told
def progress(root: Path) -> None:
    """Show the points of all exercises that you have started."""
    from tinyengine.course import grader, work

    found = work.progress(root)
    if not found:
        first = min(int(stem.split("_")[0]) for stem in grader.manifest(root))
        show(f"Nothing is started yet: `start({first})` copies the first exercises to work/.")
        return
    rows = []
    for row in found:
        passed, points = f"{row['passed']}/{row['exercises']}", f"{row['points']}/{row['max_points']}"
        rows.append([html.escape(row["notebook"]), passed, points, html.escape(row["note"])])
    points, most = (sum(row[key] for row in found) for key in ("points", "max_points"))
    show(table(["notebook", "passed", "points", ""], rows), f"<b>{points} of {most} points.</b>")


@told
def home(root: Path) -> None:
    """Show the map of the course: each lesson, what is done, the parts of your engine, and where to go on."""
    found = lessons(root)
    columns = ["lesson", "minutes", "exercises", "points", "your engine"]
    scored, near = predictions.tally(work_of(root))
    said = f"{scored} prediction{'s' * (scored != 1)}, {near} within 25 %." if scored else "No predictions yet."
    show(table(columns, [home_row(lesson, root) for lesson in found]), said, go_on(root, found))


def home_row(lesson: dict, root: Path) -> list[str]:
    number = f"{lesson['number']:02d}"
    if not lesson["path"]:
        return [f"{number} {lesson['title']}", "in preparation", "", "", ""]
    title = link(lesson["path"], root, f"{number} {lesson['title']}")
    done = points_text(lesson)
    if lesson["max_points"] and lesson["points"] == lesson["max_points"]:
        title, done = f"{title} ✓", f"{done}, all"
    count = f"{lesson['exercises']}, {lesson['exercise_minutes']} min" if lesson["exercises"] else ""
    exercises = link(lesson["copy"], root, count) if lesson["copy"] else count
    parts = [f"<code>{name}</code>{' ✓ yours' if kept else ''}" for name, kept in lesson["parts"].items()]
    return [title, lesson["minutes"], exercises, done, "<br>".join(parts)]


def points_text(lesson: dict) -> str:
    return f"{lesson['points']} of {lesson['max_points']}" if lesson["max_points"] else ""


def go_on(root: Path, found: list[dict]) -> str:
    """The next thing to do, as a link."""
    there = [lesson for lesson in found if lesson["path"]]
    for lesson in there:
        if lesson["copy"] and lesson["points"] < lesson["max_points"]:
            what = f"the exercises of lesson {lesson['number']:02d}"
            return f"<b>Go on:</b> {link(lesson['copy'], root, what)}, {points_text(lesson)} points."
        if not lesson["copy"]:
            what = f"lesson {lesson['number']:02d}, {lesson['title']}"
            first = "Begin" if lesson is there[0] else "Go on"
            return f"<b>{first}:</b> {link(lesson['path'], root, what)}"
    return "Every lesson that is written is done."


def lessons(root: Path) -> list[dict]:
    """What is known of each lesson: from its notebook, its exercises' manifest, and work/."""
    from tinyengine.course.grader import manifest

    entries, files = manifest(root), {path.stem: path for path in (root / "lessons").glob("[0-9][0-9]_*.ipynb")}
    found = []
    for number, planned in enumerate(PLANNED):
        stem = next((stem for stem in sorted(files) if int(stem[:2]) == number), "")
        lesson = {"number": number, "path": files.get(stem), "title": planned, "minutes": "", "copy": None}
        if stem:
            lesson |= first_cell(files[stem], planned)
        found.append(lesson | exercises_of(entries.get(stem, {"exercises": []}), stem, root))
    return found


def first_cell(path: Path, planned: str) -> dict:
    """Title and minutes of a lesson, as its first cell says them."""
    from tinyengine.course.notebooks import read

    cells = read(path).cells
    text = cells[0].source if cells else ""
    title = re.search(r"^# *(?:Lesson \d+)?\W*(.+)$", text, re.MULTILINE)
    minutes = re.search(r"(\d+) minutes", text)
    return {"title": title[1].strip() if title else planned, "minutes": minutes[1] if minutes else ""}


def exercises_of(entry: dict, stem: str, root: Path) -> dict:
    """Of a lesson's exercises: how many, how long, how many points, the learner's copy, points and parts."""
    from tinyengine.course.work import grades_file

    work, points = work_of(root), 0
    exercises = entry["exercises"]
    most = sum(exercise["points"] for exercise in exercises)
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        points = min(int(json.loads(grades_file(stem, root).read_text(encoding="utf-8"))["points"]), most)
    copy, parts = work / f"{stem}.ipynb", [exercise["part"] for exercise in exercises if "part" in exercise]
    return {
        "exercises": len(exercises),
        "exercise_minutes": sum(exercise["minutes"] or 0 for exercise in exercises),
        "points": points,
        "max_points": most,
        "copy": copy if stem and copy.is_file() else None,
        "parts": {name: (work / "engine" / f"{name}.py").is_file() for name in parts},
    }


def work_of(root: Path) -> Path:
    from tinyengine.course.notebooks import work_folder

    return work_folder(root)


def link(path: Path, root: Path, text: str = "") -> str:
    """A link that JupyterLab opens. A work/ elsewhere, as authors have it, is named as if it were in the checkout."""
    shown = path if path.is_relative_to(root) else root / "work" / path.name
    address = Path(os.path.relpath(shown, Path.cwd())).as_posix()
    return f'<a href="{html.escape(address)}">{html.escape(text or shown.relative_to(root).as_posix())}</a>'


def badge(status: str) -> str:
    """A state in its colour, and in words."""
    colour = COLOURS.get(status, "217,83,79")
    style = f"padding: 1px 8px; border: 1px solid rgb({colour}); border-radius: 3px; background: rgba({colour},0.15)"
    return f'<span style="{style}">{html.escape(status)}</span>'


def table(columns: list[str], rows: list[list[str]]) -> str:
    """HTML of a table whose cells are HTML."""
    cell = '<{0} style="text-align: left; vertical-align: top">{1}</{0}>'
    head = "".join(cell.format("th", column) for column in columns)
    body = "".join(f"<tr>{''.join(cell.format('td', one) for one in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def show(*parts: str) -> None:
    """Paragraphs and tables, and beside them what they say without their tags."""
    rich = "\n".join(
        part if part.startswith("<table") else f'<p style="margin: 6px 0">{with_code(part)}</p>' for part in parts
    )
    lines = re.sub(r"</tr>|<br>", "\n", "\n".join(parts))
    cells = re.sub(r"</t[hd]>(?=<t)", " | ", lines)
    plain = html.unescape(re.sub(r"<[^>]+>", "", cells))
    publish("\n".join(line.rstrip(" |") for line in plain.strip().splitlines()), **{"text/html": rich})


def with_code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
