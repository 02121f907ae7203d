"""solutions -> exercises and manifest: what is left out, what is locked, and that it is the same every time."""

import json

import nbformat
import pytest
from helpers.course import solution
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tinyengine.course.builder import build, derive, mistakes, run_authored, stale, stub
from tinyengine.course.grader import manifest
from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT
from tinyengine.course.notebooks import WIDGET, CourseError, execute, read, strip_widgets, untidy


def cell(nb, cell_id):
    return next(c for c in nb.cells if c.id == cell_id)


def test_a_stub_keeps_what_stands_around_the_region():
    source = (
        'class Mine:\n    def f(self):\n        """Doc."""\n        ### BEGIN SOLUTION: admit "now"\n'
        "        # a remark\n        a = 1\n\n        return a\n        ### END SOLUTION\n\n    other = 2"
    )
    assert stub(source, "2.1") == (
        'class Mine:\n    def f(self):\n        """Doc."""\n        # Your code here: about 2 lines.\n'
        '        raise NotImplementedError("2.1: admit \\"now\\"")\n\n    other = 2',
        2,
    )


def test_a_region_may_be_replaced_by_a_line_to_mend():
    source = "def f():\n    ### BEGIN SOLUTION instead: a = 2\n    a = 1\n    ### END SOLUTION\n    return a"
    assert stub(source, "2.1") == ("def f():\n    a = 2\n    return a", 1)


@pytest.mark.parametrize(
    "source, words",
    [
        ("### BEGIN SOLUTION\nx = 1", "without END SOLUTION"),
        ("x = 1\n### END SOLUTION", "out of turn"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "out of turn"),
        ("x = 1  ### BEGIN SOLUTION\n### END SOLUTION", "out of turn"),
    ],
)
def test_wrong_markers_are_refused(source, words):
    with pytest.raises(CourseError, match=words):
        stub(source, "2.1")


def test_the_exercise_has_no_solution_and_locked_checks(course):
    nb = course.exercise()
    text = nbformat.writes(nb)
    assert "SOLUTION" not in text and "return 2 * x" not in text
    assert 'raise NotImplementedError("2.1: return twice x (double_1)")' in cell(nb, "answer-2-1").source
    for cell_id in ("check-2-1", "check-2-2", "setup-1"):
        meta = cell(nb, cell_id).metadata
        assert meta.editable is False and meta.deletable is False
    assert cell(nb, "check-2-1").metadata.exercise.points == 2
    assert "editable" not in cell(nb, "answer-2-1").metadata
    assert all(not c.outputs and c.execution_count is None for c in nb.cells if c.cell_type == "code")


def test_run_all_goes_on_past_a_stub(course):
    """JupyterLab does so for a cell with this tag; a locked setup cell that fails is to stop it."""
    tags = {c.id: c.metadata.get("tags", []) for c in course.exercise().cells}
    assert tags["markdown-00"] == [] and tags["setup-1"] == ["setup"]
    assert tags["answer-2-1"] == ["raises-exception"] and tags["check-2-1"] == ["check", "raises-exception"]


def refereed(source="from tinyengine.course.referees import orca\n\norca.check_2_1(static_waste)"):
    answer = "def static_waste(outputs, max_num_seqs):\n    ### BEGIN SOLUTION\n    return 0, 0\n    ### END SOLUTION"
    return [new_code_cell(answer), new_code_cell(source, metadata={"tags": ["check"], "exercise": {"title": "Waste"}})]


def test_a_check_may_be_a_referees(tmp_path):
    _, entry = derive(solution(*refereed()), "02_orca")
    exercise = entry["exercises"][0]
    assert (exercise["id"], exercise["points"], exercise["title"]) == ("2.1", 3, "Waste")


@pytest.mark.parametrize(
    "source, words",
    [
        ("from tinyengine.course.referees import orka\norka.check_2_1(static_waste)", "orka.check_2_1, which is not"),
        ("from tinyengine.course.referees import orca\norca.check_9(static_waste)", "orca.check_9, which is not there"),
        ("from tinyengine.course.referees import orca\norca.check_2_2(static_waste)\nx = 1", "needs one call like"),
        ("orca.check_2_1(static_waste)", "needs one call like"),
    ],
)
def test_a_check_that_is_no_referees_is_one_sentence(source, words):
    with pytest.raises(CourseError, match=words):
        derive(solution(*refereed(source)), "02_orca")


