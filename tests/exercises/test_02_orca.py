"""Exercises 02: each mistake of the referee's tables, run as a learner's answer, loses points and is told by its
sentence; right answers written in other ways get all points; what else the learner does changes no verdict."""

from textwrap import dedent, indent

import nbformat
import pytest
from helpers.course import Audit

from tinyengine.course.arena import Filled
from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT
from tinyengine.course.referees import orca
from tinyengine.scheduler import Orca, Static

CHECKS = (orca.check_2_1, orca.check_2_2, orca.check_2_3, orca.check_2_4, orca.check_2_5, orca.check_2_6)


def schedule(body):
    head = "class MyOrca(Scheduler):\n    max_prefills = None\n\n    def schedule(self):\n"
    return head + indent(dedent(body).strip("\n"), " " * 8)


def filler(body):
    head = "class MyFiller(Scheduler):\n    patience = 2\n\n    def __init__(self, memory, max_num_seqs=8):\n"
    head += "        super().__init__(memory, max_num_seqs)\n        self.overtaken = Counter()\n\n"
    return head + "    def schedule(self):\n" + indent(dedent(body).strip("\n"), " " * 8)


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
    "2.4 the hole first, a table that is a list": """
        class MySlots(Slots):
            def first(self, wanted):
                for hole in self.holes:
                    if hole.stop - hole.start >= wanted:
                        return hole

            def reserve(self, request):
                hole = self.first(request.max_slots)
                if hole is None:
                    return False
                end = hole.start + request.max_slots
                request.table = list(range(hole.start, end))
                kept = []
                for other in self.holes:
                    if other is not hole:
                        kept.append(other)
                    elif end < hole.stop:
                        kept.append(range(end, hole.stop))
                self.holes = kept
                self.holders[request.request_id] = request
                return True
    """,
    "2.4 slot by slot, and None where there is no room": """
        class MySlots(Slots):
            def reserve(self, request):
                free = [slot for hole in self.holes for slot in hole]
                size = len(request.prompt_token_ids) + request.params.max_tokens
                for first in free:
                    if set(range(first, first + size)) <= set(free):
                        request.table = range(first, first + size)
                        self.holders.update({request.request_id: request})
                        self.holes = []
                        for slot in free:
                            if slot in request.table:
                                continue
                            if not self.holes or self.holes[-1].stop < slot:
                                self.holes.append(range(slot, slot))
                            self.holes[-1] = range(self.holes[-1].start, slot + 1)
                        return True
    """,
    "2.5 in floats": """
        def capacity(memory, utilisation, weights, kv_bytes, n_max):
            left = memory * utilisation - weights
            if left < 0:
                return 0, 0
            return left // kv_bytes, left // kv_bytes // n_max
    """,
    "2.5 by divmod": """
        def capacity(memory, utilisation, weights, kv_bytes, n_max):
            usable = int(memory * utilisation)
            slots, _ = divmod(max(usable - weights, 0), kv_bytes)
            requests, _ = divmod(slots, n_max)
            return [slots, requests]
    """,
    "2.6 by index, from the head again after each that joins": filler(f"""
        index = 0
        while index < len(self.waiting) and len(self.running) < self.max_num_seqs:
            request = self.waiting[index]
            if self.memory.reserve(request):
                for number in range(index):
                    self.overtaken[self.waiting[number].request_id] += 1
                self.waiting.remove(request)
                self.running.append(request)
                index = 0
            elif self.overtaken[request.request_id] >= self.patience:
                break
            else:
                index += 1
        {PLAN}
    """),
    "2.6 a dict of one's own, and the test before the question": """
        class MyFiller(Scheduler):
            patience = 2

            def schedule(self):
                counts, ahead = self.__dict__.setdefault("counts", {}), []
                for request in [*self.waiting]:
                    free = self.max_num_seqs - len(self.running)
                    if not free or any(counts.get(one, 0) >= self.patience for one in ahead):
                        break
                    if not self.memory.reserve(request):
                        ahead.append(request)
                        continue
                    for one in ahead:
                        counts[one] = counts.get(one, 0) + 1
                    self.waiting.remove(request)
                    self.running = [*self.running, request]
                return [(request, request.gap) for request in self.running]
    """,
}


