"""Exercises 02: each mistake of the referee's tables, run as a learner's answer, loses points and is told by its
sentence; right answers written in other ways get all points; what else the learner does changes no verdict."""

from textwrap import dedent, indent

import nbformat
import pytest
from helpers.course import Audit

from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT
from tinyengine.course.referees import orca

CHECKS = (orca.check_2_1, orca.check_2_2, orca.check_2_3)


def schedule(body):
    head = "class MyOrca(Scheduler):\n    max_prefills = None\n\n    def schedule(self):\n"
    return head + indent(dedent(body).strip("\n"), " " * 8)


PLAN = "return [(request, request.gap) for request in self.running]"
RIGHT = {
    "2.1 slot by slot": """
        def static_waste(outputs, max_num_seqs):
            waiting, iterations, idle = list(outputs), 0, 0
            while waiting:
                slots = [waiting.pop(0) if waiting else 0 for _ in range(max_num_seqs)]
                for iteration in range(max(slots)):
                    iterations += 1
                    idle += sum(output <= iteration for output in slots)
            return [iterations, idle]
    """,
    "2.1 all slot-steps less the tokens, with a helper": """
        def count(outputs, size):
            return sum(max(outputs[i : i + size]) for i in range(0, len(outputs), size))

        def static_waste(outputs, max_num_seqs):
            return count(outputs, max_num_seqs), count(outputs, max_num_seqs) * max_num_seqs - sum(outputs)
    """,
    "2.1 by recursion, and the outputs are used up": """
        def static_waste(outputs, n):
            if not outputs:
                return 0, 0
            first, outputs[:n] = outputs[:n], []
            iterations, idle = static_waste(outputs, n)
            return iterations + max(first), idle + n * max(first) - sum(first)
    """,
    "2.2 a for loop": schedule(f"""
        free = self.max_num_seqs - len(self.running)
        for _ in range(free if self.max_prefills is None else min(free, self.max_prefills)):
            if not self.waiting or not self.memory.reserve(self.waiting[0]):
                break
            request = self.waiting.popleft()
            self.running = self.running + [request]
        {PLAN}
    """),
    "2.2 joined by `and`, newcomers first in the plan": schedule("""
        old, new = list(self.running), []
        while self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
            new.append(self.waiting.popleft())
            self.running.append(new[-1])
            if len(new) == self.max_prefills:
                break
        return [(request, len(request.tokens) - request.computed) for request in new + old]
    """),
    "2.2 put back at the front": schedule(f"""
        most = self.max_prefills or self.max_num_seqs
        ran = len(self.running)
        while self.waiting and len(self.running) < min(self.max_num_seqs, ran + most):
            request = self.waiting.popleft()
            if not self.memory.reserve(request):
                self.waiting.appendleft(request)
                break
            self.running.append(request)
        {PLAN}
    """),
    "2.2 a helper named _admit of one's own": """
        class MyOrca(Scheduler):
            max_prefills = None

            def _admit(self, left):
                free = len(self.running) < self.max_num_seqs
                if left and free and self.waiting and self.memory.reserve(self.waiting[0]):
                    self.running.append(self.waiting.popleft())
                    self._admit(left - 1)

            def schedule(self):
                self._admit(1000 if self.max_prefills is None else self.max_prefills)
                return tuple((request, request.gap) for request in self.running)
    """,
    "2.3 lists, and a name used once": """
        def my_steps():
            return [["add", "first", 39], ["add", "second", 100 - 2 * 39], ["end", "first"]]
    """,
    "2.3 a generator": """
        def my_steps():
            yield from [("add", "a", 39), ("add", "b", 22)]
            yield "end", "a"
    """,
}
STATIC_WITH_A_CAP = schedule(f"""
    joined = 0
    if not self.running:
        while self.waiting and len(self.running) < self.max_num_seqs:
            if joined == self.max_prefills or not self.memory.reserve(self.waiting[0]):
                break
            self.running.append(self.waiting.popleft())
            joined += 1
    {PLAN}
""")
ODD = {  # what a learner wrote: points, and what the grader says
    "2.1 strings": (
        "def static_waste(outputs, n):\n    return str(max(outputs)), '0'",
        0,
        "static_waste([4], 1) gives ('4', '0'): you have '4', a str, where an int is needed.",
    ),
    "2.1 one number": (
        "def static_waste(outputs, n):\n    return max(outputs)",
        0,
        "gives 4, where (iterations, idle_slot_steps) is needed",
    ),
    "2.1 an error": (
        "def static_waste(outputs, n):\n    return outputs[n]",
        0,
        "IndexError: list index out of range at line 2",
    ),
    "2.1 used up": ("static_waste = (7, 10)", 0, "static_waste is (7, 10), a tuple, where a function is needed"),
    "2.1 the published numbers": (
        "def static_waste(outputs, n):\n    return 500, 1220",
        1,
        "static_waste([4], 1) gives",
    ),
    "2.2 static, with the cap looked at": (STATIC_WITH_A_CAP, 7, "and that is static batching"),
    "2.2 the package's own loop": (
        schedule(f"self._admit()\n{PLAN}"),
        0,
        "you call the package's own _admit: write yours",
    ),
    "2.2 the package's own class": ("class MyOrca(Orca):\n    pass", 0, "Orca"),
    "2.2 no Scheduler": (
        "class MyOrca:\n    pass",
        0,
        "MyOrca is no Scheduler: begin it with `class MyOrca(Scheduler)`",
    ),
    "2.2 a misspelt name": (schedule("return self.wating"), 0, "has no attribute 'wating' at line 5 of your cell"),
    "2.2 None is compared": (
        orca.check_2_2.source(orca.check_2_2.mistakes[0]._replace(changes=[("joined ==", "joined >=")])),
        0,
        "'>=' not supported between instances of 'int' and 'NoneType' at line 10 of your cell",
    ),
    "2.3 no step": ("def my_steps():\n    return [('add', 1, 30)]", 0, "('add', 1, 30) is no step: write"),
    "2.3 too large": (
        "def my_steps():\n    return [('add', 'a', 101)]",
        0,
        "asks for 101 slots, but 2 to 100 are allowed",
    ),
    "2.3 twice": (
        "def my_steps():\n    return [('add', 'a', 9), ('add', 'a', 9)]",
        0,
        "uses a name that was used before",
    ),
}


