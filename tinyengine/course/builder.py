"""solutions/NN_name.ipynb -> exercises/NN_name.ipynb, and the manifest from which the grader restores check cells.

In a solution notebook
  - a code cell with `### BEGIN SOLUTION what to do` ... `### END SOLUTION` is an answer cell; it belongs to the next
    check cell (or to the exercise that its metadata names: {"exercise": {"id": "2.1"}});
  - `### BEGIN SOLUTION instead: CODE` puts that line of code in the place of the region, to be mended;
  - a code cell with the tag `check` imports a referee and calls one of its checks, `orca.check_2_1(static_waste)`, or
    imports `check` and holds one `with check("2.1", points=3) as c:`; its metadata may say
    {"exercise": {"title": ..., "minutes": ..., "timeout": seconds}};
  - a code cell with the tag `setup` is locked and restored like a check;
  - any other code cell is given: while it is as we wrote it, a grade runs it only if a later cell uses its names;
  - a cell with the tag `solution` is left out of the exercises.
"""

import ast
import hashlib
import importlib
import json
import re
from copy import deepcopy
from pathlib import Path

from tinyengine.course.exercise import Exercise
from tinyengine.course.notebooks import (
    KERNELSPEC,
    CourseError,
    NotebookNode,
    execute,
    name_cells,
    read,
    short,
    tags,
    text_of,
    tidy,
    untidy,
    write,
)

BEGIN = re.compile(r"^(\s*)### BEGIN SOLUTION\b[\s:]*(.*?)\s*$")
END = re.compile(r"^\s*### END SOLUTION\b")
MARKER = re.compile(r"### (BEGIN|END) SOLUTION")
IMPORT = re.compile(r"^from tinyengine\.course(\.checks)? import .*\bcheck\b", re.MULTILINE)
REFEREE = re.compile(r"^from tinyengine\.course\.referees import (\w+)\n+\1\.(check_\w+)\(\w+\)\s*\Z")
LONGEST = 8  # seconds that an answer or a check may compute while it is graded, unless its metadata says fewer


def build(root: Path) -> list[Path]:
    """Write what has changed; returns the files written."""
    written = []
    for path, text in products(root).items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write(path, text)
            written.append(path)
    return written


def stale(root: Path) -> list[str]:
    """One sentence per file that the solutions and referees no longer give, and per notebook stored unclean."""
    sentences = []
    wanted = products(root)
    for path, text in wanted.items():
        if not path.is_file():
            sentences.append(f"{short(path, root)} is missing: run `tinyengine build`.")
        elif path.read_text(encoding="utf-8") != text:
            sentences.append(
                f"{short(path, root)} is not what its solution gives: edit solutions/ and run `tinyengine build`."
                if path.suffix == ".ipynb"
                else f"{short(path, root)} is not what solutions and referees give: run `tinyengine build`."
            )
    for path in sorted((root / "exercises").glob("*.ipynb")):
        if path not in wanted:
            sentences.append(f"{short(path, root)} has no solution notebook: delete it or add the solution.")
    for path in authored(root):
        reason = untidy(read(path))
        if reason:
            sentences.append(f"{short(path, root)} {reason}: run `tinyengine build --run {path.stem[:2]}`.")
    return sentences


def authored(root: Path, number: str = "") -> list[Path]:
    """The notebooks that people write: lessons, then solutions; only those of one number, or one path, if given."""
    if number.endswith(".ipynb"):
        return [path for path in authored(root) if path.resolve() == Path(number).resolve()]
    prefix = f"{int(number):02d}" if number.isdigit() else number
    return [path for folder in ("lessons", "solutions") for path in sorted((root / folder).glob(f"{prefix}*.ipynb"))]


def run_authored(root: Path, number: str = ""):
    """Run lessons and solutions and store clean outputs; yields (path, what went wrong or nothing)."""
    paths = authored(root, number)
    if not paths:
        raise CourseError(f"There is no lesson or solution {number or 'at all'} under {root}: check it.")
    for path in paths:
        nb = read(path)
        try:
            names = cell_names(nb, parse(nb, path.stem)) if path.parent.name == "solutions" else None
            execute(nb, path.parent)
            require_all_points(nb)
        except CourseError as error:
            yield path, str(error)
            continue
        name_cells(nb, names)
        tidy(nb)
        write(path, text_of(nb))
        yield path, ""


