"""Small courses in a temporary folder, and answers to the course's own exercises through its grader."""

import builtins
import inspect
import json
import re
import sys
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tinyengine.course import checks as judging
from tinyengine.course import exercise as exercising
from tinyengine.course import watch as watching
from tinyengine.course.builder import build
from tinyengine.course.grader import grade, manifest
from tinyengine.course.keep import statements_of
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


def graded(folder: Path, stem: str, answers: list[tuple[str, str]], before: dict[int, str] | None = None) -> list[dict]:
    """What the grader gives for each (exercise id, source of an answer), in one notebook.

    before: cells of the learner's own, by the number of the answer before whose check they stand.
    """
    entry = manifest(ROOT)[stem]
    real = {exercise["id"]: exercise for exercise in entry["exercises"]}
    cells = [new_code_cell(setup["source"], id=setup["cell"]) for setup in entry["setup"]]
    exercises = []
    for number, (exercise_id, source) in enumerate(answers):
        exercise = json.loads(json.dumps(real[exercise_id]))
        [answer], check = exercise["answers"], exercise["check"]
        answer["cell"], check["cell"] = f"answer-{number}", f"check-{number}"
        cells.append(new_code_cell(source, id=answer["cell"]))
        if before and number in before:
            cells.append(new_code_cell(before[number]))
        cells.append(new_code_cell(check["source"], id=check["cell"]))
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
            found[re.search(r"^(?:def|class) (\w+)", source, re.MULTILINE)[1]] = source
    return found


class Audit:
    """The tests that all exercises share, as a base of a test class, with

    stem: of the notebooks. checks: all that they have.
    right: {"2.1 slot by slot": source}, answers of another form, two or more for each exercise: all points.
    odd: {"2.1 strings": (source, points, words)}: what the grader gives and says.
    seeds: for so many each mistake is told.
    """

    stem: str
    checks: tuple
    right: dict[str, str]
    odd: dict[str, tuple[str, int, str]]
    seeds = 1

    @classmethod
    def mistakes(cls) -> dict[str, tuple]:
        """By a name for the test: (the exercise, the mistake)."""
        return {f"{check.exercise_id} {m.name}": (check, m) for check in cls.checks for m in check.mistakes}

    def pytest_generate_tests(self, metafunc):
        checks = {check.exercise_id: check for check in self.checks}
        names = {"a_check": checks, "mistaken": self.mistakes(), "other_form": self.right, "odd_answer": self.odd}
        for name in names.keys() & set(metafunc.fixturenames):
            metafunc.parametrize(name, names[name])

    @pytest.fixture(scope="class")
    @classmethod
    def rows(cls, tmp_path_factory):
        """One run of the grader: what it gives for each answer, by its name."""
        answers = {check.exercise_id: check.source(check.mistakes[0]) for check in cls.checks}
        answers |= {name: dedent(source).strip() for name, source in cls.right.items()}
        answers |= {name: dedent(source).strip() for name, (source, _, _) in cls.odd.items()}
        pairs = [(name.split()[0], source) for name, source in answers.items()]
        return dict(zip(answers, graded(tmp_path_factory.mktemp(cls.stem), cls.stem, pairs)))

    def of(self, name: str):
        return next(check for check in self.checks if check.exercise_id == name.split()[0])

    def test_the_solution_of_the_notebook_is_the_referees(self, a_check):
        check = self.of(a_check)
        assert solutions(self.stem)[check.name] == inspect.getsource(check.solution)
        assert len(check.mistakes) >= 6
        assert len({mistake.sentence for mistake in check.mistakes}) == len(check.mistakes)
        assert sum(self.of(name) is check for name in self.right) >= 2

    def test_the_solution_has_all_points_for_any_seed(self, a_check, capsys):
        check = self.of(a_check)
        for seed in range(self.seeds):
            assert f": {check.points} of {check.points} points" in told(check, check.solution, capsys, seed)

    @pytest.mark.slow
    def test_a_mistake_loses_points_and_is_told_by_its_sentence(self, mistaken, capsys):
        check, mistake = self.mistakes()[mistaken]
        for seed in range(self.seeds):
            said = told(check, check.twin(mistake), capsys, seed)
            assert f": {check.points} of" not in said and f"most likely: {mistake.sentence}." in said, said

    @pytest.mark.slow
    def test_the_grader_tells_a_mistake_as_the_check_does(self, rows, a_check):
        row, check = rows[a_check], self.of(a_check)
        assert row["points"] < check.points and f"most likely: {check.mistakes[0].sentence}." in row["messages"], row

    @pytest.mark.slow
    def test_a_right_answer_of_another_form_gets_all_points(self, rows, other_form):
        row = rows[other_form]
        assert row["points"] == self.of(other_form).points and not row["messages"], row

    @pytest.mark.slow
    def test_an_odd_answer_is_told_in_a_sentence(self, rows, odd_answer):
        _, points, words = self.odd[odd_answer]
        row = rows[odd_answer]
        assert row["points"] == points and words in " ".join(row["messages"]), row

    @pytest.mark.slow
    def test_scratch_cells_and_replaced_judges_change_no_verdict(self, rows, tmp_path):
        """A cell before each check of a right answer uses every name that judges; then one replaces the judges."""
        sources, count = solutions(self.stem), len(self.checks)
        answers = [(check.exercise_id, sources[check.name]) for check in self.checks]
        answers += [(check.exercise_id, check.source(check.mistakes[0])) for check in self.checks]
        scratch = scratch_cell(self.checks, sources.values())
        before = dict.fromkeys(range(count), scratch) | {count: attack_cell(self.checks)}
        got = [row["points"] for row in graded(tmp_path, self.stem, answers, before)]
        wrong = [rows[check.exercise_id]["points"] for check in self.checks]
        assert got == [check.points for check in self.checks] + wrong

    @pytest.mark.slow
    def test_untouched_exercises_are_not_attempted_and_solutions_have_all_points(self):
        most = sum(check.points for check in self.checks)
        for folder, points, status in (("exercises", 0, "not attempted"), ("solutions", most, "passed")):
            card = grade(ROOT / folder / f"{self.stem}.ipynb", ROOT)
            assert (card["points"], card["max_points"]) == (points, most), card
            assert {row["status"] for row in card["exercises"]} == {status}, card