class TestOrca(Audit):
    stem, checks, right, odd = "02_orca", CHECKS, RIGHT, ODD
    seeded = (orca.check_2_1, orca.check_2_3)

    @pytest.mark.slow
    def test_a_static_scheduler_is_blamed_once(self, rows):
        """Late without a cap, it is late with one; the cap itself it keeps."""
        assert "max_prefills" not in " ".join(rows["2.2 static, with the cap looked at"]["messages"])


def test_a_learners_scheduler_runs_in_the_stage_of_the_lesson():
    cells = nbformat.read(ROOT / "exercises/02_orca.ipynb", as_version=4).cells
    [engine] = [one.source for one in cells if "Engine(" in one.source]
    assert 'Engine(load_model("tiny"), "orca", scheduler=mine)' in engine


# What the notebook says about its workloads, measured.


@pytest.fixture
def my_orca():
    return orca.check_2_2.solution


def test_the_published_numbers(my_orca):
    from tinyengine.scheduler import Orca, Static

    def iterations(scheduler, case, **settings):
        return len(orca.replay(scheduler, case, **settings).iterations)

    assert [iterations(scheduler, "short_long_mix") for scheduler in (Static, Orca)] == [1024, 672]
    assert iterations(Orca, "published") == 500
    assert [iterations(scheduler, "small") for scheduler in (Static, Orca)] == [7, 5]
    assert iterations(my_orca, ([(3, 5), (2, 1)], 3, 20)) == 5
    assert iterations(my_orca, "small", max_prefills=1) == 8


def test_the_example_worked_by_hand(my_orca):
    trace = orca.replay(my_orca, "small")
    assert [[(span.request_id, span.n_tokens) for span in iteration.spans] for iteration in trace.iterations] == [
        [("r0", 3), ("r1", 2), ("r2", 6)],
        [("r0", 1), ("r2", 1)],
        [("r0", 1), ("r2", 1)],
        [("r0", 1), ("r3", 2), ("r4", 1)],
        [("r0", 1), ("r3", 1), ("r4", 1)],
    ]
    first = {}
    for number, iteration in enumerate(orca.replay(my_orca, "small", max_prefills=1).iterations, 1):
        for span in iteration.spans:
            first.setdefault(span.request_id, number)
    assert first == {"r0": 1, "r1": 2, "r2": 3, "r3": 6, "r4": 7}