def test_the_manifest_says_what_the_grader_needs(course):
    entry = json.loads((course.root / "exercises" / "manifest.json").read_text())["02_orca"]
    assert entry["title"] == "Orca by hand"
    first = entry["exercises"][0]
    assert (first["id"], first["title"], first["points"], first["minutes"], first["lines"], first["timeout"]) == (
        "2.1",
        "Double",
        2,
        5,
        1,
        8,
    )
    assert first["check"]["cell"] == "check-2-1" and "double_1(3)" in first["check"]["source"]
    assert entry["cells"] == [c.id for c in course.exercise().cells]


def test_building_twice_writes_nothing_and_ids_of_the_author_do_not_matter(course):
    before = {p: p.read_bytes() for p in (course.root / "exercises").iterdir()}
    nb = read(course.solution)
    for index, c in enumerate(nb.cells):
        c["id"] = f"random-{index}"
        if c.cell_type == "code":
            c.execution_count = 4
            c.outputs = [new_output("stream", text="hello")]
    nbformat.write(nb, course.solution)
    assert build(course.root) == []
    assert before == {p: p.read_bytes() for p in (course.root / "exercises").iterdir()}


def test_check_names_every_stale_file(course):
    tidy_solution(course)
    assert stale(course.root) == []
    path = course.root / "exercises" / "02_orca.ipynb"
    path.write_text(path.read_text().replace("About x", "About y"))
    (course.root / "exercises" / "manifest.json").unlink()
    (course.root / "exercises" / "03_gone.ipynb").write_text("{}")
    sentences = stale(course.root)
    assert len(sentences) == 3
    assert sentences[0].startswith("exercises/02_orca.ipynb is not what its solution gives")
    assert sentences[1].startswith("exercises/manifest.json is missing")
    assert sentences[2].startswith("exercises/03_gone.ipynb has no solution notebook")
    build(course.root)
    assert stale(course.root) == sentences[2:]


def test_check_names_a_notebook_that_was_not_run(course):
    assert stale(course.root) == [
        "solutions/02_orca.ipynb was not run (cell 1 has no execution count): run `tinyengine build --run 02`."
    ]


def tidy_solution(course):
    nb = read(course.solution)
    for c in nb.cells:
        if c.cell_type == "code":
            c.execution_count = 1
    nbformat.write(nb, course.solution)


def test_solution_cells_are_left_out_and_several_answers_belong_to_the_next_check(course):
    nb = read(course.solution)
    nb.cells.insert(2, new_markdown_cell("The trick is ...", metadata={"tags": ["solution"]}))
    nb.cells.insert(2, new_code_cell("### BEGIN SOLUTION set k\nk = 1\n### END SOLUTION"))
    exercise, entry = derive(nb, "02_orca")
    assert "The trick" not in nbformat.writes(exercise)
    assert [a["cell"] for a in entry["exercises"][0]["answers"]] == ["answer-2-1", "answer-2-1b"]
    assert entry["exercises"][0]["lines"] == 2


def test_a_named_answer_cell_belongs_to_its_exercise(course):
    nb = read(course.solution)
    nb.cells.insert(
        2, new_code_cell("### BEGIN SOLUTION\nk = 1\n### END SOLUTION", metadata={"exercise": {"id": "2.2"}})
    )
    _, entry = derive(nb, "02_orca")
    assert [len(e["answers"]) for e in entry["exercises"]] == [1, 2]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda nb: nb.cells.pop(5), "no check cell follows"),
        (lambda nb: nb.cells.pop(2), "has a check and no answer cell"),
        (lambda nb: nb.cells[3].update(source=nb.cells[3].source.replace("2.1", "3.1")), "does not belong to 02_orca"),
        (lambda nb: nb.cells[3].update(source=nb.cells[3].source.replace("2.1", "2.2")), "has two check cells"),
        (lambda nb: nb.cells[3].update(source=nb.cells[3].source.replace("points=2", "points=n")), "plain values"),
        (lambda nb: nb.cells[3].update(source=nb.cells[3].source.replace("points=2", "points=0")), "1 or more"),
        (lambda nb: nb.cells[3].update(source=nb.cells[3].source.split("\n", 1)[1]), "relies on an import elsewhere"),
        (lambda nb: nb.cells[3].metadata.exercise.update(points=5), "leave it out of the metadata"),
        (lambda nb: nb.cells[0].update(source="### BEGIN SOLUTION"), "is no code cell"),
        (lambda nb: nb.cells[2].metadata.update(exercise={"id": "2.7"}), "which has no check cell"),
    ],
)
def test_authoring_mistakes_are_one_sentence(course, change, words):
    nb = read(course.solution)
    change(nb)
    nbformat.write(nb, course.solution)
    with pytest.raises(CourseError, match=words) as caught:
        build(course.root)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("solutions/02_orca.ipynb: ")


