"""The lines of a check: what passes, and the reason when it does not."""

import linecache
import signal
import sys
import time

import pytest
import torch

from tinyengine.course.checks import CheckFailed, Endless, arm, check, difference, ends, quote, same
from tinyengine.course.toy import toy_trace

torch_like = type("T", (), {"tolist": lambda self: [[1, 2], [3, 4]]})


def failing(capsys, lines, points=1):
    """Run the lines in a check that must fail; returns what it says. In a notebook it raises nothing."""
    with check("2.1", points) as c:
        lines(c)
    said = capsys.readouterr().out
    score = said.split(" points")[0].removeprefix("2.1: ")
    assert score.split(" of ")[0] < score.split(" of ")[1], said
    return said


def test_a_failing_check_raises_only_while_it_is_graded(capsys):
    with check("2.1", 1) as c:
        c.equal("n", 1, 2)
    arm("nonce")
    with pytest.raises(CheckFailed, match=r"^2\.1: 0 of 1 points; the reasons are above"), check("2.1", 1) as c:
        c.equal("n", 1, 2)
    with check("2.1", 1) as c:  # a nonce holds for one check
        c.equal("n", 1, 2)
    arm("nonce")
    with check("2.1", 1) as c:
        c.equal("n", 1, 1)


def test_all_lines_hold(capsys):
    with check("2.1", points=6) as c:
        assert c.run("it runs", lambda: 5) == 5
        assert c.equal("equal", lambda: (1, 2), [1, 2])
        assert c.close("close", [0.1 + 0.2], [0.3])
        assert c.true("true", True, "never")
        assert c.par("cost", 7, 7)
        assert c.raises("refuses", lambda: int("x"), ValueError, points=2, mentions=["'x'"])
    assert "2.1: 6 of 6 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    "got, want",
    [
        (7.0, 7),
        (7, 7.0),
        (True, True),
        ((1, (2,)), [1, [2]]),
        ({"a": (1,)}, {"a": [1]}),
        (torch_like(), [[1, 2], [3, 4]]),
        ("x", "x"),
        ({1}, {1}),
        (None, None),
    ],
)
def test_same(got, want):
    assert same(got, want)


class Yes:
    __eq__ = __ge__ = __le__ = __gt__ = __lt__ = lambda self, other: True
    __hash__ = None


@pytest.mark.parametrize(
    "got, want",
    [
        (7, 8),
        (Yes(), 7),
        (Yes(), [1]),
        (Yes(), "x"),
        ([Yes()], [1]),
        ("7", 7),
        (7, "7"),
        ([1, 2], [1, 2, 3]),
        ({"a": 1}, {"b": 1}),
        (None, 0),
        (float("nan"), 1.0),
        (Yes(), None),
        (2**53 + 1, float(2**53)),
        ([], {}),
        (b"x", "x"),
    ],
)
def test_not_same(got, want):
    assert not same(got, want)


@pytest.mark.parametrize(
    "got, want, reason",
    [
        (9, 7, "you have 9, which is too high"),
        (5, 7, "you have 5, which is too low"),
        ([1, 5, 3], [1, 2, 3], "it goes wrong first at index 1, where you have 5"),
        ([1, 2], [1, 2, 3], "it starts right, and with 2 items it is too short"),
        ({"a": 1}, {"a": 1, "b": 2}, "the key 'b' is missing"),
        ({"a": 1, "b": 2}, {"a": 1}, "the key 'b' does not belong there"),
        ({"a": 3}, {"a": 1}, "at key 'a': you have 3, which is too high"),
        ("cat", "car", "you have 'cat', which goes wrong at character 2"),
        ("7", 7, "you have '7', a str, where an int is needed"),
    ],
)
def test_a_difference_is_told_without_the_answer(got, want, reason):
    assert difference(got, want) == reason


def test_a_known_mistake_is_named(capsys):
    mistakes = [(9, "you wait for the whole batch"), lambda got: 1 / 0, lambda got: got > 20 and "you serve one by one"]
    assert "iterations: you wait for the whole batch." in failing(
        capsys, lambda c: c.equal("iterations", 9, 7, mistakes=mistakes)
    )
    assert "you serve one by one" in failing(capsys, lambda c: c.equal("iterations", 30, 7, mistakes=mistakes))
    assert "too high" in failing(capsys, lambda c: c.equal("iterations", 8, 7, mistakes=mistakes))


