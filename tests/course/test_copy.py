"""The graded copy: what the learner moved, pasted, changed or lost is put right without touching their file."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from tinyengine.course.builder import build
from tinyengine.course.checks import MIME
from tinyengine.course.grader import answer_state, grade, graded_copy, judge, manifest

OK = {"name": "n", "points": 2, "max_points": 2, "state": "ok", "message": ""}


@pytest.fixture
def entry(course):
    return manifest(course.root)["02_orca"]


def cell(nb, cell_id):
    return next(c for c in nb.cells if c.id == cell_id)


def ids(nb):
    return [c.id for c in nb.cells]


def test_an_untouched_copy_is_intact(course, entry):
    graded, found = graded_copy(course.exercise(), entry)
    assert ids(graded) == entry["cells"]
    assert found == {"setup-1": "intact", "2.1": "intact", "2.2": "intact"}


def test_cells_that_are_gone_come_back_where_they_were(course, entry):
    nb = course.exercise()
    nb.cells = [c for c in nb.cells if c.id not in ("setup-1", "check-2-1", "check-2-2")]
    graded, found = graded_copy(nb, entry)
    assert ids(graded) == entry["cells"]
    assert set(found.values()) == {"deleted"}


def test_a_check_that_was_moved_before_its_answer_goes_after_it(course, entry):
    nb = course.exercise()
    nb.cells.insert(0, nb.cells.pop(ids(nb).index("check-2-1")))
    graded, found = graded_copy(nb, entry)
    assert ids(graded).index("check-2-1") == ids(graded).index("answer-2-1") + 1
    assert found["2.1"] == "intact"


def test_edited_turned_into_text_and_older(course, entry):
    nb = course.exercise()
    cell(nb, "setup-1").source = "import cmath"
    cell(nb, "check-2-1").cell_type = "markdown"
    solution = nbformat.read(course.solution, as_version=4)
    solution.cells[5].source += "\n    # a better remark"
    nbformat.write(solution, course.solution)
    build(course.root)
    entry = manifest(course.root)["02_orca"]
    graded, found = graded_copy(nb, entry)
    assert found == {"setup-1": "edited", "2.1": "edited", "2.2": "older"}
    assert cell(graded, "check-2-1").cell_type == "code"
    assert cell(graded, "check-2-2").source.endswith("# a better remark")


def test_tags_and_outputs_do_not_reach_nbval_and_ids_become_unique(course, entry):
    nb = course.exercise()
    nb.cells.append(new_code_cell("1", id="answer-2-1", metadata={"tags": ["nbval-skip"]}))
    nb.cells[2].execution_count = 3
    nb.cells[2].outputs = [nbformat.v4.new_output("stream", text="x")]
    graded, _ = graded_copy(nb, entry)
    assert len(set(ids(graded))) == len(graded.cells)
    assert all("tags" not in c.metadata and not c.get("outputs") for c in graded.cells)
    assert nb.cells[2].outputs and nb.cells[-1].metadata.tags  # the learner's notebook is another object


@pytest.mark.parametrize(
    "change, state",
    [
        (lambda c: None, "unchanged"),
        (lambda c: c.update(source=""), "deleted"),
        (lambda c: c.update(source="# later\n\n"), "deleted"),
        (lambda c: c.update(cell_type="markdown"), "deleted"),
        (lambda c: c.update(source="x = 1"), "ok"),
        (lambda c: c.update(id="pasted", source="x = 1"), "ok"),
        (lambda c: c.update(id="pasted", metadata={}), "deleted"),
        (lambda c: c.update(id="pasted", metadata={"exercise": "mine"}), "deleted"),
    ],
)
def test_the_state_of_an_answer(course, entry, change, state):
    nb = course.exercise()
    change(cell(nb, "answer-2-1"))
    assert answer_state(entry["exercises"][0]["answers"][0], nb, {})["state"] == state


def verdict(course, entry, source, reports, **outcome):
    nb = course.exercise()
    if source is not None:
        cell(nb, "answer-2-1").source = source
    else:
        nb.cells.remove(cell(nb, "answer-2-1"))
    outcomes = {"check-2-1": {"state": "ok", "reports": reports, "limit": 60, **outcome}}
    return judge(entry["exercises"][0], nb, outcomes, "intact")


def test_an_answer_found_in_another_cell_counts_only_when_all_of_it_holds(course, entry):
    report = {"exercise": "2.1", "lines": [OK]}
    assert verdict(course, entry, None, [report])["status"] == "passed"
    half = {"exercise": "2.1", "lines": [{**OK, "points": 1}]}
    assert (verdict(course, entry, None, [half])["status"], verdict(course, entry, None, [half])["points"]) == (
        "answer deleted",
        0,
    )


def test_a_check_that_accepts_the_stub_gives_nothing(course, entry):
    stub = entry["exercises"][0]["answers"][0]["stub"]
    got = verdict(course, entry, stub, [{"exercise": "2.1", "lines": [OK]}])
    assert (got["status"], got["points"]) == ("not attempted", 0)


def test_an_answer_beside_its_stub_counts_and_one_below_its_check_is_told(course, entry):
    """The stub is left, and the answer stands in a cell of its own."""
    stub = entry["exercises"][0]["answers"][0]["stub"]
    open_line = {**OK, "points": 0, "state": "not attempted", "message": "n: not written yet."}
    wrong = {**OK, "points": 0, "state": "wrong", "message": "n: you have 9."}

    def with_own_cell(line, source="def double_1(x):\n    return 2 * x"):
        nb = course.exercise()
        nb.cells.append(new_code_cell(source))
        state = "ok" if line is OK else "error"
        reports = [{"exercise": "2.1", "lines": [line]}]
        got = judge(entry["exercises"][0], nb, {"check-2-1": {"state": state, "reports": reports}}, "intact")
        return got["status"], got["points"], got["messages"]

    assert with_own_cell(OK) == ("passed", 2, [])
    assert with_own_cell(wrong) == ("failed", 0, ["n: you have 9."])
    moved = "the answer cell still is the stub, and another cell defines double_1: move it into the answer cell"
    assert with_own_cell(open_line) == ("not attempted", 0, [moved])
    assert (
        with_own_cell(open_line, "x = 1")
        == with_own_cell(OK, stub.replace("double_1", "other"))
        == ("not attempted", 0, [])
    )


def test_a_seed_is_told_with_the_call_that_draws_the_same_again(course, entry):
    wrong = {**OK, "points": 0, "state": "wrong", "message": "n: you have 9."}
    entry["exercises"][0]["check"]["source"] = "from tinyengine.course.referees import orca\n\norca.check_2_1(double_1)"
    messages = verdict(course, entry, "x = 1", [{"exercise": "2.1", "lines": [wrong], "seed": 7}], state="error")[
        "messages"
    ]
    assert messages[1] == "the inputs were drawn from seed 7: `orca.check_2_1(double_1, seed=7)` draws them again"
    assert verdict(course, entry, "x = 1", [{"exercise": "2.1", "lines": [OK], "seed": 7}])["messages"] == []


@pytest.mark.parametrize(
    "reports", [[], [{"exercise": "2.2", "lines": [OK]}], [{"exercise": "2.1", "lines": [OK]}] * 2]
)
def test_no_report_a_foreign_one_and_two_are_not_believed(course, entry, reports):
    got = verdict(course, entry, "x = 1", reports)
    assert (got["status"], got["points"]) == ("error", 0) and got["messages"]


def test_a_full_report_of_a_cell_that_failed_is_not_believed(course, entry):
    got = verdict(course, entry, "x = 1", [{"exercise": "2.1", "lines": [OK]}], state="timeout")
    assert (got["status"], got["points"]) == ("timeout", 0)


def test_messages_hold_no_control_characters(course, entry):
    line = {**OK, "points": 0, "state": "wrong", "message": "n: you have \x1b[31m\udc80\nred."}
    (message,) = verdict(course, entry, "x = 1", [{"exercise": "2.1", "lines": [line]}], state="error")["messages"]
    assert message == "n: you have ?[31m? red."
    json.dumps(message).encode()


def test_a_file_beside_the_notebook_can_be_imported_and_an_old_editor_writes_no_ids(course):
    (course.root / "work" / "helper_beside.py").write_text("def double(x):\n    return 2 * x\n")
    nb = course.exercise()
    cell(nb, "answer-2-1").source = "from helper_beside import double as double_1"
    cell(nb, "answer-2-2").source = (
        "from IPython.display import publish_display_data\ndef double_2(x):\n"
        f"    publish_display_data({{{MIME!r}: 'nonsense'}})\n    return 2 * x"
    )
    cell(nb, "setup-1").source = "1 / 0"
    cell(nb, "answer-2-2").id = "pasted"
    raw = json.loads(nbformat.writes(nb))
    for c in raw["cells"]:
        del c["id"]
        c["metadata"].pop("tags", None)
    raw["nbformat_minor"] = 4
    course.copy.write_text(json.dumps(raw))
    card = grade(course.copy, course.root)
    assert [e["status"] for e in card["exercises"]] == ["passed", "passed"], card
    assert "setup cell setup-1" in card["messages"][0]
