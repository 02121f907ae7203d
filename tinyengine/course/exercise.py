"""An exercise away from its notebook: the solution, the usual mistakes, and the check. Referees are made of these.

    @exercise(
        "2.1",
        points=2,
        solution=static_waste,
        mistakes=[
            # a name, the sentence that the learner reads, and the mistake itself: (old, new) text in the solution
            ("mean", "you take the mean output of a batch", ("max(batch)", "sum(batch) / len(batch)")),
        ],
    )
    def check_2_1(c, answer):
        runs = c.cases("it counts", answer, CASES, drawn=draw_cases)
        c.agree("iterations", runs, part=0)
        c.agree("idle slot-steps", runs, part=1)

The check cell of the notebook calls `check_2_1(static_waste)`.
"""

import inspect
import random
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from tinyengine.course.checks import (
    FORGOT,
    Stop,
    a_type,
    check,
    difference,
    ends,
    far,
    is_array,
    plain,
    quote,
    same,
    state_of,
)

PATIENCE = 3  # seconds of computing for the diagnosis of a check: without one the reasons stand all the same


class Mistake(NamedTuple):
    """A usual mistake. changes: what makes it of the solution, (old, new) texts; or one function, in its place."""

    name: str
    sentence: str
    changes: tuple


def exercise(exercise_id: str, points: int, solution: Callable, mistakes, part: bool = False):
    """Turns a judge, `def check_2_1(c, answer)`, into the check that the notebook calls.

    part: the answer is a part of the learner's engine, and is kept in work/engine/ once it has all points.
    """
    table = [Mistake(name, sentence, changes) for name, sentence, *changes in mistakes]
    return lambda judge: Exercise(exercise_id, points, solution, table, judge, part)


@dataclass
class Exercise:
    """solution: the function or class that answers it. judge: writes the lines of the check."""

    exercise_id: str
    points: int
    solution: Callable
    mistakes: list[Mistake]
    judge: Callable
    part: bool = False

    def __call__(self, answer, seed: int = 0) -> None:
        """Checks an answer, and says what is wrong. seed: of inputs drawn at random; a grade takes a new one."""
        with Trial(self, seed) as c:
            c.look_at_kind(answer)
            self.judge(c, answer)

    @property
    def name(self) -> str:
        """What the learner's answer must be called."""
        return self.solution.__name__

    def source(self, mistake: Mistake) -> str:
        """A whole answer with this mistake in it, as a learner would write it."""
        text = source_text(self.solution)
        for change in mistake.changes:
            if callable(change):
                text = source_text(change).replace(change.__name__, self.name)
                continue
            old, new = change
            if old not in text:
                raise ValueError(f"{self.exercise_id}, mistake {mistake.name!r}: {old!r} is not in the solution")
            text = text.replace(old, new)
        return text

    def twin(self, mistake: Mistake):
        """The answer with this mistake, made from its source."""
        names = dict(self.judge.__globals__)
        exec(compile(self.source(mistake), f"<{mistake.name}>", "exec"), names)
        return names[self.name]


@cache
def source_text(definition) -> str:
    """Its source. Kept: to find a class, inspect reads the whole module anew each time."""
    return inspect.getsource(definition)


class Run:
    """What an answer gave in a case. want: what the solution gives there."""

    def __init__(self, case, got, behave, solution):
        self.case, self.got = case, got
        self._behave, self._solution = behave, solution

    @cached_property
    def want(self):
        return self._behave(self._solution, self.case)


@dataclass
class Tried:
    """An answer in some cases, in order, up to the first that raised. seen: what is compared with the twins."""

    behave: Callable
    view: Callable
    cases: list
    seen: list
    begin: int  # the first line of the check that follows from it

    def sight(self, got, error):
        """What is compared: of an error its words, else the view of what was given."""
        if error:
            return ["raised", type(error).__name__, str(error)]
        return None if got is None else plain(self.view(got))


def call(answer, case):
    """What `answer(*case)` gives; the case stays as it is."""
    return ends(answer, *deepcopy(case))


