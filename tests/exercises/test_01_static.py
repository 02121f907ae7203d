"""Exercises 01: each mistake of the referee's tables, run as a learner's answer, loses points and is told by its
sentence; right answers written in other ways get all points; odd ones are told in a sentence."""

from textwrap import dedent, indent

import pytest
import torch
from helpers.course import Audit, solutions, told

from tinyengine import SamplingParams
from tinyengine.course import rectangles as given
from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT
from tinyengine.course.referees import static
from tinyengine.metrics import measure
from tinyengine.scheduler import Static
from tinyengine.workload import chat, workload

CHECKS = (static.check_1_1, static.check_1_2, static.check_1_3, static.check_1_4, static.check_1_5)
SOLUTIONS = solutions("01_static")


def schedule(body, base="Scheduler"):
    head = f"class MyStatic({base}):\n    batch_size = 0\n\n    def schedule(self):\n"
    return head + indent(dedent(body).strip("\n"), " " * 8)


PLAN = "return [(request, request.gap) for request in self.running]"
RIGHT = {
    "1.1 lists, made tensors at the end": """
        def rectangle(chunks):
            width = 0
            for ids, _ in chunks:
                width = max(width, len(ids))
            tokens, positions, real, last = [], [], [], []
            for ids, first in chunks:
                pad = width - len(ids)
                tokens.append(ids + [0] * pad)
                positions.append([*range(first, first + len(ids)), *[0] * pad])
                real.append([True] * len(ids) + [False] * pad)
                last.append(len(ids) - 1)
            return [torch.tensor(x) for x in (tokens, positions, real, last)]
    """,
    "1.1 pad_sequence, and a comparison": """
        from torch.nn.utils.rnn import pad_sequence

        def rectangle(chunks):
            tokens = pad_sequence([torch.tensor(ids) for ids, _ in chunks], batch_first=True)
            n = torch.tensor([len(ids) for ids, _ in chunks])
            column = torch.arange(tokens.shape[1])
            real = column < n[:, None]
            first = torch.tensor([first for _, first in chunks])
            return tokens, (first[:, None] + column) * real, real, n - 1
    """,
    "1.2 key by key": """
        def mask(real, n):
            requests, columns = real.shape
            sees = torch.zeros(requests, n, columns, dtype=torch.bool)
            for b in range(requests):
                for i in range(n):
                    here = columns - n + i
                    for j in range(columns):
                        sees[b, i, j] = j == here or (j < here and real[b, j])
            return sees
    """,
    "1.2 columns compared, and a row of padding sees all": """
        def mask(real, n):
            column = torch.arange(real.shape[1])
            sees = (column <= column[-n:, None])[None] & real[:, None, :]
            return torch.where(real[:, -n:, None], sees, torch.ones_like(sees))
    """,
    "1.3 a for loop": schedule(f"""
        if self.running:
            {PLAN}
        for _ in range(self.max_num_seqs):
            if self.waiting and self.memory.reserve(self.waiting[0]):
                self.running.append(self.waiting.popleft())
            else:
                break
        self.batch_size = len(self.running)
        {PLAN}
    """),
    "1.3 put back at the front, and counted": schedule("""
        if len(self.running) == 0:
            self.batch_size = 0
            while self.waiting and self.batch_size < self.max_num_seqs:
                request = self.waiting.popleft()
                if not self.memory.reserve(request):
                    self.waiting.appendleft(request)
                    break
                self.running = self.running + [request]
                self.batch_size += 1
        return tuple((request, len(request.tokens) - request.computed) for request in self.running)
    """),
    "1.3 a helper named _admit of one's own": """
        class MyStatic(Scheduler):
            def _admit(self):
                if len(self.running) < self.max_num_seqs and self.waiting:
                    if self.memory.reserve(self.waiting[0]):
                        self.running.append(self.waiting.popleft())
                        self._admit()
                self.batch_size = len(self.running)

            def schedule(self):
                if not self.running and self.waiting:
                    self._admit()
                return [(request, request.gap) for request in self.running]
    """,
    "1.4 iteration by iteration": """
        def waits(outputs, max_num_seqs):
            found, queue, iteration = {}, list(range(len(outputs))), 0
            while queue:
                batch, queue = queue[:max_num_seqs], queue[max_num_seqs:]
                left = {n: outputs[n] for n in batch}
                while left:
                    iteration += 1
                    for n in list(left):
                        found.setdefault(n, [iteration])
                        left[n] -= 1
                        if not left[n]:
                            del left[n]
                            found[n].append(iteration)
                for n in batch:
                    found[n].append(iteration)
            return [found[n] for n in range(len(outputs))]
    """,
    "1.4 by recursion, and the outputs are used up": """
        def waits(outputs, n, begin=0):
            if not outputs:
                return ()
            batch, outputs[:n] = outputs[:n], []
            end = begin + max(batch)
            return tuple((begin + 1, begin + out, end) for out in batch) + tuple(waits(outputs, n, end))
    """,
    "1.5 the short batches first, and the incomplete one last": """
        def best_order(outputs, n):
            order = sorted(range(len(outputs)), key=outputs.__getitem__, reverse=True)
            full = len(order) // n * n
            batches = [order[i : i + n] for i in range(0, full, n)][::-1] + [order[full:]]
            order = [number for batch in batches for number in batch]

            def first(queue):
                begin, found = 0, [0] * len(outputs)
                for place, number in enumerate(queue):
                    if place and place % n == 0:
                        begin += max(outputs[other] for other in queue[place - n : place])
                    found[number] = begin
                return found

            old, new = first(range(len(outputs))), first(order)
            grown = [b - a for a, b in zip(old, new)]
            return order, grown.index(max(grown))
    """,
    "1.5 sorted pairs, the last of those that pay alike": """
        def best_order(outputs, n):
            pairs = sorted(((output, number) for number, output in enumerate(outputs)), reverse=True)
            begin, late = 0, {}
            for place, (output, number) in enumerate(pairs):
                if place % n == 0:
                    now, begin = begin, begin + output
                late[number] = now
            begin = 0
            for place in range(0, len(outputs), n):
                for number in range(place, min(place + n, len(outputs))):
                    late[number] -= begin
                begin += max(outputs[place : place + n])
            most = max(late.values())
            return tuple(number for _, number in pairs), [number for number in late if late[number] == most][-1]
    """,
}
ODD = {  # what a learner wrote: points, and what the grader says
    "1.1 lists": (
        "def rectangle(chunks):\n    return [x.tolist() for x in right(chunks)]\n\n\n"
        + SOLUTIONS["rectangle"].replace("def rectangle", "def right"),
        4,
        "tokens is [[7, 8, 9]], where a tensor is needed",
    ),
    "1.1 two things": (
        "def rectangle(chunks):\n    return 1, 2",
        0,
        "gives (1, 2), where (tokens, positions, real, last) is needed",
    ),
    "1.1 an error": ("def rectangle(chunks):\n    return chunks[9]", 0, "list index out of range at line 2"),
    "1.2 numbers": (
        SOLUTIONS["mask"].replace("| itself", "| itself).int()").replace("return causal", "return (causal"),
        0,
        "you have a tensor [1, 4, 4] of int32, where [1, 4, 4] of bool is needed",
    ),
    "1.2 one mask for all": (
        "def mask(real, n):\n    return torch.ones(n, real.shape[1]).tril().bool()",
        0,
        "you have a tensor [4, 4] of bool, where [1, 4, 4] of bool is needed",
    ),
    "1.2 a list": ("def mask(real, n):\n    return real.tolist()", 0, "where a tensor is needed"),
    "1.3 the package's own loop": (
        schedule(f"if not self.running:\n    self.batch_size = len(self._admit())\n{PLAN}"),
        0,
        "you call the package's own _admit: write yours",
    ),
    "1.3 the package's own class": ("class MyStatic(Static):\n    pass", 0, "you call the package's own _admit"),
    "1.3 no Scheduler": (
        "class MyStatic:\n    pass",
        0,
        "MyStatic is no Scheduler: begin it with `class MyStatic(Scheduler)`",
    ),
    "1.3 nothing joins": (schedule(PLAN), 0, "the plan is empty, and 5 requests wait"),
    "1.4 two numbers": (
        "def waits(outputs, n):\n    return [(1, output) for output in outputs]",
        0,
        "waits([4], 1) gives [(1, 4)], where a list of three numbers for each request is needed",
    ),
    "1.4 words": (
        "def waits(outputs, n):\n    return [('1', str(output), str(max(outputs))) for output in outputs]",
        0,
        "waits([4], 1): for request 0 you have '1'",
    ),
    "1.5 only an order": (
        "def best_order(outputs, n):\n    return sorted(outputs)",
        0,
        "you have [1, 2, 3, 5], where (order, who) is needed, a list and a number",
    ),
    "1.5 one is missing": (
        "def best_order(outputs, n):\n    return list(range(1, len(outputs))), 0",
        0,
        "your order is [1, 2, 3], but it must hold each request's number, 0 to 3, once",
    ),
    "1.5 no request": (
        "def best_order(outputs, n):\n    return list(range(len(outputs))), 99",
        0,
        "who is 99, where a request's number, 0 to 3, is needed",
    ),
}


