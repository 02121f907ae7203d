"""Exercises 02: right answers written in other ways pass, and each usual mistake is told by its name."""

import itertools
import linecache
from pathlib import Path
from textwrap import dedent, indent

import nbformat
import pytest

from tinyengine.course.checks import CheckFailed
from tinyengine.course.grade import grade

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "exercises/02_orca.ipynb"
SOLUTION = ROOT / "solutions/02_orca.ipynb"
POINTS = {"2.1": 3, "2.2": 10, "2.3": 3}


@pytest.fixture(scope="module")
def cells():
    return {cell.id: cell.source for cell in nbformat.read(EXERCISES, as_version=4).cells if cell.cell_type == "code"}


@pytest.fixture(scope="module")
def given(cells):
    """What the setup cells define."""
    import matplotlib

    matplotlib.use("Agg")
    names = {}
    for cell_id in sorted(cell_id for cell_id in cells if cell_id.startswith("setup-")):
        execute(cells[cell_id], cell_id, names)
    return names


def execute(source, name, names):
    """Runs a cell as IPython does: under a file name of its own, whose lines an error can quote."""
    file = f"/tmp/ipykernel_1/{name}.py"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), names)


numbers = itertools.count()


@pytest.fixture
def check(cells, given, capsys):
    """check("2.1", answer) -> (points, what the check says)"""

    def run(exercise, answer):
        names = dict(given)
        execute(dedent(answer), f"answer-{next(numbers)}", names)
        capsys.readouterr()
        try:
            execute(cells[f"check-{exercise.replace('.', '-')}"], f"check-{exercise}", names)
            failed = False
        except CheckFailed:
            failed = True
        said = capsys.readouterr().out
        points = int(said.split()[1])
        assert failed == (points < POINTS[exercise]), said
        return points, said

    return run


# 2.1

WASTE_RIGHT = {
    "slot by slot": """
        def static_waste(outputs, max_num_seqs):
            waiting, iterations, idle = list(outputs), 0, 0
            while waiting:
                slots = [waiting.pop(0) if waiting else 0 for _ in range(max_num_seqs)]
                for iteration in range(max(slots)):
                    iterations += 1
                    idle += sum(output <= iteration for output in slots)
            return [iterations, idle]
    """,
    "all slot-steps less the tokens": """
        def count(outputs, size):  # a helper whose name anybody might choose
            return sum(max(outputs[i : i + size]) for i in range(0, len(outputs), size))

        def static_waste(outputs, max_num_seqs):
            return count(outputs, max_num_seqs), count(outputs, max_num_seqs) * max_num_seqs - sum(outputs)
    """,
    "one batch after the other, by recursion": """
        def static_waste(outputs, n):
            if not outputs:
                return 0, 0
            iterations, idle = static_waste(outputs[n:], n)
            longest = max(outputs[:n])
            return iterations + longest, idle + sum(longest - o for o in outputs[:n]) + longest * (n - len(outputs[:n]))
    """,
}

BATCHES = "[outputs[i:i + n] for i in range(0, len(outputs), n)]"


def waste(steps="max(b)", idle="n * ({steps}) - sum(b)", batches=BATCHES):
    return f"""
        def static_waste(outputs, n):
            batches = {batches}
            return sum({steps} for b in batches), sum({idle.format(steps=steps)} for b in batches)
    """


