"""show_source and show_diff show the code itself, the same on every machine."""

import re

import pytest

from tinyengine.course import lesson, show_diff, show_source, source


def test_a_class_a_method_and_a_function_under_the_name_of_their_file(capsys):
    show_source(lesson.Prediction, lesson.Prediction.score, lesson.quiz)
    shown = capsys.readouterr().out
    assert "# tinyengine/course/lesson.py: Prediction\nclass Prediction:" in shown
    assert "# tinyengine/course/lesson.py: Prediction.score\ndef score(self, measured" in shown
    assert "# tinyengine/course/lesson.py: quiz\ndef quiz(" in shown
    assert "/root" not in shown and str(source.__file__) not in shown


def test_code_that_answers_an_exercise_can_be_folded(monkeypatch):
    forms = {}
    monkeypatch.setattr(source, "publish", lambda plain, **more: forms.update(more, plain=plain))
    show_source(lesson.goal, fold="open after 1 & 2")
    shown = forms["text/html"]
    assert shown.startswith("<details><summary>open after 1 &amp; 2</summary>") and shown.endswith("</details>")
    assert forms["plain"].startswith("# tinyengine/course/lesson.py: goal\ndef goal(")


def test_a_property_and_a_package():
    from tinyengine.course.checks import check

    assert source.caption(check._failed) == "tinyengine/course/checks.py: check._failed"
    assert source.source_of(check._failed).startswith("@property\ndef _failed")
    assert source.file_of("tinyengine.course") == "tinyengine/course/__init__.py"
    assert source.file_of("__main__") == "this notebook"
    assert source.file_of(f"{source.KEPT}MyOrca") == "work/engine/MyOrca.py"


def test_what_has_no_source_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="no Python source: give it a class"):
        show_source(len)


class Sample:
    """Names trace in its text only."""

    @property
    def trace(self):
        return 1

    def work(self, trace, items):
        """Work, and trace it."""
        total = 0
        # what follows is
        # for the picture
        trace.append(1)
        with trace:
            total += 1
            trace.append(2)
        for item in items:
            if item.guesses:
                total -= 1
            else:
                total += trace.cost(item)
        return total


def test_statements_that_mention_a_name_are_left_out_and_the_caption_says_so(capsys):
    show_source(Sample, without=("guesses", "trace"))
    assert capsys.readouterr().out.splitlines() == [
        "# tests/course/test_source.py: Sample, without: guesses, trace",
        "class Sample:",
        '    """Names trace in its text only."""',
        "",
        "    ...",
        "",
        "    def work(self, trace, items):",
        '        """Work, and trace it."""',
        "        total = 0",
        "        ...",
        "        for item in items:",
        "            ...",
        "        return total",
    ]


def test_of_a_statement_that_holds_others_only_the_head_counts(capsys):
    def outer(items):
        for item in items:
            if item:
                trace = item
            elif trace:
                return trace
        return outer

    show_source(outer, without="trace")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "def outer(items):",
        "    for item in items:",
        "        if item:",
        "            ...",
        "        ...",
        "    return outer",
    ]


def test_a_name_that_no_statement_mentions_is_refused():
    with pytest.raises(ValueError, match="without='tracks', which no statement mentions"):
        show_source(Sample, lesson.quiz, without=("trace", "tracks"))


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


def test_a_diff_without_docs_is_of_the_code(capsys):
    def old(x):
        """One."""
        return x

    def new(x):
        """Another,
        of two lines."""
        return x + 1

    show_diff(old, new, context=0, docs=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "-def old(x):", "-    return x", "+def new(x):", "+    return x + 1",
    ]  # fmt: skip


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


def test_a_notebook_shows_code_that_scrolls_and_is_coloured_without_a_style_sheet(monkeypatch):
    shown = []
    monkeypatch.setattr(source, "publish", lambda plain, **rich: shown.append(rich["text/html"]))
    show_source(lesson.inline)
    assert "tinyengine/course/lesson.py: inline</code>" in shown[0]
    assert "white-space: pre; overflow-x: auto" in shown[0] and "<style" not in shown[0] and "class=" not in shown[0]
    assert 'font-weight: bold">def</span>' in shown[0] and "&lt;code&gt;" in shown[0]


def test_a_diff_is_red_and_green_line_by_line(monkeypatch):
    def old(x):
        return x < 1

    def new(x):
        return x < 2

    shown = []
    monkeypatch.setattr(source, "publish", lambda plain, **rich: shown.append(rich["text/html"]))
    show_diff(old, new)
    lines = re.findall(r'<span style="(display: block[^"]*)">(.*?)\n</span>', shown[0])
    assert [text for _, text in lines] == [
        "-def old(x):",
        "-    return x &lt; 1",
        "+def new(x):",
        "+    return x &lt; 2",
    ]
    assert [style.split("rgba(")[1][:3] for style, _ in lines] == ["248", "248", "46,", "46,"]


def test_the_colours_can_be_read_on_white_and_on_black():
    """Contrast as WCAG counts it; on both at once there is no more than 4.4."""

    def luminance(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (x / 12.92 if x <= 0.04 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for style in source.CODE.values():
        own = luminance(style.split()[-1]) + 0.05
        assert 1.05 / own > 4 and own / (luminance("#111111") + 0.05) > 4, style