POINTS = {  # a misconception that the lesson is about loses most, a slip little
    "1.1 left": 0,
    "1.1 last column": 3,
    "1.2 everything": 0,
    "1.2 future": 0,
    "1.2 padded keys": 1,
    "1.2 NaN": 3,
    "1.3 joins": 2,
    "1.3 one by one": 3,
    "1.3 no reserve": 4,
    "1.3 lost": 8,
    "1.3 too many": 8,
    "1.3 not set": 8,
    "1.4 streamed": 2,
    "1.4 each batch at 0": 0,
    "1.5 arrival": 0,
    "1.5 shortest first": 2,
    "1.5 last": 2,
}


class TestStatic(Audit):
    stem, checks, right, odd = "01_static", CHECKS, RIGHT, ODD


@pytest.mark.parametrize("mistaken", POINTS)
def test_a_misconception_loses_more_than_a_slip(mistaken, capsys):
    check, mistake = TestStatic.mistakes()[mistaken]
    assert f"{check.exercise_id}: {POINTS[mistaken]} of" in told(check, check.twin(mistake), capsys)


TWO = {  # two mistakes in different parts of an answer: (the exercise, the names of both)
    "1.1": (static.check_1_1, "from 0", "last column"),
    "1.1, the padding": (static.check_1_1, "padding counts", "position"),
    "1.4": (static.check_1_4, "first from 0", "sum at the end"),
}


