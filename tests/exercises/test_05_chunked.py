"""Exercises 05: each mistake of the referee's tables, run as a learner's answer, loses points and is told by its
sentence; right answers written in other ways get all points; odd ones are told in a sentence."""

from inspect import getsource
from itertools import combinations
from random import Random

import pytest
from helpers.course import Audit, solutions

from tinyengine.course import budgeting as given
from tinyengine.course import five_faults
from tinyengine.course.referees import chunked
from tinyengine.course.watch import serve
from tinyengine.memory import Blocks
from tinyengine.priority import UrgentQueue
from tinyengine.request import Request, SamplingParams, Slo
from tinyengine.sampler import accept
from tinyengine.scheduler import Chunked

CHECKS = tuple(getattr(chunked, f"check_5_{number}") for number in range(1, 7))
SOLUTIONS = solutions("05_chunked")


def changed(name, *changes):
    """A solution, written in another way."""
    text = SOLUTIONS[name]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def mended(*left):
    """The repaired scheduler with these faults left in it."""
    return changed("Repaired", *(change for name in left for change in chunked.FAULTS[name]))


RIGHT = {
    "5.1 one helper for both passes": """
        class MyChunked(Scheduler):
            def __init__(self, memory, max_num_seqs=8, max_num_batched_tokens=512):
                super().__init__(memory, max_num_seqs)
                self.max_num_batched_tokens = max_num_batched_tokens

            def schedule(self):
                self.left, plan = self.max_num_batched_tokens, []
                for request in list(self.running):
                    while request in self.running and self.left > 0:
                        if self.give(request, plan):
                            break
                        self.preempt(self.running[-1])
                while self.left > 0 and self.waiting and self.max_num_seqs > len(self.running):
                    request = self.waiting.popleft()
                    if not self.memory.admit(request):
                        self.waiting.appendleft(request)
                        break
                    self.running.append(request)
                    assert self.give(request, plan)
                return tuple(plan)

            def give(self, request, plan):
                n_tokens = min(len(request.tokens) - request.computed, self.left)
                if not self.memory.grow(request, request.computed + n_tokens):
                    return False
                plan.append([request, n_tokens])
                self.left -= n_tokens
                return True

            def preempt(self, request):
                self.running.pop()
                self.memory.release(request)
                request.computed = 0
                self.waiting.appendleft(request)
    """,
    "5.1 answers first, then prompts, and no admission in a step that preempts": """
        class MyChunked(Scheduler):
            def __init__(self, memory, max_num_seqs=8, max_num_batched_tokens=512):
                super().__init__(memory, max_num_seqs)
                self.max_num_batched_tokens = max_num_batched_tokens

            def schedule(self):
                plan, waited = {}, len(self.waiting)
                for request in sorted(self.running, key=lambda request: request.gap > 1):
                    left = self.max_num_batched_tokens - sum(plan.values())
                    n_tokens = min(request.gap, left)
                    while n_tokens and request in self.running:
                        if self.memory.grow(request, request.computed + n_tokens):
                            plan[request] = n_tokens
                            break
                        self.preempt(self.running[-1])
                while len(self.waiting) <= waited and self.waiting and len(self.running) < self.max_num_seqs:
                    left = self.max_num_batched_tokens - sum(plan.values())
                    request = self.waiting[0]
                    if left == 0 or not self.memory.admit(request):
                        break
                    self.running.append(self.waiting.popleft())
                    plan[request] = min(request.gap, left)
                    self.memory.grow(request, plan[request])
                return list(plan.items())

            def preempt(self, request):
                self.running.remove(request)
                self.memory.release(request)
                request.computed = 0
                self.waiting.appendleft(request)
    """,
    "5.2 by numpy": """
        def token_budget(steps, promise):
            import numpy as np

            per_token, fixed = np.polyfit(*zip(*steps), 1)
            if fixed + per_token > promise:
                raise ValueError("no budget")
            return np.floor((promise - fixed) / per_token)
    """,
    "5.2 counted up": """
        def token_budget(steps, promise):
            number, tokens, seconds = len(steps), sum(n for n, _ in steps), sum(s for _, s in steps)
            squares, products = sum(n * n for n, _ in steps), sum(n * s for n, s in steps)
            slope = (number * products - tokens * seconds) / (number * squares - tokens**2)
            begin, budget = (seconds - slope * tokens) / number, 0
            while begin + slope * (budget + 1) <= promise:
                budget += 1
            if not budget:
                raise ValueError(promise)
            return budget
    """,
    "5.3 sorted": """
        def choose_victim(running):
            return sorted(running, key=lambda request: (request.priority, request.arrival))[-1]
    """,
    "5.3 a loop": """
        def choose_victim(running):
            victim = running[0]
            for request in running[1:]:
                least = request.priority > victim.priority
                if least or (request.priority == victim.priority and request.arrival >= victim.arrival):
                    victim = request
            return victim
    """,
    "5.4 step by step": """
        def next_in_queue(waiting, now):
            def rank(request):
                waited, rank = now - request.arrival, request.priority
                while waited >= PATIENCE:
                    waited, rank = waited - PATIENCE, rank - 1
                return rank

            best = min(map(rank, waiting))
            left = [request for request in waiting if rank(request) == best]
            due = [request for request in left if request.deadline is not None]
            if due:
                first = min(request.deadline for request in due)
                left = [request for request in due if request.deadline == first]
            return sorted(left, key=lambda request: request.arrival)[0]
    """,
    "5.4 a flag for no deadline": """
        def next_in_queue(waiting, now):
            def key(pair):
                place, request = pair
                rank = request.priority - int((now - request.arrival) / PATIENCE)
                return rank, request.deadline is None, request.deadline or 0, request.arrival, place

            return min(enumerate(waiting), key=key)[1]
    """,
    "5.5 a for loop, and a list": """
        def accepted(guesses, chosen):
            for place, (guess, choice) in enumerate(zip(guesses, chosen)):
                if choice == EOS or guess != choice:
                    return [place, choice, len(guesses) - place]
            return [len(guesses), chosen[-1], 0]
    """,
    "5.5 tensors": """
        def accepted(guesses, chosen):
            import torch

            one, two = torch.tensor(guesses), torch.tensor(chosen)
            holds = ((one == two[:-1]) & (two[:-1] != EOS)).cumprod(0).sum()
            return holds, two[holds], len(one) - holds
    """,
    "5.6 as 5.1, with tiles": """
        class Repaired(Scheduler):
            def __init__(self, memory, max_num_seqs=8, max_num_batched_tokens=16):
                super().__init__(memory, max_num_seqs)
                self.max_num_batched_tokens = max_num_batched_tokens

            def schedule(self):
                plan, budget = [], self.max_num_batched_tokens
                while budget and len(plan) < len(self.running):
                    request = self.running[len(plan)]
                    n_tokens = self.cut(request, budget)
                    if self.memory.grow(request, request.computed + n_tokens):
                        plan.append((request, n_tokens))
                        budget -= n_tokens
                    else:
                        victim = self.running.pop()
                        self.memory.release(victim)
                        victim.computed = 0
                        self.waiting.appendleft(victim)
                while budget and self.waiting and len(self.running) < self.max_num_seqs:
                    if not self.memory.admit(self.waiting[0]):
                        break
                    request = self.waiting.popleft()
                    self.running.append(request)
                    n_tokens = self.cut(request, budget)
                    self.memory.grow(request, n_tokens)
                    plan.append((request, n_tokens))
                    budget -= n_tokens
                return plan

            def cut(self, request, budget):
                n_tokens = min(request.gap, budget)
                if n_tokens < request.gap and n_tokens > 4:
                    n_tokens -= n_tokens % 4
                return n_tokens

            def emits(self, request, n_tokens):
                return n_tokens == request.gap
    """,
    "5.6 the last chunk first": changed(
        "Repaired",
        (
            "        if request.gap <= self.left:\n            return request.gap\n"
            "        return self.left // self.tile * self.tile or self.left",
            "        n_tokens = min(request.gap, self.left)\n"
            "        is_last = n_tokens == request.gap or n_tokens < self.tile\n"
            "        return n_tokens if is_last else n_tokens - n_tokens % self.tile",
        ),
    ),
}
ODD = {  # what a learner wrote: points, and what the grader says
    "5.1 the package's Paged": (
        changed(
            "MyChunked",
            ("n_tokens = min(request.gap, budget)", "n_tokens = request.gap"),
            ("budget -= n_tokens", "budget -= 0"),
        ),
        3,
        "a long prompt alone: iteration 1: the plan has 21 tokens, and the budget is 8",
    ),
    "5.1 no budget in the class": (
        "class MyChunked(Scheduler):\n    def schedule(self):\n        return []",
        0,
        "unexpected keyword argument 'max_num_batched_tokens'",
    ),
    "5.1 names": (
        changed("MyChunked", ("plan.append((request, n_tokens))", "plan.append((request.request_id, n_tokens))")),
        0,
        "schedule() gives a list with (str, int) in it",
    ),
    "5.1 a newcomer joins before it is known what is left": (
        changed(
            "MyChunked", (chunked.PASSES, chunked.EARLY + chunked.PASSES.split("        while budget and self.w")[0])
        ),
        7,
        "r3 joins, and no token of the budget is left for it",
    ),
    "5.4 all alike": (
        changed("next_in_queue", ("(now - request.arrival) //", "now //")),
        2,
        "waiting makes nobody more urgent than the others",
    ),
    "5.2 words": ("def token_budget(steps, promise):\n    return 'many'", 0, "you give 'many'"),
    "5.3 nothing": ("def choose_victim(running):\n    max(running)", 0, "did you forget to return?"),
    "5.4 a number": ("def next_in_queue(waiting, now):\n    return 0", 0, "you choose 0"),
    "5.5 a number": ("def accepted(guesses, chosen):\n    return 2", 0, "gives 2, where (guesses that hold, token,"),
    "5.6 nothing mended": (getsource(five_faults.Broken).replace("Broken", "Repaired"), 0, "the plan has 12 tokens"),
    "5.6 no emits": (SOLUTIONS["Repaired"].replace("def emits", "def gives"), 0, "no attribute 'emits'"),
}