def require_all_points(nb) -> None:
    """Outside of grading a check raises nothing: what it said is read."""
    for cell in nb.cells:
        if is_tagged(cell, "check"):
            said = "\n".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
            score = re.match(r"\d+\.\w+: (\d+) of (\d+) points", said)
            if score is None or score[1] != score[2]:
                raise CourseError(f"a check does not give all points ({' '.join(said.split())})")


def products(root: Path) -> dict[Path, str]:
    """Every file of exercises/, and the page of mistakes, with the text that they must have."""
    files, manifest = {}, {}
    for path in sorted((root / "solutions").glob("*.ipynb")):
        try:
            exercise_nb, manifest[path.stem] = derive(read(path), path.stem)
        except CourseError as error:
            raise CourseError(f"{short(path, root)}: {error}") from None
        files[root / "exercises" / path.name] = text_of(exercise_nb)
    text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    files[root / "exercises" / "manifest.json"] = text
    if table := mistakes(manifest):
        files[root / "docs" / "mistakes.md"] = table
    return files


MISTAKES = """# What usually goes wrong

Each exercise has a table of mistakes. Its check names one where that explains all that an answer did, and a test runs
each as a learner's answer. The tables stand in `tinyengine/course/referees/`; `tinyengine build` makes this page.

| exercise | answer | lines | points | mistakes |
| --- | --- | --- | --- | --- |
"""


def mistakes(manifest: dict) -> str:
    """docs/mistakes.md: of the exercises that have a referee; nothing where none has."""
    summary, tables = [], []
    for exercise in (exercise for entry in manifest.values() for exercise in entry["exercises"]):
        called = REFEREE.match(exercise["check"]["source"])
        if called is None:
            continue
        of = referee(*called.groups())
        name = f"{exercise['id']} {exercise['title']}".strip()
        answer = f"`{of.name}`" + (", kept as a part of the engine" if of.part else "")
        summary.append(f"| {name} | {answer} | {exercise['lines']} | {of.points} | {len(of.mistakes)} |\n")
        told = [(mistake.name, mistake.sentence.replace("|", "\\|")) for mistake in of.mistakes]
        rows = [f"| {mistake} | {sentence} |" for mistake, sentence in told]
        tables.append("\n".join([f"## {name}", "", "| mistake | what the learner reads |", "| --- | --- |", *rows]))
    return "\n\n".join([MISTAKES + "".join(summary).rstrip("\n"), *tables]) + "\n" if tables else ""


