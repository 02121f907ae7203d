"""`tinyengine grade`: a notebook in, a scorecard out. The learner's file is read and never written.

A scorecard is {"notebook", "points", "max_points", "messages", "exercises": [...]}; an exercise is {"id", "title",
"status", "points", "max_points", "messages", "check"}.

status
  passed          every line of the check holds
  partial         some points
  failed          the check ran, no points
  error           the code raised an exception, no points
  not attempted   the answer still is the stub, or the check met this exercise's own NotImplementedError
  timeout         the answer or its check ran into the time limit
  kernel died     the answer or its check ended the Python process
  answer deleted  the answer cell is gone, empty or no code cell any more (and its work is nowhere else either)
check
  intact | edited | deleted | older (the course has a newer one); whatever it says, the course's own check was run
"""

import json
import re
import subprocess
import sys
import tempfile
from copy import copy, deepcopy
from pathlib import Path

from tinyengine.course.builder import sha
from tinyengine.course.checks import PLACE
from tinyengine.course.display import UNWRITTEN
from tinyengine.course.keep import needed, statements_of
from tinyengine.course.notebooks import CourseError, environment, nbformat, read, short, text_of

SETUP_TIMEOUT = 60  # seconds for a setup cell, which imports torch
OTHER_TIMEOUT = 5  # seconds for a cell outside the exercises: it gives no points, so it may not take long


def grade(path: Path, root: Path, timeout: float | None = None) -> dict:
    """Grade one notebook against the manifest of the course in `root`; `timeout` replaces every cell's own limit."""
    path = Path(path).resolve()
    nb = read(path)
    for index, cell in enumerate(nb.cells):
        cell.setdefault("id", f"cell-{index}")  # a notebook saved by an old editor has no ids
    entry = entry_for(nb, path, root)
    graded, found = graded_copy(nb, entry)
    outcomes = {} if is_untouched(nb, entry) else run(what_counts(graded, entry), entry, path.parent, timeout)
    exercises = [judge(exercise, nb, outcomes, found[exercise["id"]]) for exercise in entry["exercises"]]
    passed = {exercise["id"] for exercise in exercises if exercise["status"] == "passed"}
    parts = [exercise for exercise in entry["exercises"] if exercise.get("part") and exercise["id"] in passed]
    return {
        "notebook": short(path, root),
        "points": sum(e["points"] for e in exercises),
        "max_points": sum(e["max_points"] for e in exercises),
        "messages": elsewhere(graded, entry, outcomes, found),
        "exercises": exercises,
        "parts": {exercise["part"]: part_source(exercise, graded) for exercise in parts},
    }


def part_source(exercise, graded) -> str:
    """A part of the learner's engine, as a module: what it needs of the cells above its check."""
    check = graded.cells.index(find(graded, exercise["check"]["cell"]))
    cells = [cell.source for cell in graded.cells[:check] if cell.cell_type == "code"]
    return f"# Exercise {exercise['id']}, kept when it had all points.\n\n{needed(exercise['part'], cells)}"


def manifest(root: Path) -> dict:
    path = root / "exercises" / "manifest.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CourseError(f"{path} is missing: run `tinyengine build` once.") from None
    except (ValueError, RecursionError) as error:
        raise CourseError(f"{path} is not JSON ({type(error).__name__}: {error}): run `tinyengine build`.") from None
    keys = {"title", "cells", "setup", "exercises"}
    if not isinstance(entries, dict) or not all(isinstance(e, dict) and keys <= set(e) for e in entries.values()):
        raise CourseError(f"{path} is no manifest of exercises: run `tinyengine build`.")
    return entries


def entry_for(nb, path: Path, root: Path) -> dict:
    """The manifest entry of a notebook: by the name that the builder stored in it, else by its file name."""
    entries = manifest(root)
    note = nb.metadata.get("tinyengine")
    stem = note.get("exercises") if isinstance(note, dict) else None
    stem = stem if isinstance(stem, str) else path.stem
    named = [name for name in entries if stem == name or stem.startswith(f"{name}-")]
    if not named:
        raise CourseError(
            f"{path.name} is no exercise notebook of this course (there are: "
            f"{', '.join(sorted(entries)) or 'none'}): give a number or a copy made by `tinyengine start`."
        )
    return entries[named[0]]