def test_par_gives_partial_credit_and_says_where(capsys):
    def lines(c):
        c.equal("outputs", [1], [1])
        c.par("idle slot-steps", 3, 0, where=lambda: "first at iteration 14")

    shown = failing(capsys, lines, points=2)
    assert "2.1: 1 of 2 points" in shown
    assert "valid, but 3 idle slot-steps; 0 are possible, first at iteration 14." in shown


def test_par_can_keep_the_number_to_itself(capsys):
    shown = failing(capsys, lambda c: c.par("requests", 4, 2, show=False))
    assert "valid, but 4 requests; fewer are possible." in shown and "2" not in shown.replace("2.1", "")


def test_what_waits_is_told_with_its_points(capsys):
    def lines(c):
        c.true("the rule", False, "it is broken")
        c.wait("the engine")

    assert "waits  the engine: not looked at, 1 point waits until the lines above hold." in failing(capsys, lines, 2)
    assert "not looked at, 3 points wait until" in failing(capsys, lines, 4)


def test_a_loop_without_end_is_stopped(capsys):
    names = {}
    exec(compile("def f(x):\n    while x:\n        pass\n    return 7", "<ipython-input-8>", "exec"), names)
    assert ends(names["f"], 0) == 7
    before = sys.gettrace()
    with pytest.raises(Endless, match="a loop never ends, or far too late: your code was stopped after 1,000 lines"):
        ends(names["f"], 1, lines=1000)
    assert sys.gettrace() is before
    shown = failing(capsys, lambda c: c.run("f", lambda: ends(names["f"], 1)))
    assert "stopped after 200,000 lines at line" in shown and "of your cell" in shown


def test_what_computes_or_waits_too_long_is_stopped():
    said = "your code was stopped after 1 s: look for a loop that never ends"
    for code in (lambda: [sum(range(10**6)) for _ in range(10**5)], lambda: time.sleep(60)):
        began = time.monotonic()
        with pytest.raises(Endless, match=said):
            ends(code, seconds=1)
        assert time.monotonic() - began < 20


def test_one_inside_of_another_gives_the_alarm_back():
    assert ends(lambda: ends(lambda: 7)) == 7
    with pytest.raises(Endless):
        ends(lambda: [ends(lambda: 7), time.sleep(60)], seconds=1)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_a_value_is_quoted_on_one_line_and_a_large_tensor_by_its_shape():
    large, small = torch.zeros(3, 9), torch.tensor([[1, 2], [3, 4]])
    assert quote(large) == "<Tensor of shape [3, 9]>"
    assert quote(small) == "tensor([[1, 2], [3, 4]])"
    assert quote((large, [small[0], 7])) == "(<Tensor of shape [3, 9]>, [tensor([1, 2]), 7])"
    assert quote("two\nlines") == "'two\\nlines'" and quote(torch.Tensor) == "<class 'torch.Tensor'>"
    assert len(quote(list(range(1000)))) == 403


