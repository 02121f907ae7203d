"""The notebooks as files: run in order, short, and right about the names and links in their text."""

import ast
import builtins
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tinyengine import course
from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT
from tinyengine.course.notebooks import execute, read, untidy

LESSONS = sorted((ROOT / "lessons").glob("[0-9]*.ipynb"))
AUTHORED = [*sorted((ROOT / "lessons").glob("*.ipynb")), *sorted((ROOT / "solutions").glob("*.ipynb"))]
ALL = [*AUTHORED, *sorted((ROOT / "exercises").glob("*.ipynb"))]
TEXTBOOK = "request memory scheduler batch qwen3 operators attention sampler stages engine".split()
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
OTHER_ENGINES = re.compile(r"vllm|sglang|transformers|pytorch|numpy|tensorrt", re.IGNORECASE)

# The lesson that explains a word. Before it, a sentence may use the word only if it names that lesson.
EXPLAINED_IN = {
    r"iteration-level": 2,
    r"head-of-line": 2,
    r"external fragmentation": 2,
    r"selective batching": 3,
    r"cu_seqlens|seqused_k": 3,
    r"block.tables?": 4,
    r"slot_mapping": 4,
    r"paged|paging": 4,
    r"preempt\w*": 4,
    r"prefix cach\w*|cached prefix": 4,
    r"token budget": 5,
    r"chunked prefill": 5,
    r"speculative|speculation": 5,
    r"batch.invarian\w*": 6,
    r"goodput": 7,
    r"SLOs?": 7,
}


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.relative_to(ROOT).with_suffix("").as_posix())


def code(nb) -> list[str]:
    return [cell.source for cell in nb.cells if cell.cell_type == "code"]


def markdown(nb) -> list[str]:
    return [cell.source for cell in nb.cells if cell.cell_type == "markdown"]


def prose(text: str, folded: bool = True) -> str:
    """Markdown without its code blocks; folded: with what a reader unfolds."""
    return FENCE.sub("", text if folded else FOLDED.sub("", text))


def words(text: str) -> int:
    """As a reader counts: no addresses, no tags, no signs that stand alone."""
    bare = re.sub(r"<[^>\n]+>", " ", re.sub(r"\]\([^)]*\)", "] ", prose(text, folded=False)))
    return sum(bool(re.search(r"\w", word)) for word in re.split(r"[\s|]+", bare))


def sentences(text: str):
    """The sentences of markdown; a list item and a row of a table are sentences too."""
    bare = re.sub(r"</?(details|summary|br|p)\b[^>]*>", "\n\n", prose(text))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*|#]|\s*\d+\. )", bare):
        yield from re.split(r"(?<=[.!?])\s+(?=\W*[A-Z0-9])", " ".join(paragraph.split()))


def too_early(text: str, lesson: int):
    """Each word that a later lesson explains, where its sentence does not name a lesson as late."""
    for sentence in sentences(text):
        named = max((int(number) for number in re.findall(r"[Ll]essons? (\d\d)", sentence)), default=-1)
        for word, explained in EXPLAINED_IN.items():
            if explained > max(lesson, named) and (found := re.search(rf"\b({word})\b", sentence, re.IGNORECASE)):
                yield f"{found[0]!r} is explained in lesson {explained:02d}: {sentence}"


