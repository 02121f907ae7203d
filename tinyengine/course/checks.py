"""What a check calls: named lines with points, reasons instead of answers, partial credit.

    from tinyengine.course import check

    with check("2.1", points=3) as c:
        run = c.run("your scheduler serves the 3 requests", lambda: replay(Mine))
        c.equal("outputs", lambda: run.outputs, expected)
        c.equal("iterations", lambda: run.iterations, 7,
                mistakes={9: "you admit new requests only when the whole batch has ended"})
        c.par("idle slot-steps", lambda: run.idle, 0, where=lambda: f"first at iteration {run.first_idle + 1}")

What is compared may be a value or a function without arguments; inside a function the learner's exceptions become a
sentence of that one line. At the end the result is shown. While grading it is also published in a private MIME type,
which nbval keeps in `item.test_outputs`, and CheckFailed is raised if a line failed. In a notebook a failing check
raises nothing, so that "Run All" goes on.
"""

import inspect
import linecache
import math
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager

from tinyengine.course.display import UNWRITTEN, in_notebook, publish

MIME = "application/vnd.tinyengine.check+json"
PLACE = re.compile(r"\s*\([^()\s]+, line \d+\)$")  # what a SyntaxError adds: the made-up name of the cell's file
LIMIT = 400  # characters of a value or an error that a message quotes

_nonce = None


def arm(nonce: str) -> None:
    """The grader's signature for the next check; taken once, so code that runs later cannot read it here."""
    global _nonce
    _nonce = nonce


class CheckFailed(AssertionError):
    """Some line of a check failed while it was graded."""


class Stop(Exception):
    """Leave the check's block: what follows needs a value that the learner's code did not give."""


class Endless(Exception):
    """The learner's code was stopped: it would have run for ever."""


def ends(function, *args, lines=200_000, seconds=5):
    """What `function(*args)` gives; raises Endless once it has run that many lines of Python, has computed for so many
    seconds, or has waited for so many. A single operation of C that never ends is not stopped.
    """
    left, began = lines, time.thread_time()  # not the clock: others may use this machine too

    def count(frame, event, arg):
        nonlocal left
        left -= 1
        if left < 0:
            raise Endless(f"a loop never ends, or far too late: your code was stopped after {lines:,} lines")
        if left % 64 == 0:
            look(time.thread_time())
        return count

    def look(now, waited=0):
        if max(now - began, waited) > seconds:
            raise Endless(f"your code was stopped after {seconds} s: look for a loop that never ends")

    before = sys.gettrace()
    with every_second(look):
        sys.settrace(count)
        try:
            return function(*args)
        finally:
            sys.settrace(before)


