"""Small courses in a temporary folder, and answers to the course's own exercises through its grader."""

import json
import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tinyengine.course.builder import build
from tinyengine.course.grader import grade, manifest
from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT


def answer(function: str, body: str, todo: str = "fill it in"):
    """An answer cell: a function of x whose body is the solution."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return new_code_cell(
        f'def {function}(x):\n    """About x."""\n    ### BEGIN SOLUTION {todo}\n{lines}\n    ### END SOLUTION'
    )


def check_cell(exercise: str, points: int, lines: str, **meta):
    """A check cell: the import, the call, its lines."""
    body = "\n".join(f"    {line}" for line in lines.splitlines())
    source = f'from tinyengine.course import check\n\nwith check("{exercise}", points={points}) as c:\n{body}'
    return new_code_cell(source, metadata={"tags": ["check"], "exercise": meta})


def solution(*cells):
    return new_notebook(
        cells=[new_markdown_cell("# Orca by hand"), new_code_cell("import math", metadata={"tags": ["setup"]}), *cells]
    )


def twice(exercise: str, **meta):
    """An exercise of two points: double_N(x) is 2 * x."""
    name = "double_" + exercise.split(".")[1]
    return [
        answer(name, "return 2 * x", f"return twice x ({name})"),
        check_cell(
            exercise,
            2,
            f'c.equal("twice 3", lambda: {name}(3), 6, mistakes={{9: "you square it"}})\n'
            f'c.equal("twice 0", lambda: {name}(0), 0)',
            **meta,
        ),
    ]


class Course:
    """A checkout of a course with one exercise notebook, and hands to edit the learner's copy of it."""

    def __init__(self, root: Path, nb, stem: str = "02_orca"):
        self.root, self.stem = root, stem
        for folder in ("lessons", "solutions", "exercises", "work"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self.solution = root / "solutions" / f"{stem}.ipynb"
        nbformat.write(nb, self.solution)
        build(root)
        self.copy = root / "work" / f"{stem}.ipynb"

    def exercise(self):
        return nbformat.read(self.root / "exercises" / f"{self.stem}.ipynb", as_version=4)

    def save(self, nb):
        nbformat.write(nb, self.copy)
        return self.copy


def cell(nb, cell_id: str):
    return next(c for c in nb.cells if c.id == cell_id)


def graded(folder: Path, stem: str, answers: list[tuple[str, str]]) -> list[dict]:
    """What the grader gives for each (exercise id, source of an answer), in one notebook."""
    entry = manifest(ROOT)[stem]
    real = {exercise["id"]: exercise for exercise in entry["exercises"]}
    cells = [new_code_cell(setup["source"], id=setup["cell"]) for setup in entry["setup"]]
    exercises = []
    for number, (exercise_id, source) in enumerate(answers):
        exercise = json.loads(json.dumps(real[exercise_id]))
        [answer], check = exercise["answers"], exercise["check"]
        answer["cell"], check["cell"] = f"answer-{number}", f"check-{number}"
        cells += [new_code_cell(source, id=answer["cell"]), new_code_cell(check["source"], id=check["cell"])]
        exercises.append(exercise)
    (folder / "exercises").mkdir()
    entries = {stem: {**entry, "cells": [cell.id for cell in cells], "exercises": exercises}}
    (folder / "exercises" / "manifest.json").write_text(json.dumps(entries))
    nbformat.write(new_notebook(cells=cells), folder / f"{stem}.ipynb")
    return grade(folder / f"{stem}.ipynb", folder)["exercises"]


def solutions(stem: str) -> dict[str, str]:
    """The answer cells of a solution notebook, without their markers, by the name they define."""
    cells = nbformat.read(ROOT / "solutions" / f"{stem}.ipynb", as_version=4).cells
    found = {}
    for one in cells:
        if "### BEGIN SOLUTION" in one.source:
            source = re.sub(r" *### (BEGIN|END) SOLUTION.*\n?", "", one.source).rstrip() + "\n"
            found[re.match(r"(?:def|class) (\w+)", source)[1]] = source
    return found


def mistakes(*checks) -> dict[str, tuple]:
    """Each mistake of these exercises, by a name for the test: (the exercise, the mistake)."""
    return {f"{check.exercise_id} {m.name}": (check, m) for check in checks for m in check.mistakes}