def graded_copy(nb, entry) -> tuple:
    """A copy to run: every check and setup cell is the course's own, outputs and tags are gone.

    Returns it with what the learner's file holds in place of each of these cells: {exercise or setup id: check state}.
    """
    graded = deepcopy(nb)
    for cell in graded.cells:
        cell.metadata.pop("tags", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    found = {setup["cell"]: restore(graded, setup, entry) for setup in entry["setup"]}
    found |= {exercise["id"]: restore(graded, exercise["check"], entry) for exercise in entry["exercises"]}
    for exercise in entry["exercises"]:
        for answer in exercise["answers"]:
            cell = find(graded, answer["cell"])
            if cell is not None:
                cell["id"] = answer["cell"]
        after_its_answer(graded, exercise)
    seen = set()
    for index, cell in enumerate(graded.cells):  # a copied cell keeps its id; outcomes need one cell per id
        if cell["id"] in seen:
            cell["id"] = f"{cell['id'][:50]}-copy-{index}"
        seen.add(cell["id"])
    return graded, found


def restore(graded, canonical, entry) -> str:
    """Put the course's own cell where the learner's file has it, or where it was; says what was found there."""
    cell_id, source = canonical["cell"], canonical["source"]
    cell = find(graded, cell_id)
    if cell is None:
        order = entry["cells"]
        later = set(order[order.index(cell_id) + 1 :])
        spot = next((i for i, cell in enumerate(graded.cells) if cell["id"] in later), len(graded.cells))
        graded.cells.insert(spot, nbformat.v4.new_code_cell(source, id=cell_id))
        return "deleted"
    is_code = cell.cell_type == "code"
    same = is_code and cell.source.rstrip() == source.rstrip()
    untouched = is_code and note_of(cell).get("source_sha") == sha(cell.source)
    cell.clear()
    cell.update(nbformat.v4.new_code_cell(source, id=cell_id))
    return "intact" if same else "older" if untouched else "edited"


def is_untouched(nb, entry) -> bool:
    """Every answer still is its stub, and no other cell could hold an answer of the learner's."""
    answers = [answer for exercise in entry["exercises"] for answer in exercise["answers"]]
    ours = {cell["cell"] for cell in (*entry["setup"], *answers, *(e["check"] for e in entry["exercises"]))}
    code = [cell for cell in nb.cells if cell.cell_type == "code" and has_code(cell.source)]
    others = [cell for cell in code if cell["id"] not in ours and not is_given(cell, entry)]
    return not others and all(answer_state(answer, nb, {})["state"] == "unchanged" for answer in answers)


def is_given(cell, entry) -> bool:
    """A cell of ours that the learner has left as it was."""
    return entry.get("given", {}).get(cell["id"]) == sha(cell.source)


def what_counts(graded, entry):
    """The copy without given cells that are as we wrote them and define nothing that a later cell uses, as pictures."""
    kept, used = [], set()
    for cell in reversed(graded.cells):
        if cell.cell_type != "code":
            continue
        statements = statements_of(cell.source)
        binds = set().union(*(statement.binds for statement in statements))
        if statements and is_given(cell, entry) and not binds & (used | {"*"}):
            continue
        used |= set().union(*(statement.uses for statement in statements)) or set(re.findall(r"\w+", cell.source))
        kept.append(cell)
    chosen = copy(graded)
    chosen.cells = kept[::-1]
    return chosen


def find(nb, cell_id: str):
    """A cell by its id; one that was cut and pasted has a new id, and keeps the builder's note."""
    by_id = (cell for cell in nb.cells if cell["id"] == cell_id)
    by_note = (cell for cell in nb.cells if note_of(cell).get("cell") == cell_id)
    return next(by_id, None) or next(by_note, None)


def note_of(cell) -> dict:
    """What the builder wrote into a cell's metadata, if the learner left it alone."""
    note = cell.metadata.get("exercise")
    return note if isinstance(note, dict) else {}


def after_its_answer(graded, exercise) -> None:
    """A check that stands before its answer (the learner moved a cell) goes right after it."""
    check = graded.cells.index(find(graded, exercise["check"]["cell"]))
    answers = [find(graded, answer["cell"]) for answer in exercise["answers"]]
    last = max((graded.cells.index(cell) for cell in answers if cell is not None), default=-1)
    if last > check:
        graded.cells.insert(last, graded.cells.pop(check))


def run(graded, entry, folder: Path, timeout: float | None) -> dict:
    """Run the copy under nbval and our plugin in a process of its own; returns what happened in each cell."""
    with tempfile.TemporaryDirectory(prefix="tinyengine-grade-") as temp:
        temp = Path(temp)
        timeouts = {
            cell["cell"]: timeout or exercise["timeout"]
            for exercise in entry["exercises"]
            for cell in (exercise["check"], *exercise["answers"])
        } | {setup["cell"]: timeout or SETUP_TIMEOUT for setup in entry["setup"]}
        job = {
            "cwd": str(folder),
            "results": str(temp / "results.json"),
            "timeouts": timeouts,
            "timeout": timeout or OTHER_TIMEOUT,
            "checks": [exercise["check"]["cell"] for exercise in entry["exercises"]],
            "modules": [line for s in entry["setup"] for line in re.findall(r"(?m)^import \w+$", s["source"])],
        }
        (temp / "job.json").write_text(json.dumps(job), encoding="utf-8")
        (temp / "graded.ipynb").write_text(text_of(graded), encoding="utf-8")
        (temp / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # no settings of the checkout or the learner
        options = (
            "-q -c pytest.ini --rootdir . --color no -p no:cacheprovider -p tinyengine.course.plugin -p nbval.plugin "
            "--nbval-lax --nbval-current-env --tinyengine-job job.json"
        )
        command = [sys.executable, "-m", "pytest", *options.split(), "graded.ipynb"]
        # One thread, unless the learner chose: small products gain nothing from more, and where the machine is busy,
        # threads that wait for each other run right answers into the time limit.
        env = {"OMP_NUM_THREADS": "1", **environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        env.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(command, cwd=temp, env=env, capture_output=True, text=True, errors="replace")
        try:
            outcomes = json.loads((temp / "results.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            outcomes = {}
        if not outcomes:  # there always is a check cell, so something must have run
            tail = " / ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
            raise CourseError(
                f"The grader itself failed (pytest exit code {done.returncode}: {tail[-500:]}): check that "
                "`pip install -e .` has been run in this environment."
            )
        return outcomes


def judge(exercise, nb, outcomes, check_state) -> dict:
    """An exercise's status, points and messages from what happened in its cells."""
    answers = [answer_state(answer, nb, outcomes) for answer in exercise["answers"]]
    outside = written_outside(exercise, nb)
    outcome = outcomes.get(exercise["check"]["cell"], {"state": "error", "reports": []})
    report = next((r for r in outcome["reports"] if r.get("exercise") == exercise["id"]), None)
    lines = report["lines"] if report and len(outcome["reports"]) == 1 else []
    points = min(sum(line["points"] for line in lines), exercise["points"])
    status = status_of(answers, outcome, lines, points, exercise["points"], outside)
    messages = reasons(exercise, status, answers, outcome, lines, outside)
    if status in ("partial", "failed") and report.get("seed") is not None:
        again = exercise["check"]["source"].strip().splitlines()[-1].replace(")", f", seed={report['seed']})")
        messages.append(f"the inputs were drawn from seed {report['seed']}: `{again}` draws them again")
    if check_state != "intact":
        messages.append(NOTES[check_state])
    return {
        "id": exercise["id"],
        "title": exercise["title"],
        "status": status,
        "points": points if status in ("passed", "partial") else 0,
        "max_points": exercise["points"],
        "messages": list(map(one_line, messages)),
        "check": check_state,
    }


def reasons(exercise, status, answers, outcome, lines, outside) -> list[str]:
    """Why an exercise has this status: what its check said, or what kept the check from saying it."""
    if status == "not attempted":
        stub = f"the answer cell still is the stub, and another cell defines {outside}: move it into the answer cell"
        return [stub] if outside else []
    if status == "answer deleted":
        fresh = f"`tinyengine start {exercise['id'].split('.')[0]} --fresh` gives a copy to take it from"
        return [f"the answer cell is gone, empty or no code cell any more: {fresh}"]
    messages = [line["message"] for line in lines if line["message"]]
    if status not in ("passed", "partial") and any(a["state"] not in ("ok", "unwritten", "unchanged") for a in answers):
        messages = []  # what the check missed follows from the answer that is not there
    if status == "timeout":
        where = "the answer cell" if any(a["state"] == "timeout" for a in answers) else "the check of your code"
        return [*messages, f"{where} did not end within {outcome['limit']:g} s: look for a loop that never ends"]
    if status == "kernel died":
        died = "your code ended the Python process (os._exit, exit() or too much memory)"
        return [*messages, f"{died}: later exercises were graded in a new one"]
    messages += [a["message"] for a in answers if a["message"]]
    if not lines and not messages:
        messages.append(misnamed(exercise, outcome.get("error")) or trouble("the check", outcome.get("error")))
    return messages


def misnamed(exercise, error) -> str:
    """A sentence where the check did not find the name of an answer, or nothing."""
    text = error["text"] if error and error["type"] == "NameError" else ""
    name = next((name for name in names_of(exercise) if text.startswith(f"name '{name}' is not defined")), "")
    return f"nothing is called {name}: the answer must have this name" if name else ""


def names_of(exercise) -> list[str]:
    """What the answers of an exercise are called."""
    stubs = "\n".join(answer["stub"] for answer in exercise["answers"])
    return re.findall(r"^(?:def|class) +(\w+)", stubs, re.MULTILINE)


NOTES = {
    "edited": "check cell edited: it was restored, and the course's own check was graded",
    "deleted": "check cell deleted: it was restored, and the course's own check was graded",
    "older": "the course has a newer check than your copy, and the newer one was graded",
}


def written_outside(exercise, nb) -> str:
    """The name that an answer must have and that a cell of the learner's own defines, or nothing."""
    places = {cell["cell"] for cell in (exercise["check"], *exercise["answers"])}
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    own = [cell.source for cell in cells if cell["id"] not in places and not note_of(cell)]
    names = names_of(exercise)
    return next((n for n in names for text in own if re.search(rf"^(def|class) +{n}\b", text, re.MULTILINE)), "")


def status_of(answers, outcome, lines, points, max_points, outside="") -> str:
    states = {a["state"] for a in answers}
    whole = bool(lines) and outcome["state"] == "ok" and points == max_points
    tried = outside and any(line["state"] in ("ok", "wrong") for line in lines)
    if states == {"unchanged"} and not tried:
        return "not attempted"
    if whole and all(line["state"] == "ok" for line in lines):
        return "passed"  # also when the learner moved the answer into another cell
    if "deleted" in states:
        return "answer deleted"
    for state, status in (("died", "kernel died"), ("timeout", "timeout")):
        if state in states or outcome["state"] == state:
            return status
    if points:
        return "partial"
    if "unwritten" in states or any(line["state"] == "not attempted" for line in lines):
        return "not attempted"
    if "error" in states or not lines or any(line["state"] == "error" for line in lines):
        return "error"
    return "failed"


def answer_state(answer, nb, outcomes) -> dict:
    """What became of one answer cell: unchanged, deleted, unwritten, timeout, died, error or ok."""
    cell = find(nb, answer["cell"])
    if cell is None or cell.cell_type != "code" or not has_code(cell.source):
        return {"state": "deleted", "message": ""}
    if cell.source.strip() == answer["stub"].strip():
        return {"state": "unchanged", "message": ""}
    outcome = outcomes.get(answer["cell"], {"state": "ok"})
    error = outcome.get("error")
    if meets_a_stub(error):
        return {"state": "unwritten", "message": ""}
    message = trouble("your answer cell", error, cell.source) if outcome["state"] == "error" else ""
    return {"state": outcome["state"], "message": message}


def meets_a_stub(error) -> bool:
    """True for the NotImplementedError of an exercise that is not written yet; input() raises a subclass of it."""
    return bool(error and error["type"] == "NotImplementedError" and UNWRITTEN.match(error["text"]))


def one_line(message: str) -> str:
    """A learner's error may hold control characters and broken Unicode, which no terminal, JSON or XML should get."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))


def has_code(source: str) -> bool:
    return any(line.strip() and not line.strip().startswith("#") for line in source.splitlines())


def trouble(place: str, error, source: str = "") -> str:
    """One sentence for an error that the kernel reported."""
    if not error:
        return f"{place} gave no result: run the cells above it in order"
    text = " ".join(PLACE.sub("", error["text"]).split())[:400]
    if error["type"] == "StdinNotImplementedError":
        return f"{place} calls input(), but no one answers while it is graded: pass the value instead"
    if error["type"] == "SystemExit":
        return f"{place} calls sys.exit(), which ends the program: remove it"
    line, lines = error["line"], source.splitlines()
    spot = f" at line {line}" if line else ""
    quoted = f" (`{lines[line - 1].strip()}`)" if line and 0 < line <= len(lines) else ""
    return f"{place} raises {error['type']}: {text}{spot}{quoted}"


def elsewhere(graded, entry, outcomes, found) -> list[str]:
    """Sentences about the cells outside the exercises: locked ones restored, others that hang, raise or kill."""
    ours = {cell["cell"] for e in entry["exercises"] for cell in (e["check"], *e["answers"])}
    messages = [
        f"setup cell {setup['cell']} {found[setup['cell']]}: it was restored"
        for setup in entry["setup"]
        if found[setup["cell"]] in ("edited", "deleted")
    ]
    for index, cell in enumerate(graded.cells):
        outcome = outcomes.get(cell["id"], {"state": "ok"})
        if cell["id"] in ours or outcome["state"] == "ok" or meets_a_stub(outcome.get("error")):
            continue
        place = f"cell {index} (`{cell.source.strip()[:60]}`)"
        messages.append(
            {
                "timeout": f"{place} did not end in time, and was left out",
                "died": f"{place} ended the Python process, and was left out",
                "error": trouble(place, outcome.get("error")),
            }[outcome["state"]]
        )
    return list(map(one_line, messages))