WASTE_WRONG = {
    "the prompt is a step": (waste("max(b) + 1", "n * ({steps}) - sum(b) - len(b)"), 0, "an iteration for the prompt"),
    "mean": (waste("sum(b) / len(b)"), 0, "the mean output of a batch"),
    "sum": (waste("sum(b)"), 0, "its requests run side by side"),
    "min": (waste("min(b)"), 0, "end a batch with its shortest request"),
    "the last batch is forgotten": (
        waste(batches="[outputs[i:i + n] for i in range(0, len(outputs) - n + 1, n)]"),
        1,
        "leave out the last batch",
    ),
    "idle only where a request was": (waste(idle="len(b) * ({steps}) - sum(b)"), 2, "batch slots that had a request"),
    "sorted": (waste(batches=BATCHES.replace("outputs[i", "sorted(outputs)[i")), 1, "you sort the outputs, but first"),
    "longest first": (
        waste(batches=BATCHES.replace("outputs[i", "sorted(outputs)[::-1][i")),
        1,
        "you sort the outputs, longest first",
    ),
    "that is Orca": (
        """
        def static_waste(outputs, n):
            slots = [0] * n
            for output in outputs:
                slots[slots.index(min(slots))] += output
            return max(slots), n * max(slots) - sum(outputs)
        """,
        1,
        "you refill a batch slot as soon as its request has ended",
    ),
    "the other order": (
        """
        def static_waste(outputs, n):
            iterations = sum(max(outputs[i:i + n]) for i in range(0, len(outputs), n))
            return n * iterations - sum(outputs), iterations
        """,
        0,
        "in the other order",
    ),
    "busy, not idle": (waste(idle="sum(b)"), 1, "the busy slot-steps instead of the idle ones"),
    "all from busy": (waste(idle="sum(b) - n * ({steps})"), 1, "all slot-steps from the busy ones"),
    "a fraction": (
        """
        def static_waste(outputs, n):
            iterations = sum(max(outputs[i:i + n]) for i in range(0, len(outputs), n))
            return iterations, 1 - sum(outputs) / (n * iterations)
        """,
        1,
        "you give a fraction of the slot-steps: give their number",
    ),
    "a batch at every request": (
        waste(batches="[outputs[i:i + n] for i in range(len(outputs))]"),
        0,
        "you begin a batch at every request",
    ),
    "never ends": (
        "def static_waste(outputs, n):\n    while outputs:\n        n += 1",
        0,
        "a loop never ends, and your code was stopped after 200,000 lines at line",
    ),
    "iterations only": (
        "def static_waste(outputs, n): return max(outputs)",
        0,
        "where (iterations, idle_slot_steps) is needed",
    ),
    "no return": ("def static_waste(outputs, n): max(outputs)", 0, "did you forget to return?"),
    "an error": (
        "def static_waste(outputs, n):\n    return outputs[n]",
        0,
        "IndexError: list index out of range at line 2",
    ),
    "a constant": (
        "def static_waste(outputs, n): return 500, 1220",
        1,
        "for outputs [4] and max_num_seqs 1 you have 500",
    ),
}


@pytest.mark.parametrize("answer", WASTE_RIGHT.values(), ids=WASTE_RIGHT)
def test_waste_right(check, answer):
    assert check("2.1", answer)[0] == 3


@pytest.mark.parametrize("answer, points, message", WASTE_WRONG.values(), ids=WASTE_WRONG)
def test_waste_wrong(check, answer, points, message):
    got, said = check("2.1", answer)
    assert message in said and got == points, said


# 2.2


def orca(body, cap="None"):
    head = f"class MyOrca(Scheduler):\n    max_prefills = {cap}\n\n    def schedule(self):\n"
    return head + indent(dedent(body).strip("\n"), " " * 8)