@contextmanager
def every_second(look):
    """Calls look(seconds of this thread, seconds for which it has waited) again and again, from the main thread of a
    system that has alarms."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    last, waited = time.thread_time(), 0

    def ring(*_):
        nonlocal last, waited
        now = time.thread_time()
        waited = waited + 1 if now - last < 0.01 else 0
        last = now
        look(now, waited)

    handler = signal.signal(signal.SIGALRM, ring)
    outer = signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, handler)


class check:
    """The lines of one exercise's check; `points` must be the sum of the points of its lines."""

    def __init__(self, exercise: str, points: int):
        global _nonce
        self.exercise, self.points, self.lines = exercise, points, []
        self.seed = None  # of the inputs that were drawn at random, where some were
        self._run = None  # to be drawn: a Trace, and its iteration of interest
        self._signature, _nonce = _nonce, None
        self._file = sys._getframe(1).f_code.co_filename

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        is_interrupt = kind is not None and issubclass(kind, KeyboardInterrupt)
        if kind is not None and kind is not Stop and not is_interrupt:
            self._record("the check", 0, self._trouble(error), state_of(error, self.exercise))
        if not is_interrupt:
            self._explain()
        if kind is None and not self._failed and sum(line["max_points"] for line in self.lines) != self.points:
            raise ValueError(
                f"check {self.exercise} says {self.points} points, and its lines sum to "
                f"{sum(line['max_points'] for line in self.lines)}: make them equal."
            )
        self._report()
        if is_interrupt:
            return False  # it stays one
        if self._run and not self._signature:
            show_run(*self._run)
        if self._failed and self._signature:
            raise CheckFailed(f"{self.exercise}: {self._score()}; the reasons are above.") from None
        return True

    def _explain(self) -> None:
        """For a check that can tell which usual mistake has led to its lines."""

    # The lines an author writes.

    def run(self, name: str, fn, *, hint: str = ""):
        """Call the learner's code; when it raises or returns None the check ends here. Worth no points itself."""
        try:
            value = fn()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a learner may raise
            self._record(name, 0, self._trouble(error), state_of(error, self.exercise), hint)
            raise Stop from None
        if value is None:
            self._record(name, 0, FORGOT, "wrong", hint)
            raise Stop
        return value

    def equal(self, name: str, got, want, points: int = 1, *, mistakes=None, because=None, show=False, hint: str = ""):
        """`got` equals `want`: lists equal tuples, and arrays and tensors count as nested lists.

        The reason for a difference is the first of: a mistake that is recognised, `because(got, want)`, where they
        differ first. Only `show=True` prints what was expected.
        """

        def reason(got, want):
            if same(got, want):
                return None
            if show:
                return f"expected {quote(plain(want))}, and you have {quote(plain(got))}"
            return because(got, want) if because else difference(got, want)

        return self._compare(name, got, want, points, reason, mistakes, hint)

    def close(self, name: str, got, want, points: int = 1, *, atol=1e-6, rtol=1e-6, mistakes=None, hint: str = ""):
        """`got` is within `atol + rtol * |want|` of `want`, number by number."""

        def reason(got, want):
            return far(plain(got), plain(want), atol, rtol)

        return self._compare(name, got, want, points, reason, mistakes, hint)

    def true(self, name: str, got, reason, points: int = 1, *, mistakes=None, hint: str = ""):
        """`got` holds; `reason` is the sentence, or a function that makes it, for when it does not."""

        def why(got, _):
            return None if truth(got) else value_of(reason)

        return self._compare(name, got, True, points, why, mistakes, hint)

    def par(self, name: str, got, par, points: int = 1, *, where="", mistakes=None, show=True, hint: str = ""):
        """`got`, a cost, is at most `par`; write it after the lines that say the result is valid.

        `show=False` does not print the par, where that number is the answer.
        """

        def reason(got, par):
            if not isinstance(plain(got), (int, float)):
                return difference(got, par)
            if got <= par:
                return None
            place = value_of(where)
            least = f"{number(par)} {'is' if par == 1 else 'are'}" if show else "fewer are"
            return f"valid, but {number(got)} {name}; {least} possible" + (f", {place}" if place else "")

        return self._compare(name, got, par, points, reason, mistakes, hint)

    def raises(self, name: str, fn, kind, points: int = 1, *, mentions=(), hint: str = ""):
        """Calling `fn` raises `kind`, and its sentence holds every word of `mentions`."""
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        try:
            value = fn()
        except kind as error:
            missing = [word for word in mentions if str(word) not in str(error)]
            if UNWRITTEN.match(str(error)) and type(error) is NotImplementedError:
                return self._record(name, points, self._trouble(error), state_of(error, self.exercise), hint)
            sentence = f"your {type(error).__name__} does not say {' or '.join(map(str, missing))}" if missing else ""
            return self._record(name, points, sentence, "wrong" if missing else "ok", hint)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a learner may raise
            return self._record(
                name, points, f"{self._trouble(error)}, where a {names} is needed", state_of(error, self.exercise), hint
            )
        return self._record(
            name, points, f"nothing was raised (it gave {quote(value)}), where a {names} is needed", "wrong", hint
        )

    def wait(self, name: str) -> bool:
        """What was not looked at because a line above does not hold; all points that are left wait for it."""
        left = self.points - sum(line["max_points"] for line in self.lines)
        points = f"{left} point{'s' * (left != 1)} wait{'s' * (left == 1)}"
        return self._record(name, left, f"not looked at, {points} until the lines above hold", "waits")

    def draw(self, trace, iteration: int) -> None:
        """In a notebook this run is shown below the lines, opened at this iteration; of several the first."""
        if self._run is None and trace.iterations:
            self._run = trace, min(iteration, len(trace.iterations))

    # How a line becomes a record.

    def _compare(self, name, got, want, points, reason, mistakes, hint) -> bool:
        try:
            got = value_of(got)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a learner may raise
            return self._record(name, points, self._trouble(error), state_of(error, self.exercise), hint)
        want = value_of(want)  # after `got`: no reference runs for code that does not
        if got is None and want is not None:
            return self._record(name, points, FORGOT, "wrong", hint)
        try:
            sentence = reason(got, want)
        except Exception as error:  # a value that cannot even be compared
            return self._record(name, points, f"{quote(got)} cannot be compared: {words(error)}", "wrong", hint)
        if sentence:
            sentence = diagnose(got, mistakes) or sentence
        return self._record(name, points, sentence, "wrong" if sentence else "ok", hint)

    def _record(self, name, points, sentence, state, hint="") -> bool:
        ok = state == "ok"
        message = "" if ok else f"{name}: {ended(sentence)}" + (f" Hint: {hint}" if hint else "")
        message = message.encode("utf-8", "replace").decode()  # half a character cannot be shown
        self.lines.append(
            {"name": name, "points": points if ok else 0, "max_points": points, "state": state, "message": message}
        )
        return ok

    def _trouble(self, error) -> str:
        """One clause for an exception of the learner's code: its type, its sentence, the line of the learner's cell."""
        if state_of(error, self.exercise) == "not attempted":
            return f"not written yet ({UNWRITTEN.sub('', str(error), count=1)})"
        other = UNWRITTEN.match(str(error)) if type(error) is NotImplementedError else None
        if other:
            return f"it needs exercise {other[1]}, which is not written yet"
        if isinstance(error, SystemExit):
            return "your code called sys.exit(), which ends the program: return or raise instead"
        frames = []
        step = error.__traceback__
        while step:
            frames.append((step.tb_frame.f_code.co_filename, step.tb_lineno))
            step = step.tb_next
        mine = [(file, line) for file, line in frames if is_cell(file) and file != self._file and not is_given(file)]
        if not mine:
            return words(error)
        file, line = mine[-1]
        code = linecache.getline(file, line).strip()
        return f"{words(error)} at line {line} of your cell" + (f" (`{code}`)" if code else "")

    # The end.

    @property
    def _failed(self) -> bool:
        return any(line["state"] != "ok" for line in self.lines)

    def _score(self) -> str:
        return f"{sum(line['points'] for line in self.lines)} of {self.points} points"

    def _report(self) -> None:
        drawn = "" if self.seed is None else f" (inputs drawn from seed {self.seed})"
        text = [f"{self.exercise}: {self._score()}{drawn}"]
        for line in self.lines:
            text.append(
                f"  ok     {line['name']}" if line["state"] == "ok" else f"  {MARKS[line['state']]} {line['message']}"
            )
        result = {"exercise": self.exercise, "lines": self.lines, "nonce": self._signature, "seed": self.seed}
        publish("\n".join(text), **({MIME: result} if self._signature else {}))


