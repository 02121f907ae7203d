"""What of a notebook is kept as a part: all that it needs, nothing else, and nothing that was kept before is lost."""

import json

import pytest
from helpers.course import cell
from nbformat.v4 import new_code_cell

from tinyengine.course.grader import grade
from tinyengine.course.keep import keep, needed
from tinyengine.course.work import remember

SETUP = "# Given: imports.\nfrom math import pi, tau\nimport os.path, json as j\nfrom tinyengine.memory import Slots"
DECORATED = """# mine,
# all mine
@deco
class f(Slots):
    def size(self):
        return SIZE"""
CASES = {
    "only what is needed of the imports": (
        [SETUP, "def f(x):\n    return x + pi + os.path.sep"],
        "from math import pi\n\nimport os.path\n\ndef f(x):\n    return x + pi + os.path.sep\n",
    ),
    "helpers, also those below and those of helpers": (
        ["def g(x):\n    return h(x)", "def f(x):\n    return g(x)", "f(1)", "def h(x):\n    return N", "N = 3"],
        "def g(x):\n    return h(x)\n\ndef f(x):\n    return g(x)\n\ndef h(x):\n    return N\n\nN = 3\n",
    ),
    "a class with a decorated base, and its comment": (
        [SETUP, "def deco(c):\n    return c", DECORATED, "SIZE = 1"],
        f"from tinyengine.memory import Slots\n\ndef deco(c):\n    return c\n\n{DECORATED}\n\nSIZE = 1\n",
    ),
    "the last of several versions": (
        ["def f(x):\n    return OLD", "OLD = 1", "def f(x):\n    return 2"],
        "def f(x):\n    return 2\n",
    ),
    "a name that is local in one place is no global of it": (
        ["idle = 5", "def f(x):\n    idle = x\n    return [pi for pi in range(idle)]", SETUP],
        "def f(x):\n    idle = x\n    return [pi for pi in range(idle)]\n",
    ),
    "what is changed after it was made": (
        ["t = {}", 't["a"] = 1', "t = t | {2: 3}", "n = 1", "n += 1", "def f():\n    return t, n", "f.note = 4"],
        't = {}\n\nt["a"] = 1\n\nt = t | {2: 3}\n\nn = 1\n\nn += 1\n\ndef f():\n    return t, n\n\nf.note = 4\n',
    ),
    "a choice": (
        ["n = 1", "if True:\n    n = 2", "f = lambda: n"],
        "n = 1\n\nif True:\n    n = 2\n\nf = lambda: n\n",
    ),
    "magics and cells that are no Python": (
        ["%%time\n!ls\ndef f():\n    return g", "g = )", "%load_ext x\ng = 1"],
        "def f():\n    return g\n\ng = 1\n",
    ),
    "a star": (["from math import *", "def f():\n    return sin"], "from math import *\n\ndef f():\n    return sin\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_needed(name):
    cells, kept = CASES[name]
    assert needed("f", cells) == kept
    exec(kept, {})  # it runs alone


def test_an_older_part_stays_beside_the_new_one(tmp_path):
    path = keep("f", "1", tmp_path)
    assert keep("f", "1", tmp_path) == path and [file.name for file in tmp_path.iterdir()] == ["f.py"]
    for text in ("2", "3", "2", "3"):
        keep("f", text, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "f.py": "3", "f_1.py": "1", "f_2.py": "2", "f_3.py": "3",
    }  # fmt: skip


@pytest.fixture
def with_a_part(course):
    path = course.root / "exercises" / "manifest.json"
    entries = json.loads(path.read_text())
    for exercise, name in zip(entries["02_orca"]["exercises"], ("double_1", "double_2")):
        exercise["part"] = name
    path.write_text(json.dumps(entries))
    return course


def test_a_part_with_all_points_is_kept_and_no_other(with_a_part, tmp_path):
    course = with_a_part
    nb = course.exercise()
    nb.cells.insert(2, new_code_cell("def helper(x):\n    return x + x"))
    cell(nb, "answer-2-1").source = "def double_1(x):\n    return helper(x)"
    cell(nb, "answer-2-2").source = "def double_2(x):\n    return x * x"
    nb.cells.append(new_code_cell("double_1 = None  # below the check"))
    course.save(nb)
    card = grade(course.copy, course.root)
    remember(card, course.copy, course.root)
    assert card["kept"] == ["double_1"] and "parts" not in card
    [file] = (course.root / "work" / "engine").iterdir()
    assert file.read_text() == (
        "# Exercise 2.1, kept when it had all points.\n\ndef helper(x):\n    return x + x\n\n"
        "def double_1(x):\n    return helper(x)\n"
    )
    elsewhere = course.root / "02_orca.ipynb"
    course.copy.replace(elsewhere)
    file.unlink()
    card = grade(elsewhere, course.root)
    remember(card, elsewhere, course.root)
    assert "kept" not in card and not file.exists()