class TestChunked(Audit):
    stem, checks, right, odd = "05_chunked", CHECKS, RIGHT, ODD
    seeds = 2


SETS = [names for count in range(6) for names in combinations(chunked.FAULTS, count)]


@pytest.mark.parametrize("left", SETS, ids="+".join)
def test_each_fault_costs_its_own_line_whatever_else_is_mended(left, capsys):
    names = dict(vars(chunked))
    exec(mended(*left), names)
    chunked.check_5_6(names["Repaired"])
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith(("  ok ", "  wrong "))]
    of_faults = dict(zip(chunked.FAULTS, lines))
    assert {name for name, line in of_faults.items() if line.startswith("  wrong ")} == set(left), said
    assert f"5.6: {5 - len(left) + (not left)} of 6 points" in said, said
    sentences = {mistake.name: mistake.sentence for mistake in chunked.check_5_6.mistakes}
    assert all(sentences[name] in said for name in left), said


def test_the_broken_scheduler_is_the_repaired_one_with_the_five_faults():
    broken = mended(*chunked.FAULTS)
    with_head = getsource(five_faults.Broken).replace("Broken", "Repaired").replace("; with five faults", "")
    assert broken == with_head


def test_the_chunks_worked_by_hand():
    sizes = [(3, 4), (13, 3), (2, 3), (6, 1)]
    scheduler = given.with_budget(chunked.MyChunked, 8)(Blocks(20, 4), 3)
    assert plans(serve(scheduler, sizes)) == [
        {"r0": 3, "r1": 5}, {"r0": 1, "r1": 7}, {"r0": 1, "r1": 1, "r2": 2}, {"r0": 1, "r1": 1, "r2": 1},
        {"r1": 1, "r2": 1, "r3": 6},
    ]  # fmt: skip


