"""The answers of a lesson take the places of its marked lines, and a lesson whose answers do not fit is refused."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tinyengine.course.notebooks import CourseError
from tinyengine.course.your_turn import answered

TOY = "def toy(batch):\n    joining = not batch  # your turn: who may join, and when?\n    return joining"
GOAL = "goal('joining', toy([1]), True)"


def answer(lines="    joining = True"):
    return f"Why?\n\n<details><summary>Answer</summary>\n\n```python\n{lines}\n```\n\nFor a reason.\n</details>"


def lesson(*sources):
    """Sources that begin with a capital or a tag are text."""
    kinds = [new_markdown_cell if source[0] in "W<" else new_code_cell for source in sources]
    return new_notebook(cells=[kind(source) for kind, source in zip(kinds, sources, strict=True)])


def test_the_answer_takes_the_place_of_the_marked_line():
    nb = lesson(TOY, GOAL, answer())
    assert answered(nb).cells[0].source == "def toy(batch):\n    joining = True\n    return joining"
    assert nb.cells[0].source == TOY and answered(nb).cells[1:] == nb.cells[1:]


def test_an_answer_may_have_several_lines_and_a_lesson_several_answers():
    more = "a = 1\nb = 2  # your turn: three\nc = a + b"
    nb = answered(lesson(TOY, GOAL, answer("    if batch:\n\n        pass\n    joining = True"), more, answer("b = 3")))
    assert "    if batch:\n\n        pass\n    joining = True\n    return" in nb.cells[0].source
    assert nb.cells[3].source == "a = 1\nb = 3\nc = a + b"


def test_other_folded_text_is_no_answer():
    hint = "<details><summary>Hint</summary>\n\n```python\nx\n```\n</details>"
    assert "joining = True" in answered(lesson(TOY, hint, answer())).cells[0].source


@pytest.mark.parametrize(
    "sources, words",
    [
        ([TOY, GOAL], "the line 'joining = not batch  # your turn: .* in cell 0 has no answer behind it"),
        ([TOY, TOY, answer()], "in cell 0 has no answer before the next mark, in cell 1"),
        ([f"{TOY}\n{TOY}", answer()], "in cell 0 has no answer before the next mark, in cell 0"),
        ([GOAL, answer()], "the answer in cell 1 has no line marked `# your turn` before it"),
        ([TOY, answer(), answer()], "the answer in cell 2 has no line marked"),
        ([TOY, answer("joining = True")], "does not begin with the 4 spaces of its marked line"),
        ([TOY, answer("")], "has 1 python fences with code|has 0 python fences"),
        ([TOY, "<details><summary>Answer</summary>Nothing.</details>"], "has 0 python fences with code"),
        ([TOY, answer("    a\n```\n\n```python\n    b")], "has 2 python fences"),
    ],
)
def test_marks_and_answers_pair_up(sources, words):
    with pytest.raises(CourseError, match=words):
        answered(lesson(*sources))
