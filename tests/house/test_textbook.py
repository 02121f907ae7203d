"""The textbook, ten files that lessons show: it names nothing that comes later, imports itself and the front desk, and
fits into 1,300 lines. Kernels and their compilers stay in one room."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "tinyengine"
TEXTBOOK = "request memory scheduler batch qwen3 operators attention sampler stages engine".split()
FRONT_DESK = "params checks queue holding arrivals noise inputs outputs stream guard clock detokenizer trace".split()
LATER = "draft|guess|specul|numba|triton|graph|overlap|pending|urgency|policy|prefix_cach|ablat"


def text(name: str) -> str:
    return (ENGINE / f"{name}.py").read_text(encoding="utf-8")


def words_of_later(source: str) -> list[str]:
    """Names, comments and strings that speak of what comes later; the field `guesses` of a request may be read."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = []
    for token in tokens:
        if token.type in (tokenize.NAME, tokenize.COMMENT, tokenize.STRING):
            said = re.sub(r"\bguesses\b", "", token.string)
            found += [f"line {token.start[0]}: {match}" for match in re.findall(LATER, said, re.IGNORECASE)]
    return found


def imported(source: str) -> set[str]:
    """The modules of tinyengine that are imported, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name.split(".")[1] for name in found if name.startswith("tinyengine.")}


def modules() -> set[str]:
    return {path.stem for path in ENGINE.glob("*.py")} | {path.parent.name for path in ENGINE.glob("*/__init__.py")}


@pytest.mark.parametrize("name", TEXTBOOK)
def test_it_names_nothing_that_comes_later(name):
    assert words_of_later(text(name)) == []


def test_the_reader_of_words_sees_names_comments_and_docstrings():
    source = '"""Of drafts."""\nclass Graph:\n    guesses = 0  # see the policy\n    def f(self, n_guesses): pass\n'
    assert [found.split()[-1] for found in words_of_later(source)] == ["draft", "Graph", "policy", "guess"]


@pytest.mark.parametrize("name", TEXTBOOK)
def test_it_imports_itself_and_the_front_desk(name):
    known = imported(text(name)) & modules()
    further = {"stages": {"extras", "invariant"}}.get(name, set())  # the table of the course, and its last row
    assert known <= {*TEXTBOOK, *FRONT_DESK, *further}, known


def test_it_fits_into_1300_lines():
    lines = {name: len(text(name).splitlines()) for name in TEXTBOOK}
    assert sum(lines.values()) <= 1300, lines


@pytest.mark.parametrize("name", TEXTBOOK)
def test_no_function_has_more_than_40_lines(name):
    functions = [node for node in ast.walk(ast.parse(text(name))) if isinstance(node, ast.FunctionDef)]
    long = {node.name: node.end_lineno - node.lineno + 1 for node in functions}
    assert not {function: lines for function, lines in long.items() if lines > 40}


def body(name: str, function: str) -> list[ast.stmt]:
    """The statements of Class.function, without its docstring."""
    kind, method = function.split(".")
    tree = ast.parse(text(name))
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    found = next(node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == method)
    return found.body[1:]


def test_a_step_is_eleven_statements_with_one_branch():
    statements = body("engine", "Engine.step")
    lines = statements[-1].end_lineno - statements[0].lineno + 1
    branches = [node for node in ast.walk(ast.Module(statements, [])) if isinstance(node, ast.If | ast.For | ast.While)]
    assert lines == 11 and len(branches) == 1
    commit = body("scheduler", "Scheduler.commit")
    assert commit[-1].end_lineno - commit[0].lineno + 1 <= 15


def test_kernels_and_their_compilers_stay_in_one_room():
    """But for the exercise in which a learner writes a kernel."""
    for path in ENGINE.rglob("*.py"):
        roots = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                roots |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                roots.add(node.module.split(".")[0])
        if path.relative_to(ENGINE).parts[0] != "fast" and path != ENGINE / "course" / "tiles.py":
            assert not roots & {"numba", "llvmlite", "triton"}, path
