"""What the documents say is there, is there: links, files, commands, and the measured figures of the embedded model."""

import base64
import json
import re
from pathlib import Path

import nbformat
import pytest

from tinyengine.cli import build_parser
from tinyengine.model.evaluate import as_markdown

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path for folder in ("lessons", "solutions", "exercises") for path in (ROOT / folder).glob("*.ipynb"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *NOTEBOOKS]


def prose(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_exist(path):
    text = prose(path)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    # a learner's copy of exercises is in work/ once it was started
    missing = [link for link in links if not (path.parent / link.replace("../work/", "../exercises/")).exists()]
    named = re.findall(r"`((?:tinyengine|visualizers|tests|lessons)/[\w./]*\w)/?`", text)
    missing += [name for name in named if not (ROOT / name).exists() and "NN" not in name]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_commands_exist(path):
    known = next(action for action in build_parser()._actions if action.choices).choices
    named = re.findall(r"(?:`|^|/)tinyengine (\w+)", prose(path), flags=re.MULTILINE)
    assert set(named) <= set(known)


def test_the_readme_states_the_measured_figures_of_the_model():
    """They are generated (python -m tinyengine.model.evaluate --table), never typed."""
    report = json.loads((ROOT / "tinyengine/model/training.json").read_text())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.split("<!-- model -->")[1].split("<!-- /model -->")[0].strip() == as_markdown(report).strip()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_notebooks_show_a_picture_without_a_kernel(path):
    """No widget state (GitHub then renders nothing), no widget view alone, no error, and every cell of a lesson run."""
    notebook = nbformat.read(path, as_version=4)
    assert "widgets" not in notebook.metadata
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not any("widget-view" in mime for output in outputs for mime in output.get("data", {}))
    if path.parent.name != "exercises" and path.stem != "home":  # the map of the course is a table
        assert all(cell.execution_count for cell in code)
        assert any("image/png" in output.get("data", {}) for output in outputs)


def test_the_readme_shows_the_picture_of_the_lesson():
    """It is the one that lesson 02 stores, byte for byte: run anew, the lesson's is to be copied."""
    cells = nbformat.read(ROOT / "lessons/02_orca.ipynb", as_version=4).cells
    [cell] = [cell for cell in cells if cell.source == "compare(static=static, orca=orca)"]
    [picture] = [output.data["image/png"] for output in cell.outputs if "image/png" in output.data]
    assert (ROOT / "lessons/images/static_and_orca.png").read_bytes() == base64.b64decode(picture)


@pytest.mark.parametrize("name", json.loads((ROOT / "exercises/manifest.json").read_text()))
def test_a_lesson_lists_its_exercises_as_they_are(name):
    """By start(n), which reads the manifest: a list in its text would be a second one."""
    exercises = json.loads((ROOT / "exercises/manifest.json").read_text())[name]["exercises"]
    cells = nbformat.read(ROOT / f"lessons/{name}.ipynb", as_version=4).cells
    [started] = [cell for cell in cells if cell.source == f"start({int(name[:2])})"]
    listed = started.outputs[0].data["text/plain"].splitlines()[2:]
    assert [row.split(" | ")[0] for row in listed] == [f"{e['id']} {e['title']}" for e in exercises]
    text = prose(ROOT / f"lessons/{name}.ipynb")
    assert not [e["id"] for e in exercises if f"| {e['id']} {e['title']}" in text]