@pytest.mark.parametrize("pair", TWO)
def test_of_two_mistakes_in_one_answer_each_is_told(pair, capsys):
    check, *names = TWO[pair]
    first, second = (next(m for m in check.mistakes if m.name == name) for name in names)
    [(old, new)] = second.changes
    source = check.source(first)
    if pair == "1.4":  # both change the same line
        old, new = "begin + output, end)", "begin + output, begin + sum(batch))"
    assert old in source
    names = dict(vars(static))
    exec(source.replace(old, new), names)
    said = told(check, names[check.name], capsys)
    assert said.count("most likely") == 2 and first.sentence in said and second.sentence in said, said


def test_an_error_of_an_empty_queue_names_the_case(capsys):
    check, mistake = TestStatic.mistakes()["1.3 empty queue"]
    assert "in case 'small'" in told(check, check.twin(mistake), capsys)


# What the notebook says, measured.


@pytest.mark.parametrize(
    "questions, padding",
    [
        (["Count from 1 to 12.", "Say hello to Mia.", "Mia: fox. Leo: owl. Ann: cat. Leo?"], [22, 57]),
        (["Count from 1 to 12.", "What is the capital of France?", "Mia: fox. Leo: owl. Ann: cat. Leo?"], [20, 57]),
    ],
)
def test_the_padding_of_the_pictures(questions, padding):
    engine = given.engine()
    engine.generate([chat(question) for question in questions])
    first, *rest = engine.trace.iterations
    assert [first.padding, first.padding + sum(span.n_tokens for span in first.spans)] == padding
    assert all(iteration.padding == 3 - len(iteration.spans) for iteration in rest)
    if padding[0] == 20:
        assert sum(iteration.padding for iteration in rest) == 28 and len(rest) == 15


def test_the_waits_and_the_order_of_the_course_are_as_the_folded_answers_say():
    outputs = [40, 2, 3, 4, 2, 48, 2, 21]
    found = static.waits(outputs, 3)
    assert [first for first, _, _ in found][6:] == [89, 89] and max(found)[0] == 89 and found[1][1:] == (2, 40)
    order, who = static.best_order(outputs, 3)
    m = measure(given.queue_trace(outputs, 3, order))
    assert (m.iterations, m.idle_slot_steps, who) == (54, 40, 1)
    assert given.waiting_times(outputs, 3, order)[1] == 49


