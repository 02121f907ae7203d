"""show_source and show_diff show the code itself, the same on every machine."""

import pytest

from tinyengine.course import lesson, show_diff, show_source, source


def test_a_class_a_method_and_a_function_under_the_name_of_their_file(capsys):
    show_source(lesson.Prediction, lesson.Prediction.score, lesson.quiz)
    shown = capsys.readouterr().out
    assert "# tinyengine/course/lesson.py: Prediction\nclass Prediction:" in shown
    assert "# tinyengine/course/lesson.py: Prediction.score\ndef score(self, measured" in shown
    assert "# tinyengine/course/lesson.py: quiz\ndef quiz(" in shown
    assert "/root" not in shown and str(source.__file__) not in shown


def test_a_property_and_a_package():
    from tinyengine.course.checks import check

    assert source.caption(check._failed) == "tinyengine/course/checks.py: check._failed"
    assert source.source_of(check._failed).startswith("@property\ndef _failed")
    assert source.file_of("tinyengine.course") == "tinyengine/course/__init__.py"
    assert source.file_of("__main__") == "this notebook"


def test_what_has_no_source_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="no Python source: give it a class"):
        show_source(len)


def test_the_diff_shows_changed_lines_with_little_context(capsys):
    def old(x):
        a = 1
        b = 2
        c = 3
        d = 4
        return a + b + c + d

    def new(x):
        a = 1
        b = 20
        c = 3
        d = 4
        return a + b + c + d + x

    show_diff(old, new)
    lines = capsys.readouterr().out.splitlines()
    assert "-    b = 2" in lines and "+    b = 20" in lines and "  ..." not in lines[1]
    assert not any(line.startswith(("@@", "---", "+++")) for line in lines)


def test_two_places_are_separated_and_no_difference_is_said(capsys):
    def a(x):
        first = 1
        second = 2
        third = 3
        fourth = 4
        return first, second, third, fourth

    def b(x):
        first = 10
        second = 2
        third = 3
        fourth = 4
        return fourth, third, second, first

    assert source.diff_lines(source.source_of(a), source.source_of(b), 0) == [
        "-def a(x):",
        "-    first = 1",
        "+def b(x):",
        "+    first = 10",
        "  ...",
        "-    return first, second, third, fourth",
        "+    return fourth, third, second, first",
    ]
    show_diff(a, a)
    assert "no difference" in capsys.readouterr().out


def test_a_fence_is_longer_than_the_backticks_inside():
    assert source.fence("python", "x = '```'").startswith("````python\n")