def plans(trace):
    return [{span.request_id: span.n_tokens for span in step.spans} for step in trace.iterations]


@pytest.mark.parametrize("case", [*chunked.CASES.values(), *given.draw_cases(Random(7), 20)], ids=str)
def test_the_solution_plans_what_the_package_plans(case):
    sizes, max_num_seqs, n_blocks, budget = case
    both = [given.with_budget(kind, budget)(Blocks(n_blocks, 4), max_num_seqs) for kind in (chunked.MyChunked, Chunked)]
    mine, theirs = (plans(serve(scheduler, sizes)) for scheduler in both)
    assert mine == theirs


def test_the_budget_worked_by_hand():
    steps = [(8, 0.009), (16, 0.015), (24, 0.015)]
    assert chunked.token_budget(steps, 0.020) == 34
    with pytest.raises(ValueError, match=r"1 token takes 0\.00737 s, more than 0\.007 s"):
        chunked.token_budget(steps, 0.007)


def test_the_line_of_an_answer_is_told_by_its_budgets():
    fixed, per_token = given.line_of(chunked.token_budget, [(8, 0.009), (16, 0.015), (24, 0.015)], 0.020)
    assert (fixed, per_token) == (pytest.approx(0.007, rel=0.01), pytest.approx(0.000375, rel=0.01))
    assert given.line_of(lambda steps, promise: 7, [(8, 0.009), (16, 0.015)], 0.020) is None


def test_without_patience_the_order_of_the_queue_is_the_packages(monkeypatch):
    monkeypatch.setattr(chunked, "PATIENCE", 10**9)
    for waiting, now in chunked.draw_queues(Random(3)):
        queue = UrgentQueue()
        for one in sorted(waiting, key=lambda one: one.arrival):
            slo = Slo(None if one.deadline is None else one.deadline - one.arrival)
            queue.append(Request(one.name, [1], arrival=one.arrival, priority=one.priority, slo=slo))
        assert chunked.next_in_queue(sorted(waiting, key=lambda one: one.arrival), now).name == queue[0].request_id


def test_the_draft_is_verified_as_the_sampler_verifies_it():
    for guesses, chosen in [*chunked.DRAFTS, *chunked.ENDS, *chunked.draw_drafts(Random(1))]:
        request = Request("r", [5, 6], SamplingParams(max_tokens=99), eos_token_ids=(given.EOS,))
        request.tokens += guesses
        request.guesses = len(guesses)
        holds, token, back = chunked.accepted(guesses, chosen)
        assert [*guesses[:holds], token] == accept(request, chosen) and back == len(guesses) - holds