def twin(check, name):
    """The answer with a mistake of the table."""
    return check.source(next(mistake for mistake in check.mistakes if mistake.name == name))


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
    "2.2 static, with the cap looked at": (STATIC_WITH_A_CAP, 4, "and that is static batching"),
    "2.2 the package's own loop": (
        schedule(f"self._admit()\n{PLAN}"),
        0,
        "you call the package's own _admit: write yours",
    ),
    "2.2 the package's own class": ("class MyOrca(Orca):\n    pass", 0, "you call the package's own _admit"),
    "2.2 no Scheduler": (
        "class MyOrca:\n    pass",
        0,
        "MyOrca is no Scheduler: begin it with `class MyOrca(Scheduler)`",
    ),
    "2.2 a misspelt name": (schedule("return self.wating"), 0, "has no attribute 'wating' at line 5 of your cell"),
    "2.2 None is compared": (
        orca.check_2_2.source(orca.check_2_2.mistakes[0]._replace(changes=[("joined ==", "joined >=")])),
        0,
        "TypeError: max_prefills is None, which is no number at line 10 of your cell",
    ),
    "2.2 None is counted": (
        schedule(f"for _ in range(self.max_prefills):\n    pass\n{PLAN}"),
        0,
        "most likely: max_prefills may be None: no limit.",
    ),
    "2.2 another TypeError": (schedule("return len(None)"), 0, "object of type 'NoneType' has no len() at line 5"),
    "2.2 one request at a time": (
        twin(orca.check_2_2, "one by one").replace("self.max_num_seqs:", "1:"),
        4,
        "the rest: not looked at, 3 points wait",
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
    "2.4 the package's own class": ("class MySlots(Slots):\n    pass", 0, "you use the package's own reserve"),
    "2.4 the package's own reserve": (
        "class MySlots(Slots):\n    def reserve(self, request):\n        return super().reserve(request)",
        0,
        "you use the package's own reserve, or its helpers: write yours",
    ),
    "2.4 no Slots": ("class MySlots:\n    pass", 0, "MySlots is no Slots: begin it with `class MySlots(Slots)`"),
    "2.4 nothing is granted": (
        "class MySlots(Slots):\n    def reserve(self, request):\n        return False",
        0,
        "5 slots asked for, holes at 0 to 19: you refuse",
    ),
    "2.4 best fit": (twin(orca.check_2_4, "best fit"), 2, "it gets the beginning of the first hole"),
    "2.4 tuples": (
        twin(orca.check_2_4, "rest lost").replace("[]\n", "[(rest.start, rest.stop)]\n"),
        0,
        "self.holes has (5, 20) in it, a tuple, where a range is needed",
    ),
    "2.4 a table of ranges": (
        twin(orca.check_2_4, "no table").replace("_, rest", "request.table, rest").replace("hole[:wanted],", "[hole],"),
        0,
        "where a range of slots is needed",
    ),
    "2.4 a misspelt name": (
        "class MySlots(Slots):\n    def reserve(self, request):\n        return self.hole",
        0,
        "has no attribute 'hole' at line 3 of your cell",
    ),
    "2.5 text": (
        "def capacity(*sizes):\n    return '50', '2'",
        0,
        "capacity(1000, 0.9, 500, 8, 20) gives ('50', '2'): you have '50', a str, where an int is needed",
    ),
    "2.5 one number": ("def capacity(*sizes):\n    return 50", 0, "gives 50, where (K/V slots, requests) is needed"),
    "2.5 the published numbers": ("def capacity(*sizes):\n    return 15728, 7", 1, "capacity(1000, 0.9, 500, 8, 20)"),
    "2.5 five arguments": (
        "def capacity(memory, weights):\n    return 50, 2",
        0,
        "TypeError: capacity() takes 2 positional arguments but 5 were given",
    ),
    "2.6 the queue changes meanwhile": (
        twin(orca.check_2_6, "no bound").replace("list(self.waiting)", "self.waiting"),
        0,
        "RuntimeError: OrderedDict mutated during iteration",
    ),
    "2.6 the package's own loop": (
        filler(f"self._admit()\n{PLAN}"),
        0,
        "you call the package's own _admit: write yours",
    ),
    "2.6 nobody runs": (filler("return []"), 0, "the plan is empty, and 5 requests wait"),
    "2.6 Orca is valid": (twin(orca.check_2_6, "nobody overtakes"), 3, "idle slot-steps"),
}


class TestOrca(Audit):
    stem, checks, right, odd = "02_orca", CHECKS, RIGHT, ODD

    @pytest.mark.slow
    def test_a_static_scheduler_is_blamed_once(self, rows):
        """Late without a cap, it is late with one: the cap is not looked at."""
        assert "max_prefills" not in " ".join(rows["2.2 static, with the cap looked at"]["messages"])


def test_a_learners_scheduler_runs_in_the_stage_of_the_lesson():
    cells = nbformat.read(ROOT / "exercises/02_orca.ipynb", as_version=4).cells
    engines = [one.source for one in cells if "Engine(" in one.source]
    assert len(engines) == 2
    assert all('Engine(load_model("tiny"), "orca", scheduler=mine)' in engine for engine in engines)


# What the notebook says about its workloads, measured.


@pytest.fixture
def my_orca():
    return orca.check_2_2.solution


def test_the_published_numbers(my_orca):
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


def test_the_arena_worked_by_hand():
    steps = [("add", "a", 5), ("add", "b", 7), ("add", "c", 8), ("add", "d", 2), ("end", "b"), ("add", "e", 3)]
    filled = Filled(orca.check_2_4.solution, (steps, 20))
    assert filled.faults == {} and filled.memory.holes == [range(8, 12)]
    assert [row for row, _ in filled.rows][3:5] == ["add d 2: refused", "end b"]
    assert filled.rows[-1][1] == {"a": ((0, 5),), "c": ((12, 20),), "e": ((5, 8),)}


def test_the_devices():
    assert orca.check_2_5.solution(1000, 0.9, 500, 8, 20) == (50, 2)
    found = {name: orca.check_2_5.solution(*setup) for name, setup in orca.SETUPS.items()}
    assert found["OPT-13B, 40 GiB"] == (15_728, 7)  # 15.7K slots in the paper
    assert found["LLaMA2-70B, 80 GiB"] == (0, 0)


def test_the_queue_worked_by_hand():
    trace = orca.replay(orca.check_2_6.solution, "queue", patience=2)
    assert orca.joins(trace) == {"r0": 1, "r2": 1, "r3": 3, "r1": 7, "r4": 7}
    assert [len(iteration.spans) for iteration in trace.iterations] == [2, 2, 2, 2, 1, 1, 2, 2]
    in_order = orca.replay(Orca, "queue").iterations
    assert len(in_order) == 10 and sum(2 - len(iteration.spans) for iteration in in_order) == 6
