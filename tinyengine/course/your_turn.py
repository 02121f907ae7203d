"""The marked lines of a lesson, and the answers that stand folded below them.

In a code cell one line ends in the comment `# your turn: what to do`. It runs as it stands. A markdown cell behind it
holds, between `<details><summary>Answer</summary>` and `</details>`, a python fence with the lines that replace it.
"""

import re
from copy import deepcopy

from tinyengine.course.notebooks import CourseError

MARK = re.compile(r"^([ \t]*).*# your turn\b.*$", re.MULTILINE)
ANSWER = re.compile(r"<details>\s*<summary>\s*Answer\s*</summary>(.*?)</details>", re.DOTALL)
FENCE = re.compile(r"^```python\n(.*?)^```\s*$", re.DOTALL | re.MULTILINE)


def answered(nb):
    """A copy of a lesson with the answers in place of the marked lines; CourseError where the two do not pair up."""
    nb, waiting = deepcopy(nb), None
    for index, cell in enumerate(nb.cells):
        if cell.cell_type == "code":
            for mark in MARK.finditer(cell.source):
                if waiting:
                    raise CourseError(
                        f"{place(*waiting)} has no answer before the next mark, in cell {index}: add one."
                    )
                waiting = index, mark
        elif cell.cell_type == "markdown":
            for answer in ANSWER.finditer(cell.source):
                if not waiting:
                    raise CourseError(
                        f"the answer in cell {index} has no line marked `# your turn` before it: mark it."
                    )
                put(nb, *waiting, answer_lines(answer[1], index, waiting[1][1]))
                waiting = None
    if waiting:
        raise CourseError(f"{place(*waiting)} has no answer behind it: add a folded one.")
    return nb


def place(index: int, mark: re.Match) -> str:
    return f"the line {mark[0].strip()[:60]!r} in cell {index}"


def answer_lines(folded: str, index: int, indent: str) -> str:
    """The code in a folded answer, which is to begin where the marked line begins."""
    fences = FENCE.findall(folded)
    if len(fences) != 1 or not fences[0].strip():
        raise CourseError(f"the answer in cell {index} has {len(fences)} python fences with code: give it exactly one.")
    lines = fences[0].rstrip()
    if re.match(r"[ \t]*", lines)[0] != indent:
        raise CourseError(
            f"the answer in cell {index} does not begin with the {len(indent)} spaces of its marked line."
        )
    return lines


def put(nb, index: int, mark: re.Match, lines: str) -> None:
    source = nb.cells[index].source
    nb.cells[index].source = source[: mark.start()] + lines + source[mark.end() :]