class Trial(check):
    """The check of one answer: it runs the answer, and names the mistake that explains all that it did."""

    def __init__(self, exercise: Exercise, seed: int):
        super().__init__(exercise.exercise_id, exercise.points)
        self._exercise, self._tried = exercise, []
        self._seed = random.SystemRandom().randrange(10**6) if self._signature else seed

    @cached_property
    def random(self) -> random.Random:
        """Draws inputs; the check says from which seed."""
        self.seed = self._seed
        return random.Random(self.seed)

    def look_at_kind(self, answer) -> None:
        """Ends the check where the name of the answer means something else by now."""
        name, solution = self._exercise.name, self._exercise.solution
        kind = type if inspect.isclass(solution) else Callable
        if not isinstance(answer, kind):
            needed = "a class" if kind is type else "a function"
            trouble = f"{name} is {quote(answer)}, {a_type(answer)}, where {needed} is needed: is the name used twice?"
        elif kind is type and not issubclass(answer, solution.__base__):
            base = solution.__base__.__name__
            trouble = f"{name} is no {base}: begin it with `class {name}({base})`"
        else:
            return
        self._record("your answer", 0, trouble, "wrong")
        raise Stop

    def cases(self, name: str, answer, cases, behave=call, view=lambda got: got, drawn=None) -> list[Run]:
        """One run for each case; the check ends at one that raises. Worth no points itself.

        behave(answer, case): what a run gives. view(got): what of it shows a mistake, for answers are compared by it.
        drawn(random): more cases, for an answer that did in all others what the solution does.
        """
        tried = Tried(behave, view, [], [], len(self.lines))
        self._tried.append(tried)
        runs = self._runs(name, answer, cases, tried)
        right = all(close(seen, tried.sight(run.want, None)) for seen, run in zip(tried.seen, runs))
        return runs + self._runs(name, answer, drawn(self.random), tried) if drawn and right else runs

    def _runs(self, name, answer, cases, tried) -> list[Run]:
        runs = []
        for case in cases:
            got, error = outcome(tried.behave, answer, case)
            tried.cases.append(case)
            tried.seen.append(tried.sight(got, error))
            if error:
                self._record(name, 0, self._trouble(error), state_of(error, self.exercise))
                raise Stop from None
            if got is None:
                self._record(name, 0, FORGOT, "wrong")
                raise Stop
            runs.append(Run(case, got, tried.behave, self._exercise.solution))
        return runs

    def parts(self, name: str, runs: list[Run], form: str, count: int) -> bool:
        """Every run gave a tuple or list of so many parts. Worth no points."""
        odd = [run for run in runs if not (isinstance(run.got, tuple | list) and len(run.got) == count)]
        return self.true(name, not odd, lambda: f"{self._said(odd[0])}, where {form} is needed", points=0)

    def agree(self, name: str, runs: list[Run], part: int | None = None, points: int = 1) -> bool:
        """Every run gave what the solution gives, tensors of floats nearly; part: only this part of the tuple."""

        def of(value):
            return value if part is None else value[part]

        def reason(got, want):
            for run, mine, right in zip(runs, got, want):
                if not (same(mine, right) or alike_tensors(mine, right)):
                    return f"{self._said(run)}: {difference(mine, right)}"

        return self._compare(
            name, [of(run.got) for run in runs], lambda: [of(run.want) for run in runs], points, reason, None, ""
        )

    def _said(self, run: Run) -> str:
        return f"{self._exercise.name}({', '.join(map(quote, run.case))}) gives {quote(run.got)}"

    def _explain(self) -> None:
        """One more line for each group of runs that led to a failing line, where a mistake explains them all."""
        ends = [tried.begin for tried in self._tried[1:]] + [len(self.lines)]
        self._stop_at, told = time.process_time() + PATIENCE, []
        for tried, end in zip(self._tried, ends):
            states = {line["state"] for line in self.lines[tried.begin : end]}
            try:
                sentence = self._mistake(tried) if states & {"wrong", "error"} else ""
            except Exception:  # values that cannot be compared; a diagnosis must never cost a point
                continue
            if sentence and sentence not in told:
                told.append(sentence)
                self._record("most likely", 0, sentence, "mistake")

    def _mistake(self, tried: Tried) -> str:
        """The sentence of the first mistake whose twin does in every case what the answer did; nothing for an answer
        that did what the solution does."""
        if alike(self._exercise.solution, tried):
            return ""
        for mistake in self._exercise.mistakes:
            if time.process_time() > self._stop_at:
                break
            if alike(self._exercise.twin(mistake), tried):
                return mistake.sentence
        return ""


def outcome(behave, answer, case) -> tuple:
    """(what it gives, None), or (None, the error)."""
    try:
        return behave(answer, case), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a learner may raise
        return None, error


def alike_tensors(got, want) -> bool:
    """Two tensors or arrays of the same shape whose numbers are close; whole numbers must be equal."""
    return is_array(got) and is_array(want) and got.shape == want.shape and close(plain(got), plain(want))


def alike(answer, tried: Tried) -> bool:
    """The answer does in every case what was seen there."""
    pairs = zip(tried.cases, tried.seen)
    return all(close(seen, tried.sight(*outcome(tried.behave, answer, case))) for case, seen in pairs)


def close(one, two) -> bool:
    """The same, where numbers with a fraction may differ as sums in another order do."""
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(close, one, two))
    if isinstance(one, float) and isinstance(two, float) and one != one:
        return two != two  # not a number, both of them
    whole = isinstance(one, int) and isinstance(two, int)
    return one == two if whole else not far(one, two, 1e-5, 1e-5)
