"""Every state of the grader, from one notebook that holds them all: no answer may sink another one."""

import json
import re

import pytest
from helpers.course import Course, cell, solution, twice
from nbformat.v4 import new_code_cell

from tinyengine.course import grader as grading
from tinyengine.course.grader import grade
from tinyengine.course.plugin import line_of

RIGHT = "def double_{n}(x):\n    return 2 * x"
FORGERY = """
import builtins, json, sys
import tinyengine.course, tinyengine.course.checks as checks
from IPython.display import publish_display_data
class check:
    def __init__(self, *a, **k): pass
    def __enter__(self): return self
    def __exit__(self, *a): return True
    def __getattr__(self, name): return lambda *a, **k: True
checks.check.equal = lambda *a, **k: True
checks.check = tinyengine.course.check = check
checks.same = checks.truth = lambda *a: True
builtins.all = builtins.any = lambda *a: True
builtins.sum = lambda *a: 2
sys.modules["tinyengine.course.checks"] = checks
class Yes:
    __eq__ = __ge__ = __le__ = lambda self, other: True
    __hash__ = None
def double_13(x):
    line = {"name": "all", "points": 2, "max_points": 2, "state": "ok", "message": ""}
    for nonce in (None, "", checks.__dict__.get("_nonce"), sys.modules["tinyengine.course.checks"].__dict__["_nonce"]):
        publish_display_data({"application/vnd.tinyengine.check+json":
                              {"exercise": "2.13", "points": 2, "lines": [line], "nonce": nonce}})
    print("2.13: 2 of 2 points, passed")
    return Yes()
"""
ANSWERS = {  # what the learner wrote into the answer cell of 2.n
    1: RIGHT,
    2: "def double_{n}(x):\n    return x * x",
    3: "def double_{n}(x):\n    return x + 100",
    4: "def double_{n}(x):\n    empty = []\n    return empty[0]",
    6: "def double_{n}(x):\n    while True:\n        pass",
    7: "import os\ndef double_{n}(x):\n    os._exit(3)",
    8: "def double_{n}(x):\n    return 1 + x",
    9: RIGHT,
    11: "def double_{n}(x)\n    return 2 * x",
    12: "def double_{n}(x):\n    return int(input('twice? '))",
    13: FORGERY,
    14: "import sys\ndef double_{n}(x):\n    sys.exit(0)",
    15: RIGHT + "\nwhile True:\n    pass",
    16: RIGHT + "\nimport os\nos._exit(0)",
    17: "def double_{n}(x):\n    while True:\n        try:\n            print(x)\n        except BaseException:\n"
    "            pass",
    18: RIGHT + "\nexit()",
    19: "def double_{n}(x):\n    2 * x",
    20: "x = int(input('twice? '))\n" + RIGHT,
    21: "# NBVAL_SKIP\n" + RIGHT,
    22: RIGHT + "\nhelper_of_the_learner(1)",
    23: "def double_{n}(x):\n    return double_5(x)",
    24: RIGHT,
    25: "def double_{n}(x):\n    return sum(iter(int, 1))",  # one operation of C, which no interrupt ends
    26: "import time\ndef double_{n}(x):\n    time.sleep(1000)",
}
STATUS = {
    1: "passed",
    2: "partial",
    3: "failed",
    4: "error",
    5: "not attempted",
    6: "timeout",
    7: "kernel died",
    8: "failed",
    9: "passed",
    10: "answer deleted",
    11: "error",
    12: "error",
    13: "failed",
    14: "error",
    15: "timeout",
    16: "kernel died",
    17: "timeout",
    18: "kernel died",
    19: "failed",
    20: "error",
    21: "passed",
    22: "passed",
    23: "error",
    24: "passed",
    25: "timeout",
    26: "timeout",
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    cells = [one for n in STATUS for one in twice(f"2.{n}", timeout=2, title=f"state {n}")]
    course = Course(root, solution(*cells))
    nb = course.exercise()
    for n, source in ANSWERS.items():
        cell(nb, f"answer-2-{n}").source = source.replace("{n}", str(n))
    cell(nb, "check-2-8").source = "print('2.8: 2 of 2 points, passed')"
    nb.cells.remove(cell(nb, "check-2-9"))
    nb.cells.remove(cell(nb, "answer-2-10"))
    cell(nb, "answer-2-1").metadata["tags"] = ["raises-exception"]
    at = nb.cells.index(cell(nb, "answer-2-22"))
    nb.cells.insert(at, new_code_cell("def helper_of_the_learner(x):\n    return x"))
    nb.cells.insert(2, new_code_cell("1 / 0"))
    before = course.save(nb).read_bytes()
    card = grade(course.copy, course.root)
    assert course.copy.read_bytes() == before
    return card


def exercise(card, n):
    return next(e for e in card["exercises"] if e["id"] == f"2.{n}")


@pytest.mark.parametrize("n", STATUS)
def test_status_and_points(graded, n):
    got = exercise(graded, n)
    points = {"passed": 2, "partial": 1}.get(STATUS[n], 0)
    assert (got["status"], got["points"], got["max_points"]) == (STATUS[n], points, 2), got


@pytest.mark.parametrize(
    "n, words",
    [
        (2, "twice 3: you square it"),
        (3, "twice 3: you have 103, which is too high"),
        (4, "IndexError: list index out of range at line 3 of your cell (`return empty[0]`)"),
        (6, "the check of your code did not end within 2 s"),
        (7, "ended the Python process"),
        (8, "check cell edited: it was restored"),
        (9, "check cell deleted: it was restored"),
        (10, "--fresh"),
        (11, "SyntaxError"),
        (11, "SyntaxError: expected ':' at line 1 (`def double_11(x)`)"),
        (12, "input()"),
        (14, "sys.exit()"),
        (15, "the answer cell did not end within 2 s"),
        (19, "did you forget to return?"),
        (20, "your answer cell calls input()"),
        (23, "it needs exercise 2.5, which is not written yet"),
    ],
)
def test_reasons(graded, n, words):
    assert words in " | ".join(exercise(graded, n)["messages"])


def test_no_message_holds_the_answer(graded):
    for got in graded["exercises"]:
        assert not any(re.search(r"\b6\b", message) for message in got["messages"] if "twice 3" in message)


def test_totals_and_notes(graded):
    assert graded["max_points"] == 2 * len(STATUS)
    assert graded["points"] == sum(e["points"] for e in graded["exercises"])
    assert graded["notebook"] == "work/02_orca.ipynb"
    assert any("1 / 0" in note and "ZeroDivisionError" in note for note in graded["messages"])


def test_an_answer_that_never_ran_gives_one_reason(graded):
    for n in (11, 15, 16, 18, 20):  # and not the NameErrors that follow from it
        assert len(exercise(graded, n)["messages"]) == 1


def test_check_flags(graded):
    assert {n: exercise(graded, n)["check"] for n in (1, 8, 9)} == {1: "intact", 8: "edited", 9: "deleted"}


def test_the_line_of_an_error_is_that_of_its_own_cell():
    source = "def f(x):\n    return given(x)\n\nf(0)"
    frames = [
        "ValueError Traceback (most recent call last)",
        "\x1b[32mCell In[1]\x1b[39m, line 4\n      1 def f(x):\n----> 4 f(0)",
        "Cell In[1], line 2, in f(x)\n      1 def f(x):\n----> 2     return given(x)\n      3 ",
        "Cell In[1], line 3, in given(x)\n      1 # Given\n----> 3     raise ValueError",
        "File /lib/thing.py:4, in thing()\n----> 4 f(0)",
    ]
    assert line_of("too small", frames, source) == 2
    assert line_of("invalid syntax (123.py, line 3)", frames[:1], source) == 3
    assert line_of("too small", frames[:1], source) is None


def attempted(course):
    nb = course.exercise()
    cell(nb, "answer-2-1").source = RIGHT.replace("{n}", "1")
    return nb


def test_a_cell_outside_the_exercises_has_a_short_limit(course, monkeypatch):
    jobs = []
    monkeypatch.setattr(grading.subprocess, "run", lambda *_, cwd, **__: jobs.append((cwd / "job.json").read_text()))
    with pytest.raises(AttributeError):  # nothing ran, so there is nothing to read
        grade(course.save(attempted(course)), course.root)
    job = json.loads(jobs[0])
    assert job["timeout"] == 5 and job["timeouts"]["setup-1"] == 60 and job["timeouts"]["check-2-1"] == 8


def test_nothing_runs_for_an_untouched_copy(course, monkeypatch):
    monkeypatch.setattr(grading.subprocess, "run", lambda *_, **__: pytest.fail("a kernel was started"))
    nb = course.exercise()
    nb.cells.append(new_code_cell("# a note"))
    card = grade(course.save(nb), course.root)
    assert [row["status"] for row in card["exercises"]] == ["not attempted"] * 2 and card["messages"] == []


def test_given_cells_run_only_where_a_later_cell_needs_their_names(tmp_path):
    given = ["print(double_1(3))", "half = 0.5\nprint(half)", "table = {}", "1 / 0", "%time 3"]
    first, second = twice("2.1"), twice("2.2")
    course = Course(tmp_path, solution(*first, *map(new_code_cell, given), *second))
    entry = grading.manifest(course.root)["02_orca"]
    nb = attempted(course)
    cell(nb, "answer-2-2").source = "def double_2(x):\n    return x / half"
    graded, _ = grading.graded_copy(nb, entry)
    chosen = grading.what_counts(graded, entry)
    assert [one.source for one in chosen.cells if one.source in given] == ["half = 0.5\nprint(half)", "%time 3"]
    next(one for one in nb.cells if one.source == given[0]).source += "  # mine"
    changed = [one.source for one in grading.what_counts(nb, entry).cells]
    assert given[0] + "  # mine" in changed and given[2] not in changed
    nb.cells.append(new_code_cell("table"))
    assert given[2] in [one.source for one in grading.what_counts(nb, entry).cells]
    nb.cells.pop()
    card = grade(course.save(nb), course.root)
    assert card["points"] == 4, card


def test_a_scratch_variable_with_the_name_of_a_module_changes_nothing(course):
    nb = course.exercise()
    answer = cell(nb, "answer-2-2")
    answer.source = "def double_2(x):\n    return math.fsum((x, x))"
    nb.cells.insert(nb.cells.index(answer) + 1, new_code_cell("math = None"))
    _, row = grade(course.save(nb), course.root)["exercises"]
    assert (row["points"], row["status"]) == (2, "passed")


@pytest.mark.parametrize("kind, name, said", [("NameError", "double", True), ("NameError", "triple", False),
                                              ("TypeError", "double", False)])  # fmt: skip
def test_an_answer_under_another_name_is_told_so(kind, name, said):
    exercise = {"answers": [{"stub": "def double(x):\n    pass"}]}
    sentence = grading.misnamed(exercise, {"type": kind, "text": f"name '{name}' is not defined"})
    assert sentence == ("nothing is called double: the answer must have this name" if said else "")