def show_run(trace, iteration: int) -> None:
    if in_notebook():
        from IPython.display import display

        from visualizers import show

        display(show(trace, iteration=iteration))


FORGOT = "your code gave None: did you forget to return?"
MARKS = {"wrong": "wrong ", "error": "error ", "not attempted": "to do ", "waits": "waits ", "mistake": "why   "}


def value_of(thing):
    """The value itself, or what a function without arguments gives."""
    return thing() if inspect.isfunction(thing) or inspect.ismethod(thing) else thing


def state_of(error, exercise: str) -> str:
    """`not attempted` for this exercise's own stub (the exact type: input() raises a subclass), else `error`."""
    mark = UNWRITTEN.match(str(error)) if type(error) is NotImplementedError else None
    return "not attempted" if mark and mark[1] == exercise else "error"


def diagnose(got, mistakes) -> str:
    """The sentence of the first known mistake that `got` shows, or nothing.

    `mistakes` is {wrong value: sentence}, or a list of (wrong value, sentence) pairs and of functions that take `got`
    and return the sentence or None. A diagnosis that itself fails stays silent: it must never cost a point.
    """
    for mistake in mistakes.items() if isinstance(mistakes, dict) else mistakes or []:
        try:
            sentence = mistake(got) if callable(mistake) else mistake[1] if same(got, mistake[0]) else None
        except Exception:
            continue
        if sentence:
            return sentence
    return ""