def test_a_run_is_drawn_in_a_notebook_and_not_while_it_is_graded(monkeypatch):
    shown, trace = [], toy_trace([["A"], ["A", "B"]], slots=2)
    monkeypatch.setattr("tinyengine.course.checks.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr("tinyengine.course.checks.publish", lambda *_, **__: None)
    for nonce in ("", "nonce"):
        if nonce:
            arm(nonce)
        with check("2.1", 1) as c:
            c.true("n", True, "")
            c.draw(toy_trace([], slots=1), 1)  # nothing to be seen
            c.draw(trace, 9)
            c.draw(trace, 1)  # the first is drawn
    [player] = shown
    assert player.data["iteration"] == 1  # the second, counted from 0


def test_an_error_inside_a_given_cell_is_told_at_the_learners_line(capsys):
    names = {}
    for nth, source in enumerate(["# Given: helps\ndef given(x):\n    return x[0]", "def f(x):\n    return given(x)"]):
        file = f"/tmp/ipykernel_1/given-{nth}.py"
        linecache.cache[file] = len(source), None, source.splitlines(True), file
        exec(compile(source, file, "exec"), names)
    assert "out of range at line 2 of your cell (`return given(x)`)." in failing(
        capsys, lambda c: c.equal("f", lambda: names["f"]([]), 7)
    )
    assert "f: IndexError: list index out of range." in failing(
        capsys, lambda c: c.equal("f", lambda: names["given"]([]), 7)
    )


def test_a_syntax_error_names_no_file(capsys):
    shown = failing(capsys, lambda c: c.run("f", lambda: compile("f(", "123.py", "exec")))
    assert "SyntaxError: '(' was never closed." in shown


def test_because_show_and_hint(capsys):
    assert "slot 2 stood idle" in failing(
        capsys, lambda c: c.equal("n", 9, 7, because=lambda g, w: "slot 2 stood idle")
    )
    assert "expected 7, and you have 9. Hint: count again" in failing(
        capsys, lambda c: c.equal("n", 9, 7, show=True, hint="count again")
    )
    assert "did you mean 7?\n" in failing(capsys, lambda c: c.equal("n", 9, 7, because=lambda g, w: "did you mean 7?"))


def test_forgot_to_return(capsys):
    assert "did you forget to return?" in failing(capsys, lambda c: c.equal("n", lambda: None, 7))
    assert "did you forget to return?" in failing(capsys, lambda c: c.run("n", lambda: None))
    assert "did you forget to return?" in failing(capsys, lambda c: c.par("n", lambda: None, 7))


def test_an_exception_is_one_sentence_with_the_line_of_the_cell(capsys):
    names = {}
    exec(compile("def f():\n    return [][0]", "<ipython-input-7>", "exec"), names)
    assert "f: IndexError: list index out of range at line 2 of your cell" in failing(
        capsys, lambda c: c.equal("f", lambda: names["f"](), 7)
    )


def test_a_gate_ends_the_check(capsys):
    def lines(c):
        c.run("it runs", lambda: 1 / 0)
        raise AssertionError("not reached")

    shown = failing(capsys, lines)
    assert "it runs: ZeroDivisionError: division by zero." in shown and "not reached" not in shown


def test_an_exception_in_the_block_keeps_the_points_before_it(capsys):
    def lines(c):
        c.equal("first", 1, 1)
        {}["slot"]

    shown = failing(capsys, lines, points=2)
    assert "1 of 2 points" in shown and "KeyError: 'slot'" in shown


@pytest.mark.parametrize(
    "error, words",
    [
        (NotImplementedError("2.1: admit requests"), "to do  n: not written yet (admit requests)."),
        (NotImplementedError("2.9: grow"), "it needs exercise 2.9, which is not written yet"),
        (NotImplementedError("grow"), "NotImplementedError: grow"),
        (type("StdinNotImplementedError", (NotImplementedError,), {})("2.1: raw_input"), "input()"),
        (SystemExit(0), "sys.exit()"),
    ],
)
def test_special_exceptions(capsys, error, words):
    def code():
        raise error

    assert words in failing(capsys, lambda c: c.equal("n", code, 7))


def test_raises(capsys):
    assert "nothing was raised" in failing(capsys, lambda c: c.raises("refuses", lambda: 3, ValueError))
    assert "does not say max_tokens" in failing(
        capsys, lambda c: c.raises("refuses", lambda: int("x"), ValueError, mentions=["max_tokens"])
    )
    assert "TypeError" in failing(capsys, lambda c: c.raises("refuses", lambda: int([]), ValueError))

    def stub():
        raise NotImplementedError("2.1: refuse it")

    assert "not written yet" in failing(capsys, lambda c: c.raises("refuses", stub, Exception))


def test_an_interrupt_stays_an_interrupt():
    with pytest.raises(KeyboardInterrupt), check("2.1", 1) as c:
        c.equal("n", lambda: (_ for _ in ()).throw(KeyboardInterrupt), 1)


def test_points_must_add_up():
    with pytest.raises(ValueError, match="says 3 points, and its lines sum to 1"), check("2.1", 3) as c:
        c.equal("n", 1, 1)


def test_close(capsys):
    assert "at index 1: you have 0.4, which is off by 0.1" in failing(
        capsys, lambda c: c.close("p", [0.1, 0.4], [0.1, 0.3])
    )
    assert "too few" in failing(capsys, lambda c: c.close("p", [0.1], [0.1, 0.3]))
    assert "which is off by nan" in failing(capsys, lambda c: c.close("p", float("nan"), 1.0))