def definitions(source: str) -> dict[str, set[str]]:
    """The top-level functions and classes of a file, each with the names inside it."""
    return {
        node.name: names(node) for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def names(tree: ast.AST) -> set[str]:
    """Every name, attribute, argument, keyword and module in some code."""
    found = set()
    for node in ast.walk(tree):
        found |= {getattr(node, field) for field in ("id", "attr", "arg", "name") if hasattr(node, field)}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= set(node.module.split("."))
    return {part for name in found if name for part in name.split(".")}


def plain_python(source: str) -> str:
    """A cell without the lines that only IPython understands."""
    return re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def package() -> dict[str, dict[str, set[str]]]:
    """For each module of the package and of the pictures: its definitions."""
    files = [*(ROOT / "tinyengine").rglob("*.py"), *(ROOT / "visualizers").rglob("*.py")]
    return {file.relative_to(ROOT).as_posix(): definitions(file.read_text(encoding="utf-8")) for file in files}


def unknown(text: str, nb, package) -> list[str]:
    """Names in backticks that look like names of the package, and are neither there nor in the notebook's code."""
    own = names(ast.parse("\n".join(map(plain_python, code(nb)))))
    everything = own.union(*(inside | {name} for file in package.values() for name, inside in file.items()))
    everything |= {part for path in package for part in re.split(r"[/.]", path)} | set(dir(builtins))
    classes = {name: inside for file in package.values() for name, inside in file.items() if name[0].isupper()}
    missing = []
    for found in re.finditer(r"`([A-Za-z_][\w.]*)(\(\))?`", text):
        name, parts = found[1], found[1].split(".")
        if name.endswith((".py", ".md", ".ipynb")):
            known = any(Path(path).name == name for path in package) or list(ROOT.glob(f"*/{name}"))
        elif parts[0] in ("tinyengine", "visualizers") and len(parts) > 1:
            modules = (f"{parts[0]}/{parts[1]}.py", f"{parts[0]}/{parts[1]}/")
            known = any(path.startswith(modules) for path in package) or hasattr(sys.modules.get(parts[0]), parts[1])
        elif parts[0] in classes and len(parts) > 1:
            known = parts[1] in reached_from(parts[0], classes)
        elif len(parts) > 1 or found[2] or re.fullmatch(r"([A-Z][a-z0-9]+){2,}", name):
            known = set(parts) <= everything
        else:
            continue
        if not known:
            missing.append(found[0])
    return missing


def reached_from(name: str, classes: dict[str, set[str]]) -> set[str]:
    """The names in a class and in the classes that it names, its bases among them."""
    return classes[name].union(*(classes[other] for other in classes[name] if other in classes))


def checked_text(text: str) -> str:
    """Prose without folded parts and lines that are about other engines: their names are not ours."""
    ours = FOLDED.sub(lambda folded: "" if OTHER_ENGINES.search(folded[0]) else folded[0], prose(text))
    return "\n".join(line for line in ours.splitlines() if not OTHER_ENGINES.search(line))


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative addresses that lead nowhere; a copy in work/ is there once it was started."""
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:href|src)=[\"']([^\"']+)[\"']", prose(text))
    broken = []
    for target in filter(None, (one or other for one, other in targets)):
        if re.match(r"[a-z]+:|#", target):
            continue
        path = (folder / target.split("#")[0]).resolve()
        if path.parent == ROOT / "work":
            path = ROOT / "exercises" / path.name
        if not path.exists():
            broken.append(target)
    return broken


@each(AUTHORED)
def test_it_was_run_from_top_to_bottom_and_holds_no_widget(path):
    nb = read(path)
    assert untidy(nb) == ""
    counts = [cell.execution_count for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
    assert counts == list(range(1, len(counts) + 1))


@each(LESSONS)
def test_a_lesson_has_at_most_2000_words(path):
    counts = [words(text) for text in markdown(read(path))]
    assert sum(counts) <= 2000, f"{sum(counts)} words; the longest cell has {max(counts)}"


@each(ALL)
def test_code_fits_into_88_columns(path):
    long = [line for source in code(read(path)) for line in source.splitlines() if len(line) > 88]
    assert not long


@each(ALL)
def test_the_links_lead_somewhere(path):
    assert not [link for text in markdown(read(path)) for link in broken_links(text, path.parent)]


@each(LESSONS)
def test_the_names_in_the_text_exist(path, package):
    nb = read(path)
    assert not [name for text in markdown(nb) for name in unknown(checked_text(text), nb, package)]


@each(LESSONS)
def test_a_lesson_defines_nothing_that_the_package_has(path, package):
    taken = set(course.__all__).union(*(package[f"tinyengine/{room}.py"] for room in TEXTBOOK))
    taken |= {name for file in package.values() for name in file if name[0].isupper()}
    defined = definitions("\n".join(map(plain_python, code(read(path)))))
    assert not taken & set(defined)


@each(LESSONS)
def test_no_word_of_a_later_lesson_comes_before_it(path):
    lesson = int(path.stem[:2])
    assert not [words for text in markdown(read(path)) for words in too_early(text, lesson)]


def test_the_lessons_have_numbers_of_their_own():
    assert all(a.stem[:2] != b.stem[:2] for a, b in pairwise(LESSONS))


def test_words_are_counted_as_a_reader_does():
    counted = "## Two words\n\n[a link](https://a.b/c) - `code` |x|\n|---|\n <b>end</b>"
    assert words(counted) == 7
    assert words(f"```python\nno\n```\n{counted}<details>no no</details>") == 7


@pytest.mark.parametrize(
    "text, found",
    [
        ("The block table says it.", 1),
        ("Lesson 04 has a block table.", 0),
        ("Lesson 03 has a block table. Lesson 04 too.", 1),
        ("- lesson 04\n- a block table", 1),
        ("```\nblock table\n```", 0),
        ("unpaged SLOpes", 0),
    ],
)
def test_a_word_may_come_early_in_a_sentence_that_names_its_lesson(text, found):
    assert len(list(too_early(text, 2))) == found
    assert not list(too_early(text, 7))


@pytest.mark.parametrize(
    "text, missing",
    [
        ("`Slots.reserve` `Slots.n_rsrv` `Orca.schedule` `Orca.waiting` `scheduler.py` `CarelessSlots` `len()`", 0),
        ("`Slots.schedules`", 1),
        ("`BlockTables`", 1),
        ("`tinyengine.schedulers`", 1),
        ("`tinyengine.load_model` `tinyengine.fast.loops` `tinyengine.scheduler.Orca`", 0),
        ("`reserves()`", 1),
        ("`planners.py`", 1),
        ("`INITIATION` `Select` `n_tokens + 1`", 0),
        ("vLLM calls it `BlockPool`", 0),
        ("<details><summary>Elsewhere</summary>\n\n|vLLM|\n|`BlockPool`|\n</details>", 0),
    ],
)
def test_a_name_is_looked_for_in_the_package_and_in_the_notebook(package, text, missing):
    nb = new_notebook(cells=[new_code_cell("%time\nclass CarelessSlots: pass")])
    assert len(unknown(checked_text(text), nb, package)) == missing


def test_links_are_followed(tmp_path):
    lessons = ROOT / "lessons"
    assert broken_links("[a](../README.md#the-course) [b](https://x.y) <img src='nowhere.png'>", lessons) == [
        "nowhere.png"
    ]
    assert broken_links("[a](../work/02_orca.ipynb) [b](../work/77_none.ipynb)", lessons) == ["../work/77_none.ipynb"]


def test_an_exercise_that_is_not_written_yet_is_one_line_in_a_notebook_and_other_errors_keep_their_traceback(tmp_path):
    stub = 'import tinyengine.course\n\ndef f():\n    raise NotImplementedError("2.1: admit requests")\n\nf()'
    other = 'def g():\n    raise NotImplementedError("later")\n\ng()'
    cells = [new_code_cell(source, metadata={"tags": ["raises-exception"]}) for source in (stub, other)]
    nb = new_notebook(cells=cells)
    execute(nb, tmp_path)
    unwritten, kept = (next(out for out in cell.outputs if out.output_type == "error") for cell in nb.cells)
    assert unwritten.traceback == ["Exercise 2.1 is not written yet: admit requests."]
    assert unwritten.ename == kept.ename == "NotImplementedError"  # the grader goes by the name
    assert len(kept.traceback) > 3