def plain(value):
    """Tensors, arrays and tuples as nested lists, so that the form of a right answer does not matter."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def same(got, want) -> bool:
    """Equality decided by the type of `want`, so that an object which claims to equal everything does not pass."""
    got, want = plain(got), plain(want)
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return isinstance(got, dict) and set(got) == set(want) and all(same(got[key], want[key]) for key in want)
    if isinstance(want, (bool, int, float)):
        return (isinstance(got, (bool, int, float)) and type(want).__eq__(want, got) is True) or as_float(got, want)
    if isinstance(want, (str, bytes, set, frozenset)):
        return isinstance(got, type(want)) and type(want).__eq__(want, got) is True
    return type(got) is type(want) and bool(got == want)


def as_float(got, want) -> bool:
    """7 equals 7.0: int.__eq__ alone does not know floats."""
    return isinstance(got, (bool, int, float)) and float.__eq__(float(want), float(got)) and abs(want) < 2**53


def truth(value) -> bool:
    """A tensor of comparisons holds when all of it holds; an empty list holds for nothing."""
    value = plain(value)
    return bool(value) and all(map(truth, value)) if isinstance(value, list) else bool(value)


def difference(got, want) -> str:
    """Where `got` leaves `want`, told by what the learner has: never by what is wanted."""
    got, want = plain(got), plain(want)
    if isinstance(want, (int, float)) and not isinstance(want, bool) and isinstance(got, (int, float)):
        return f"you have {number(got)}, which is too {'high' if got > want else 'low' if got < want else 'strange'}"
    if isinstance(want, list) and isinstance(got, list):
        for index, (mine, right) in enumerate(zip(got, want, strict=False)):
            if not same(mine, right):
                return f"it goes wrong first at index {index}, where you have {quote(mine)}"
        return f"it starts right, and with {len(got)} items it is too {'long' if len(got) > len(want) else 'short'}"
    if isinstance(want, dict) and isinstance(got, dict):
        for key in want:
            if key not in got:
                return f"the key {quote(key)} is missing"
            if not same(got[key], want[key]):
                return f"at key {quote(key)}: {difference(got[key], want[key])}"
        return f"the key {quote(next(key for key in got if key not in want))} does not belong there"
    if isinstance(want, str) and isinstance(got, str):
        index = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
        return f"you have {quote(got)}, which goes wrong at character {index}"
    if type(got) is not type(want):
        return f"you have {quote(got)}, {a_type(got)}, where {a_type(want)} is needed"
    return f"you have {quote(got)}, which is wrong"


def a_type(value) -> str:
    """an int, a str"""
    name = type(value).__name__
    return f"a{'n' * (name[0] in 'aeiouAEIOU')} {name}"


def far(got, want, atol, rtol) -> str:
    """Empty when close, else the reason; walks nested lists."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return (
                difference(got, [None] * len(want))
                if not isinstance(got, list)
                else (f"it has {len(got)} items, which is too {'many' if len(got) > len(want) else 'few'}")
            )
        for index, (mine, right) in enumerate(zip(got, want, strict=True)):
            reason = far(mine, right, atol, rtol)
            if reason:
                return f"at index {index}: {reason}"
        return ""
    if isinstance(got, (int, float)) and isinstance(want, (int, float)):
        gap = abs(got - want)
        if got == want or (math.isfinite(want) and gap <= atol + rtol * abs(want)):
            return ""
        return f"you have {number(got)}, which is off by {number(gap)}"
    return "" if same(got, want) else difference(got, want)


def number(value) -> str:
    return f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def quote(value) -> str:
    """A value of the learner's, short enough for a sentence, on one line."""
    try:
        text = " ".join(brief(value).split())
    except Exception:
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= LIMIT else text[:LIMIT] + "..."


def brief(value) -> str:
    """Its repr, but a large tensor or array is told by its shape."""
    if type(value) in (list, tuple) and any(map(is_array, value)):
        inside = ", ".join(map(brief, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if is_array(value) and math.prod(value.shape) > 12:
        return f"<{type(value).__name__} of shape {list(value.shape)}>"
    return repr(value)


def is_array(value) -> bool:
    return hasattr(value, "tolist") and hasattr(value, "shape") and not isinstance(value, type)


def words(error) -> str:
    """`IndexError: list index out of range`, on one line."""
    sentence = " ".join(PLACE.sub("", str(error)).split())
    sentence = sentence if len(sentence) <= LIMIT else sentence[:LIMIT] + "..."
    if type(error).__name__ == "StdinNotImplementedError":
        return "your code called input(), but no one answers while it is graded: pass the value instead"
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__


def is_cell(file: str) -> bool:
    """True for the made-up file names under which IPython compiles a cell."""
    return "ipykernel_" in file or file.startswith("<ipython-input")


def is_given(file: str) -> bool:
    """True for a cell that the course wrote: it begins with a comment `# Given`."""
    return linecache.getline(file, 1).startswith("# Given")


def ended(sentence: str) -> str:
    """With one full stop, or with the mark it has."""
    return sentence if sentence.endswith(("?", "!")) else sentence.rstrip(".") + "."