PLAN = "return [(request, request.gap) for request in self.running]"
ORCA_RIGHT = {
    "a for loop": orca(f"""
        free = self.max_num_seqs - len(self.running)
        for _ in range(free if self.max_prefills is None else min(free, self.max_prefills)):
            if not self.waiting or not self.memory.reserve(self.waiting[0]):
                break
            request = self.waiting.popleft()
            self.running = self.running + [request]
        {PLAN}
    """),
    "joined by `and`, newcomers first in the plan": orca("""
        old, new = list(self.running), []
        while self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
            new.append(self.waiting.popleft())
            self.running.append(new[-1])
            if len(new) == self.max_prefills:
                break
        return [(request, len(request.tokens) - request.computed) for request in new + old]
    """),
    "put back at the front": orca(f"""
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
    "a helper named _admit of one's own": """
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
}
LOOP = f"""
joined = 0
while self.waiting and len(self.running) < self.max_num_seqs and joined != self.max_prefills:
    if not self.memory.reserve(self.waiting[0]):
        break
    self.running.append(self.waiting.popleft())
    joined += 1
{PLAN}
"""
CAP = " and joined != self.max_prefills"
SORTED = "self.waiting = type(self.waiting)(sorted(self.waiting, key=lambda r: {}r.max_slots))\nreturn"
ORCA_WRONG = {
    "static": (
        orca(LOOP.replace("while ", "batch = bool(self.running)\nwhile not batch and ", 1)),
        5,
        "first at iteration 4 of case 'small': you admit only when the batch is empty, and that is static",
    ),
    "one per iteration": (
        orca(f"""
        if self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        {PLAN}
    """),
        5,
        "you admit one request per iteration, however many batch slots are free",
    ),
    "one batch slot never used": (
        orca(LOOP.replace("< self.max_num_seqs", "< max(1, self.max_num_seqs - 1)")),
        5,
        "your batch never has more than 2 requests, and 3 are allowed",
    ),
    "no reserve": (
        orca(LOOP.replace("if not self.memory.reserve(self.waiting[0])", "if False")),
        3,
        "r0 runs, but memory.reserve() has not granted it K/V slots",
    ),
    "overtakes": (
        orca(f"""
        for request in list(self.waiting):
            if len(self.running) < self.max_num_seqs and self.memory.reserve(request):
                self.waiting.remove(request)
                self.running.append(request)
        {PLAN}
    """),
        3,
        "case 'small', iteration 2: r4 joins, and r3, which came first, still waits",
    ),
    "from the wrong end": (
        orca(LOOP.replace("waiting[0]", "waiting[-1]").replace("popleft", "pop")),
        3,
        "r4 joins, and r0, which came first, still waits",
    ),
    "too many": (
        orca(LOOP.replace("< self.max_num_seqs", "<= self.max_num_seqs")),
        3,
        "4 requests run, and max_num_seqs is 3",
    ),
    "as many as fit": (
        orca(LOOP.replace(" and len(self.running) < self.max_num_seqs", "")),
        3,
        "requests run, and max_num_seqs is 3",
    ),
    "the refused one goes to the end": (
        orca(f"""
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting.popleft()
            if not self.memory.reserve(request):
                self.waiting.append(request)
                break
            self.running.append(request)
        {PLAN}
    """),
        3,
        "case 'small', iteration 2: r3 was refused and is no longer first in self.waiting: leave it there",
    ),
    "sorted after admission": (
        orca(LOOP.replace("return", SORTED.format(""))),
        3,
        "case 'small', iteration 1: r4 now stands before r3 in self.waiting, but came later",
    ),
    "sorted where nobody was refused": (
        orca(LOOP.replace("return", SORTED.format("-"))),
        3,
        "now stands before",
    ),
    "several put back in the wrong order": (
        orca(f"""
        refused = []
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting.popleft()
            if refused or not self.memory.reserve(request):
                refused.append(request)
            else:
                self.running.append(request)
        for request in refused:
            self.waiting.appendleft(request)
        {PLAN}
    """),
        3,
        "case 'small', iteration 2: r3 was refused and is no longer first in self.waiting: leave it there",
    ),
    "the later is asked first": (
        orca(f"""
        new = [self.waiting.popleft() for _ in range(min(len(self.waiting), self.max_num_seqs - len(self.running)))]
        for request in reversed(new):
            if self.memory.reserve(request):
                self.running.append(request)
            else:
                self.waiting.appendleft(request)
        {PLAN}
    """),
        3,
        "memory.reserve() is asked for a later request before an earlier one",
    ),
    "no cap": (
        orca(LOOP.replace(CAP, "")),
        8,
        "case 'small' with max_prefills = 1, iteration 1: 3 requests join, and self.max_prefills allows 1",
    ),
    "one more than the cap": (
        orca(LOOP.replace(CAP, " and (self.max_prefills is None or joined <= self.max_prefills)")),
        8,
        "iteration 1: 2 requests join, and self.max_prefills allows 1",
    ),
    "the cap counts those that run": (
        orca(LOOP.replace(CAP, " and len(self.running) != self.max_prefills")),
        8,
        "with max_prefills = 1, iteration 2: max_prefills limits those that join in this iteration, not those that run",
    ),
    "the cap cuts the plan": (
        orca(LOOP.replace(CAP, "").replace("self.running]", "self.running][: self.max_prefills]")),
        8,
        "r1 is in self.running and not in the plan: max_prefills limits who joins, not who is in the plan",
    ),
    "those above the cap are skipped": (
        orca(
            LOOP.replace(CAP, "").replace(
                "    if not",
                "    if joined == self.max_prefills:\n        self.waiting.popleft()\n        continue\n    if not",
            )
        ),
        8,
        "case 'small' with max_prefills = 1, iteration 1: r1 is lost: it has left self.waiting",
    ),
    "those above the cap go to the end": (
        orca(
            LOOP.replace(CAP, "").replace(
                "    if not",
                "    if joined == self.max_prefills:\n        self.waiting.rotate(-1)\n        break\n    if not",
            )
        ),
        8,
        "case 'small' with max_prefills = 1, iteration 1: r4 now stands before r1 in self.waiting, but came later",
    ),
    "the count never begins anew": (
        orca(LOOP.replace("joined = 0", "self.n = getattr(self, 'n', 0)").replace("joined", "self.n")),
        8,
        "the plan is empty, and 4 requests wait: count those that join anew in every iteration",
    ),
    "a cap of always one": (
        orca(LOOP.replace(CAP, " and not (self.max_prefills and joined)")),
        8,
        "case 'roomy' with max_prefills = 2, iteration 1: 1 request joined, and one more could",
    ),
    "None is compared": (
        orca(LOOP.replace(CAP, " and joined < self.max_prefills")),
        0,
        "'<' not supported between instances of 'int' and 'NoneType' at line 6 of your cell",
    ),
    "never ends": (
        orca(
            LOOP.replace("        break", "        pass")
            .replace("if not self.memory.reserve(self.waiting[0])", "if True")
            .replace("    self.running.append(self.waiting.popleft())\n", "")
        ),
        0,
        "a loop never ends, and your code was stopped after 200,000 lines at line",
    ),
    "popped before the refusal": (
        orca(f"""
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting.popleft()
            if not self.memory.reserve(request):
                break
            self.running.append(request)
        {PLAN}
    """),
        0,
        "case 'small', iteration 2: r3 is lost: it has left self.waiting and is not in self.running",
    ),
    "one token each": (
        orca(LOOP.replace("request.gap", "1")),
        0,
        "r0 is planned with 1 token, but it joins, and its whole prompt is open: plan its gap",
    ),
    "always the whole prompt": (
        orca(LOOP.replace("request.gap", "request.num_prompt_tokens")),
        0,
        "r0 is planned with 3 tokens, which is not its gap",
    ),
    "reserved before a slot is free": (
        orca(f"""
        while self.waiting and self.memory.reserve(self.waiting[0]) and len(self.running) < self.max_num_seqs:
            self.running.append(self.waiting.popleft())
        {PLAN}
    """),
        3,
        "case 'roomy', iteration 1: K/V slots are reserved for r3, which does not join",
    ),
    "reserved twice": (
        orca(f"""
        while self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
            self.running.append(self.waiting.popleft())
            self.memory.reserve(self.running[-1])
        {PLAN}
    """),
        0,
        "memory.reserve() has granted r0 its K/V slots twice: ask once",
    ),
    "newcomers are not in the plan": (
        orca("old = list(self.running)" + LOOP.replace("in self.running]", "in old]")),
        0,
        "r0 is in self.running and not in the plan",
    ),
    "only newcomers are in the plan": (
        orca("old = list(self.running)" + LOOP.replace("in self.running]", "in self.running if request not in old]")),
        0,
        "iteration 2: r0 is in self.running and not in the plan",
    ),
    "never put into running": (
        orca("batch = list(self.running)" + LOOP.replace("self.running", "batch")),
        0,
        "r0 is in the plan, but not in self.running",
    ),
    "never taken out of waiting": (
        orca(f"""
        for request in self.waiting:
            if len(self.running) == self.max_num_seqs or not self.memory.reserve(request):
                break
            self.running.append(request)
        {PLAN}
    """),
        0,
        "r0 runs and is still in self.waiting",
    ),
    "asks for ever": (
        orca(f"""
        while self.waiting and len(self.running) < self.max_num_seqs:
            if self.memory.reserve(self.waiting[0]):
                self.running.append(self.waiting.popleft())
        {PLAN}
    """),
        0,
        "memory.reserve() is asked for r3 without end: leave the loop when it refuses",
    ),
    "nobody joins": (orca(PLAN), 0, "the plan is empty, and 5 requests wait"),
    "requests without numbers": (
        orca(LOOP.replace("(request, request.gap)", "request")),
        0,
        "schedule() gives a list with Request in it, but a list of (request, n_tokens) pairs is needed",
    ),
    "no return": (orca(LOOP.replace("return ", "")), 0, "did you forget to return?"),
    "a queue to reserve": (
        orca(LOOP.replace("reserve(self.waiting[0])", "reserve(self.waiting)")),
        0,
        "memory.reserve() is given a deque, but a request is needed",
    ),
    "counts free slots instead of asking": (
        orca(f"""
        while self.waiting and len(self.running) < self.max_num_seqs:
            if self.memory.n_slots - self.memory.n_rsrv < self.waiting[0].max_slots:
                break
            self.memory.reserve(self.waiting[0])
            self.running.append(self.waiting.popleft())
        {PLAN}
    """),
        3,
        "case 'holes', iteration 5: r3 runs, but memory.reserve() has not granted it K/V slots",
    ),
    "the package's own loop": (
        orca(f"self._admit()\n{PLAN}"),
        0,
        "you call the package's own loop, _admit: write yours",
    ),
    "the package's own class": (
        "class MyOrca(Orca):\n    pass",
        0,
        "you call the package's own loop, _admit: write yours",
    ),
    "an error": (orca("return self.wating"), 0, "'MyOrca' object has no attribute 'wating' at line 5 of your cell"),
    "no self": (orca(LOOP).replace("(self)", "()"), 0, "schedule() takes 0 positional arguments but 1 was given"),
    "no Scheduler": (orca(LOOP).replace("(Scheduler)", ""), 0, "MyOrca is no Scheduler"),
}


@pytest.mark.parametrize("answer", ORCA_RIGHT.values(), ids=ORCA_RIGHT)
def test_orca_right(check, answer):
    points, said = check("2.2", answer)
    assert points == 10, said


@pytest.mark.parametrize("answer, points, message", ORCA_WRONG.values(), ids=ORCA_WRONG)
def test_orca_wrong(check, answer, points, message):
    got, said = check("2.2", answer)
    assert message in said and got == points, said
    assert "None" not in said.replace("'NoneType'", "").replace("gives None", "") and "?." not in said, said


def test_what_a_broken_rule_keeps_from_being_looked_at(check):
    said = check("2.2", ORCA_WRONG["overtakes"][0])[1]
    rest = "waits  the real engine, the idle slot-steps and max_prefills: not looked at, 6 points wait until the lines"
    assert rest in said
    said = check("2.2", ORCA_WRONG["nobody joins"][0])[1]
    assert "waits  the other rules, the real engine" in said and "not looked at, 9 points wait" in said


@pytest.mark.parametrize(
    "name, sentence",
    [("asks for ever", "asked for r3 without end: leave the loop"), ("never ends", "a loop never ends")],
)
def test_the_learners_own_run_ends_too(given, name, sentence):
    names = dict(given)
    execute(ORCA_WRONG[name][0], "own-run", names)
    with pytest.raises(Exception, match=sentence):
        names["replay"](names["MyOrca"], "small")


def test_a_plan_of_ended_requests_ends_too(given):
    names = dict(given)
    keeps = LOOP.replace("joined = 0", "joined = 0\nself.all = getattr(self, 'all', list(self.waiting)[:1])")
    execute(orca(keeps.replace("in self.running]", "in self.all]")), "ended", names)
    with pytest.raises(RuntimeError, match="5,000 iterations, and still a plan"):
        names["replay"](names["MyOrca"], "small")


def test_the_published_numbers(given):
    """What the exercise says about its workloads, measured."""

    def iterations(scheduler, case):
        return len(given["replay"](given[scheduler], case).iterations)

    assert [iterations(scheduler, "short_long_mix") for scheduler in ("Static", "Orca")] == [1024, 672]
    assert iterations("Orca", "published") == 500
    assert [iterations(scheduler, "small") for scheduler in ("Static", "Orca")] == [7, 5]
    names = dict(given)
    execute(orca(LOOP), "capped", names)
    trace = names["replay"](names["MyOrca"], "small", max_prefills=1)
    first = {}
    for number, iteration in enumerate(trace.iterations, 1):
        for span in iteration.spans:
            first.setdefault(span.request_id, number)
    assert len(trace.iterations) == 8 and first == {"r0": 1, "r1": 2, "r2": 3, "r3": 6, "r4": 7}
    trace = given["replay"](given["Orca"], "small")
    assert [[(span.request_id, span.n_tokens) for span in iteration.spans] for iteration in trace.iterations] == [
        [("r0", 3), ("r1", 2), ("r2", 6)],
        [("r0", 1), ("r2", 1)],
        [("r0", 1), ("r2", 1)],
        [("r0", 1), ("r3", 2), ("r4", 1)],
        [("r0", 1), ("r3", 1), ("r4", 1)],
    ]


# 2.3


def steps(text):
    return f"def my_steps():\n    return {text}"


REFUSE_RIGHT = {
    "the other size first": steps('[("add", "x", 39), ("add", "y", 22), ("end", "x")]'),
    "lists, and a name used once": """
        def my_steps():
            return [["add", "first", 39], ["add", "second", 100 - 2 * 39], ["end", "first"]]
    """,
    "a generator": 'def my_steps():\n    yield from [("add", "a", 39), ("add", "b", 22)]\n    yield "end", "a"',
}
REFUSE_WRONG = {
    "too full": (steps('[("add", "a", 35), ("add", "b", 50)]'), 0, "only 15 slots are free in all"),
    "it fits a hole": (steps('[("add", "a", 30), ("add", "b", 30), ("end", "a")]'), 0, "a hole of 40 slots is free"),
    "nothing": (steps("[]"), 0, "a hole of 100 slots is free"),
    "ends what never was": (steps('[("add", "a", 30), ("end", "b")]'), 0, "ends a request that was never added"),
    "ends twice": (steps('[("add", "a", 30), ("end", "a"), ("end", "a")]'), 0, "ends a request that has ended before"),
    "a name twice": (steps('[("add", "a", 30), ("add", "a", 30)]'), 0, "uses a name that was used before"),
    "a step is refused": (steps('[("add", "a", 60), ("add", "b", 50)]'), 0, "('add', 'b', 50) is refused itself"),
    "0 slots": (steps('[("add", "a", 0)]'), 0, "asks for 0 slots, but 2 to 100 are allowed"),
    "no step": (steps('[("add", 30)]'), 0, "('add', 30) is no step"),
    "no return": ("def my_steps():\n    [('add', 'a', 39)]", 0, "did you forget to return?"),
    "too many requests": (
        steps('[("add", "a", 39), ("add", "b", 2), ("add", "c", 39), ("add", "d", 2), ("end", "a"), ("end", "c")]'),
        2,
        "correct, but 4 requests, and fewer are possible.",
    ),
    "too many slots held": (
        steps('[("add", "a", 30), ("add", "b", 40), ("end", "a")]'),
        2,
        "correct, but 40 slots still held, and fewer are possible.",
    ),
}


@pytest.mark.parametrize("answer", REFUSE_RIGHT.values(), ids=REFUSE_RIGHT)
def test_refuse_right(check, answer):
    points, said = check("2.3", answer)
    assert points == 3, said


@pytest.mark.parametrize("answer, points, message", REFUSE_WRONG.values(), ids=REFUSE_WRONG)
def test_refuse_wrong(check, answer, points, message):
    got, said = check("2.3", answer)
    assert message in said and got == points, said


# The whole notebook, through the grader.


def statuses(path):
    card = grade(path, ROOT)
    return card["points"], [exercise["status"] for exercise in card["exercises"]]


@pytest.mark.slow
def test_untouched_is_not_attempted():
    assert statuses(EXERCISES) == (0, ["not attempted"] * 3)


@pytest.mark.slow
def test_solution_passes():
    assert statuses(SOLUTION) == (16, ["passed"] * 3)