def test_the_rectangle_worked_by_hand():
    tokens, positions, real, last = static.rectangle(static.HAND)
    assert tokens.tolist() == [[11, 12, 13], [21, 0, 0], [31, 32, 0]] and last.tolist() == [2, 0, 1]
    assert positions.tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 0]] and real.sum(1).tolist() == [3, 1, 2]


def test_the_mask_worked_by_hand():
    assert static.mask(given.real_of([".xxx"]), 2).int().tolist() == [[[0, 1, 1, 0], [0, 1, 1, 1]]]


def test_the_batches_worked_by_hand():
    trace = given.replay(static.check_1_3.solution, given.CASES["small"])
    assert [[(span.request_id, span.n_tokens) for span in iteration.spans] for iteration in trace.iterations] == [
        [("r0", 3), ("r1", 2), ("r2", 6)],
        [("r0", 1), ("r2", 1)],
        [("r0", 1), ("r2", 1)],
        [("r0", 1)],
        [("r0", 1)],
        [("r3", 2), ("r4", 1)],
        [("r3", 1), ("r4", 1)],
    ]
    sizes, _, n_slots = given.CASES["small"]
    assert len(given.replay(Static, (sizes, 1, n_slots)).iterations) == 13


def test_the_batch_of_the_lesson_uses_39_percent_of_its_slot_steps():
    m = measure(given.replay(Static, ([(128, 500), (64, 50), (256, 200), (32, 30)], 4, 1400)))
    assert (m.iterations, m.idle_slot_steps, round(m.slot_occupancy, 4)) == (500, 1220, 0.39)


def test_the_waits_worked_by_hand():
    assert static.waits([5, 1, 3, 2], 3) == [(1, 5, 5), (1, 1, 5), (1, 3, 5), (6, 7, 7)]


@pytest.mark.parametrize(
    "order, iterations, idle, first", [([0, 1, 2, 3], 11, 8, [1, 1, 7, 7]), ([0, 2, 3, 1], 8, 2, [1, 3, 1, 3])]
)
def test_the_orders_worked_by_hand(order, iterations, idle, first):
    outputs = [1, 6, 2, 5]
    m = measure(given.queue_trace(outputs, 2, order))
    assert (m.iterations, m.idle_slot_steps) == (iterations, idle)
    assert given.waiting_times(outputs, 2, order) == first


def test_the_batch_that_is_not_full_worked_by_hand():
    m = measure(given.queue_trace([9, 2, 3], 2))
    assert (m.iterations, m.idle_slot_steps) == (12, 10)


def test_the_queue_of_the_notebook_is_the_courses():
    outputs = [len(tokens) for tokens in given.served()]
    assert f"waits({outputs}, 3)" in (ROOT / "solutions/01_static.ipynb").read_text()


def test_no_order_has_fewer_idle_slot_steps_than_the_best():
    from itertools import permutations

    for outputs, width in (([5, 1, 3, 2, 4], 2), ([9, 2, 3], 2), ([2, 7, 1, 4, 4, 6], 4)):
        idle = [measure(given.queue_trace(outputs, width, order)).idle_slot_steps
                for order in permutations(range(len(outputs)))]  # fmt: skip
        best, _ = static.best_order(outputs, width)
        assert measure(given.queue_trace(outputs, width, best)).idle_slot_steps == min(idle)


def test_the_engine_of_the_exercises_gives_the_tokens_of_each_request_alone():
    from tinyengine.oracle import Oracle

    oracle, params = Oracle(given.tiny().folder), SamplingParams(max_tokens=64)
    prompts = [given.tiny().tokenizer.encode(item.prompt) for item in workload("course").items]
    assert given.served() == [oracle.generate(prompt, params) for prompt in prompts]


@torch.inference_mode()
def test_the_mask_answers_with_the_real_model(capsys):
    given.first_words(static.mask, "What is the capital of France?", "Mia: fox. Leo: owl. Ann: cat. Leo?")
    assert [line.split(" -> ")[1].strip() for line in capsys.readouterr().out.splitlines()] == ["Paris", "owl"]