def test_widget_views_go_where_something_else_stands_beside_them(course):
    nb = read(course.solution)
    view = {WIDGET: {"model_id": "x"}}
    nb.cells[1].outputs = [
        new_output("display_data", data={**view, "image/png": "aGk=", "text/plain": "a timeline"}),
        new_output("display_data", data=dict(view)),
    ]
    nb.metadata["widgets"] = {}
    strip_widgets(nb)
    assert [set(o.data) for o in nb.cells[1].outputs] == [{"image/png", "text/plain"}, {WIDGET}]
    assert "widgets" not in nb.metadata


def test_run_stores_clean_outputs(course):
    nb = read(course.solution)
    nb.metadata.update(language_info={"name": "python", "version": "3.0"}, kernelspec={"name": "gone"})
    nb.cells.append(new_code_cell("from tinyengine.course import show_source, predict\nshow_source(predict)\n2 + 2"))
    nb.cells.append(new_code_cell("class Mine:\n    def f(self):\n        pass\n\nshow_source(Mine)"))
    nbformat.write(nb, course.solution)
    assert list(run_authored(course.root, "2")) == [(course.solution, "")]
    first = course.solution.read_bytes()
    nb = read(course.solution)
    assert [c.id for c in nb.cells] == [
        "markdown-00",
        "setup-1",
        "answer-2-1",
        "check-2-1",
        "answer-2-2",
        "check-2-2",
        "code-06",
        "code-07",
    ]
    assert nb.metadata.language_info == {"name": "python"} and nb.metadata.kernelspec.name == "python3"
    assert untidy(nb) == ""
    assert nb.cells[7].outputs[0].data["text/plain"].startswith("# this notebook: Mine\nclass Mine:\n    def f(self)")
    shown, four = nb.cells[6].outputs
    assert shown.data["text/html"].startswith("<div><code>tinyengine/course/lesson.py: predict</code></div>\n<pre ")
    assert four.data["text/plain"] == "4"
    assert set(nb.cells[3].outputs[0].data) == {"text/plain"}  # the private MIME type is for the grader only
    assert next(iter(run_authored(course.root, "2")))[1] == "" and course.solution.read_bytes() == first


def test_run_stores_nothing_when_a_cell_fails_and_a_failed_check_is_one_line(course):
    nb = read(course.solution)
    nb.cells[2].source = nb.cells[2].source.replace("2 * x", "x * x")
    nbformat.write(nb, course.solution)
    before = course.solution.read_bytes()
    ((_, trouble),) = run_authored(course.root, "02")
    assert trouble.startswith("a check does not give all points (2.1: 1 of 2 points wrong twice 3: you square it. ok ")
    assert course.solution.read_bytes() == before


def test_run_takes_a_path(course, monkeypatch):
    monkeypatch.chdir(course.root)
    assert list(run_authored(course.root, "solutions/02_orca.ipynb")) == [(course.solution, "")]
    with pytest.raises(CourseError, match=r"no lesson or solution exercises/02_orca.ipynb"):
        list(run_authored(course.root, "exercises/02_orca.ipynb"))


def test_an_unknown_number_is_refused(course):
    with pytest.raises(CourseError, match="no lesson or solution 9"):
        list(run_authored(course.root, "9"))


def test_the_page_of_mistakes_has_every_exercise_of_a_referee():
    """Of the course itself; that it is up to date, `build --check` says."""
    page = (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8")
    for entry in manifest(ROOT).values():
        for exercise in entry["exercises"]:
            assert f"\n## {exercise['id']} {exercise['title']}\n" in page
    assert "| static | you admit only when the batch is empty, and that is static batching |" in page


def test_a_course_without_referees_has_no_page_of_mistakes(course):
    assert not (course.root / "docs").exists() and mistakes(manifest(course.root)) == ""


def test_a_notebook_that_is_run_finds_an_empty_work_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYENGINE_WORK", str(tmp_path))
    (tmp_path / "mine.txt").touch()
    source = "from tinyengine.course.notebooks import work_folder\nprint(list(work_folder(None).iterdir()))"
    nb = new_notebook(cells=[new_code_cell(source)])
    execute(nb, tmp_path)
    assert nb.cells[0].outputs[0].text == "[]\n"