def derive(solution, stem: str):
    """A solution notebook's exercise notebook and its manifest entry."""
    nb = deepcopy(solution)
    nb.cells = [cell for cell in nb.cells if "solution" not in tags(cell)]
    exercises = parse(nb, stem)
    by_id = {exercise["id"]: exercise for exercise in exercises}
    name_cells(nb, cell_names(nb, exercises))
    for cell in nb.cells:
        _reset(cell)
    for exercise in exercises:
        exercise["answers"] = [answer_cell(nb.cells[index], exercise) for index in exercise.pop("answer_cells")]
        check = nb.cells[exercise.pop("check_cell")]
        exercise["check"] = {"cell": check.id, "source": check.source}
        check.metadata["exercise"].update({"id": exercise["id"], "points": exercise["points"]})
        exercise["lines"] = sum(answer.pop("lines") for answer in exercise["answers"])
    setup = [{"cell": cell.id, "source": cell.source} for cell in nb.cells if is_tagged(cell, "setup")]
    nb.metadata = NotebookNode(
        {"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}, "tinyengine": {"exercises": stem}}
    )
    theirs = {answer["cell"] for exercise in exercises for answer in exercise["answers"]}
    given = [cell for cell in nb.cells if cell.cell_type == "code" and cell.id not in theirs]
    given = [cell for cell in given if not (is_tagged(cell, "check") or is_tagged(cell, "setup"))]
    entry = {
        "given": {cell.id: sha(cell.source) for cell in given},
        "title": title_of(nb, stem),
        "cells": [cell.id for cell in nb.cells],
        "setup": setup,
        "exercises": list(by_id.values()),
    }
    return nb, entry


def _reset(cell):
    """Leaves a cell what an exercise needs: its source, its attachments, and the tags and marks of its kind."""
    attached = cell.get("attachments")
    kind = next((tag for tag in ("check", "setup") if is_tagged(cell, tag)), "")
    # "Run All" of a notebook with open exercises is to reach its end: a stub raises
    open_ended = ["raises-exception"] if cell.cell_type == "code" and kind != "setup" else []
    meta = NotebookNode({"tags": [kind, *open_ended] if kind else open_ended})
    if not meta.tags:
        del meta["tags"]
    if "jupyter" in cell.metadata:  # a folded input or output stays folded
        meta["jupyter"] = cell.metadata["jupyter"]
    if kind:  # JupyterLab refuses to edit, cut or delete such a cell
        exercise = NotebookNode({"cell": cell.id, "source_sha": sha(cell.source)})
        meta.update({"editable": False, "deletable": False, "exercise": exercise})
    cell.metadata = meta
    if attached:
        cell["attachments"] = attached
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None


def answer_cell(cell, exercise) -> dict:
    """Turn a solved cell into its stub, in place; returns what the manifest says about it."""
    cell.source, lines = stub(cell.source, exercise["id"])
    if not cell.source.lstrip().startswith(("%", "!")):
        try:
            ast.parse(cell.source)
        except SyntaxError as error:
            raise CourseError(
                f"the stub of {exercise['id']} is not Python ({error.msg}, line {error.lineno}): move the "
                "SOLUTION markers so that a `raise` may stand in their place."
            ) from None
    cell.metadata["exercise"] = {"id": exercise["id"], "cell": cell.id}
    return {"cell": cell.id, "stub": cell.source, "lines": lines}


def stub(source: str, exercise: str) -> tuple[str, int]:
    """The source with each solution region replaced by one `raise`, and how many lines of code the regions held."""
    out, total, region, begin = [], 0, None, None
    for line in source.splitlines():
        if begin is None and BEGIN.match(line):
            begin, region = BEGIN.match(line), []
        elif begin is not None and END.match(line):
            count = sum(1 for code in region if code.strip() and not code.strip().startswith("#"))
            indent, todo = begin[1], begin[2] or "your code here"
            if todo.startswith("instead: "):
                out.append(indent + todo.removeprefix("instead: "))
            else:
                out.append(f"{indent}# Your code here: about {count} line{'s' * (count != 1)}.")
                out.append(
                    f"{indent}raise NotImplementedError({json.dumps(f'{exercise}: {todo}', ensure_ascii=False)})"
                )
            total, begin = total + count, None
        elif MARKER.search(line):
            raise CourseError(
                f"exercise {exercise} has the line {line.strip()!r} out of turn: each BEGIN SOLUTION needs "
                "its own END SOLUTION, each on a line of its own."
            )
        elif begin is not None:
            region.append(line)
        else:
            out.append(line)
    if begin is not None:
        raise CourseError(f"exercise {exercise} has a BEGIN SOLUTION without END SOLUTION: add the end marker.")
    return "\n".join(out), total


def parse(nb, stem: str) -> list[dict]:
    """The exercises of a notebook: ids and points from the check cells, and which cells answer them."""
    exercises, waiting, named = [], [], {}
    for index, cell in enumerate(nb.cells):
        if is_tagged(cell, "check"):
            exercise = read_check(cell, stem)
            if any(exercise["id"] == other["id"] for other in exercises):
                raise CourseError(f"exercise {exercise['id']} has two check cells: give the second one its own id.")
            exercises.append({**exercise, "check_cell": index, "answer_cells": waiting})
            waiting = []
        elif MARKER.search(cell.source):
            if cell.cell_type != "code":
                raise CourseError(f"cell {index} has a SOLUTION marker and is no code cell: use the tag `solution`.")
            owner = cell.metadata.get("exercise", {}).get("id")
            named.setdefault(owner, []).append(index) if owner else waiting.append(index)
    if waiting:
        raise CourseError(f"cell {waiting[0]} has a solution and no check cell follows: tag its check cell `check`.")
    for owner, cells in named.items():
        for exercise in exercises:
            if exercise["id"] == owner:
                exercise["answer_cells"] = sorted(exercise["answer_cells"] + cells)
                break
        else:
            raise CourseError(f"cell {cells[0]} answers exercise {owner}, which has no check cell: correct the id.")
    for exercise in exercises:
        if not exercise["answer_cells"]:
            raise CourseError(
                f"exercise {exercise['id']} has a check and no answer cell: put ### BEGIN SOLUTION and "
                "### END SOLUTION around its answer."
            )
    return exercises


def read_check(cell, stem: str) -> dict:
    """An exercise's id and points, from its referee or from the call of `check`: no fact is written twice."""
    referee = REFEREE.match(cell.source)
    exercise = from_referee(*referee.groups()) if referee else from_call(cell)
    chapter = stem.split("_")[0].lstrip("0") or "0"
    if not re.fullmatch(rf"{re.escape(chapter)}\.\w+", str(exercise["id"])):
        raise CourseError(
            f"exercise id {exercise['id']!r} does not belong to {stem}: use {chapter}.1, {chapter}.2, ..."
        )
    if not isinstance(exercise["points"], int) or exercise["points"] < 1:
        raise CourseError(f"exercise {exercise['id']} has {exercise['points']!r} points: give it 1 or more.")
    meta = cell.metadata.get("exercise", {})
    for key in ("id", "points"):
        if key in meta and meta[key] != exercise[key]:
            raise CourseError(
                f"exercise {exercise['id']} has {key} {meta[key]!r} in its metadata and {exercise[key]!r} "
                "in its check: leave it out of the metadata."
            )
    return {
        **exercise,
        "title": meta.get("title", ""),
        "minutes": meta.get("minutes"),
        "timeout": min(meta.get("timeout", LONGEST), LONGEST),
    }


def from_referee(module: str, name: str) -> dict:
    """Of `orca.check_2_1(static_waste)`."""
    exercise = referee(module, name)
    part = {"part": exercise.name} if exercise.part else {}
    return {"id": exercise.exercise_id, "points": exercise.points, **part}


def referee(module: str, name: str) -> Exercise:
    try:
        exercise = getattr(importlib.import_module(f"tinyengine.course.referees.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise CourseError(f"a check cell calls {module}.{name}, which is not there ({error}): write it.") from None
    if not isinstance(exercise, Exercise):
        raise CourseError(f"{module}.{name} is no exercise: decorate it with `exercise`.")
    return exercise


def from_call(cell) -> dict:
    """Of `with check("2.1", points=3) as c:`."""
    calls = [
        node
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check"
    ]
    try:
        (call,) = calls
        points = {keyword.arg: keyword.value for keyword in call.keywords}.get("points") or call.args[1]
        exercise = {"id": ast.literal_eval(call.args[0]), "points": ast.literal_eval(points)}
    except (ValueError, IndexError):
        raise CourseError(
            f"the check cell that begins {cell.source[:40]!r} needs one call like "
            'check("2.1", points=3) with plain values.'
        ) from None
    if not IMPORT.search(cell.source):
        raise CourseError(
            f"the check cell of {exercise['id']} relies on an import elsewhere: begin it with "
            "`from tinyengine.course import check`."
        )
    return exercise


def cell_names(nb, exercises) -> dict[int, str]:
    """Ids that survive a rewrite of the text around them: check-2-1, answer-2-1, answer-2-1b, setup-1."""
    names = {}
    for exercise in exercises:
        mark = exercise["id"].replace(".", "-")
        names[exercise["check_cell"]] = f"check-{mark}"
        for nth, index in enumerate(exercise["answer_cells"]):
            names[index] = f"answer-{mark}" + ("" if nth == 0 else chr(ord("a") + nth))
    setups = [index for index, cell in enumerate(nb.cells) if is_tagged(cell, "setup")]
    names.update({index: f"setup-{nth}" for nth, index in enumerate(setups, 1)})
    return names


def is_tagged(cell, tag: str) -> bool:
    return cell.cell_type == "code" and tag in tags(cell)


def title_of(nb, stem: str) -> str:
    """The first heading, else the file's name."""
    for cell in nb.cells:
        found = re.search(r"^# +(.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        if found:
            return found[1].strip()
    return stem


def sha(source: str) -> str:
    """Tells a check that the learner edited from one that only the course has since replaced."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]