def told(check, answer, capsys, seed: int = 0) -> str:
    """What a check prints about an answer, in one line."""
    capsys.readouterr()
    check(answer, seed=seed)
    return " ".join(capsys.readouterr().out.split())


def module_of(checks):
    return sys.modules[checks[0].judge.__module__]


def scratch_cell(checks, sources) -> str:
    """Every name of the referee and of what judges, used for something else; but the names that answers need."""
    needed = {name for source in sources for statement in statements_of(source) for name in statement.uses}
    needed |= {check.name for check in checks} | set(dir(builtins))
    names = {name for module in (module_of(checks), judging, exercising, watching) for name in vars(module)}
    names = sorted(name for name in names - needed if not name.startswith("_"))
    return f"{' = '.join(names)} = 5\n{module_of(checks).__name__.split('.')[-1]} = None"


def attack_cell(checks) -> str:
    """What a learner may try who wants all points."""
    module = module_of(checks).__name__
    names = [check.judge.__name__ for check in checks]
    return f"""
import importlib, sys
import tinyengine.course.checks as checks, tinyengine.course.exercise as exercise, tinyengine.course.watch as watch
checks.same = exercise.same = exercise.close = checks.truth = lambda *a, **k: True
checks.far = exercise.far = lambda *a: ""
checks.check.true = checks.check.equal = checks.check._record = exercise.Trial.agree = lambda *a, **k: True
watch.Watch.note = lambda *a: None
judge = importlib.import_module({module!r})
for name in {names!r}:
    setattr(judge, name, lambda answer: print("all points"))
sys.modules[{module!r}] = judge
"""
