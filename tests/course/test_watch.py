"""A scheduler under watch: each broken rule is told by case, iteration and request; a run without fault is silent."""

from random import Random

import pytest

from tinyengine.course.exercise import exercise
from tinyengine.course.watch import Watch, draw_cases, guarded, keeps, replay, serve, smallest
from tinyengine.memory import Blocks
from tinyengine.scheduler import Chunked, Orca, Scheduler, Static

SMALL = ([(3, 5), (2, 1), (6, 3), (2, 2), (1, 2)], 3, 20)
ROOMY = ([(4, 6), (4, 2), (4, 3), (4, 1), (4, 5), (4, 2), (4, 4), (4, 1)], 3, 200)


class Own(Scheduler):
    """What Orca does, in one's own words; `keep` is what a test changes."""

    def schedule(self):
        while self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        return self.plan()

    def plan(self):
        return [(request, request.gap) for request in self.running]


def planning(change):
    return type("Own", (Own,), {"plan": change})


def scheduling(schedule):
    return type("Own", (Own,), {"schedule": schedule})


def pops(self):
    while self.waiting and len(self.running) < self.max_num_seqs:
        request = self.waiting.popleft()
        if not self.memory.reserve(request):
            break
        self.running.append(request)
    return self.plan()


def stays(self):
    for request in self.waiting:
        if len(self.running) == self.max_num_seqs or not self.memory.reserve(request):
            break
        self.running.append(request)
    return self.plan()


def unreserved(self):
    while self.waiting and len(self.running) < self.max_num_seqs:
        self.running.append(self.waiting.popleft())
    return self.plan()


def twice(self):
    plan = Own.schedule(self)
    for request in self.running[-1:]:
        self.memory.reserve(request)
    return plan


def early(self):
    while self.waiting and self.memory.reserve(self.waiting[0]) and len(self.running) < self.max_num_seqs:
        self.running.append(self.waiting.popleft())
    return self.plan()


def crowd(self):
    while self.waiting and self.memory.reserve(self.waiting[0]):
        self.running.append(self.waiting.popleft())
    return self.plan()


def overtakes(self):
    for request in list(self.waiting):
        if len(self.running) < self.max_num_seqs and self.memory.reserve(request):
            self.waiting.remove(request)
            self.running.append(request)
    return self.plan()


def to_the_end(self):
    plan = Own.schedule(self)
    if self.waiting:
        self.waiting.append(self.waiting.popleft())
    return plan


def refused_to_the_end(self):
    while self.waiting and len(self.running) < self.max_num_seqs:
        request = self.waiting.popleft()
        if not self.memory.reserve(request):
            self.waiting.append(request)
            break
        self.running.append(request)
    return self.plan()


def later_first(self):
    new = [self.waiting.popleft() for _ in range(min(len(self.waiting), self.max_num_seqs - len(self.running)))]
    for request in reversed(new):
        if self.memory.reserve(request):
            self.running.append(request)
        else:
            self.waiting.appendleft(request)
    return self.plan()


def sorts(self):
    plan = Own.schedule(self)
    self.waiting = type(self.waiting)(sorted(self.waiting, key=lambda request: request.max_slots))
    return plan


def a_queue(self):
    return self.memory.reserve(self.waiting)


def not_run(self):
    while self.waiting and self.memory.reserve(self.waiting[0]):
        return [(self.waiting[0], self.waiting.popleft().gap)]
    return []


WRONG = {
    "no list": (
        planning(lambda self: None),
        SMALL,
        "plan",
        "1: schedule() gives None, but a list of (request, n_tokens) pairs",
    ),
    "a number": (planning(lambda self: 3), SMALL, "plan", "schedule() gives 3, an int"),
    "no pairs": (planning(lambda self: self.running), SMALL, "plan", "gives a list with Request in it"),
    "text": (
        planning(lambda self: [(r, "1") for r in self.running]),
        SMALL,
        "plan",
        "a list with (Request, str) in it",
    ),
    "one token": (
        planning(lambda self: [(r, 1) for r in self.running]),
        SMALL,
        "plan",
        "1: r0 is planned with 1 token, but",
    ),
    "whole prompt": (
        planning(lambda self: [(r, r.num_prompt_tokens) for r in self.running]),
        SMALL,
        "plan",
        "2: r0 is planned with 3 tokens, which is not its gap",
    ),
    "twice in it": (planning(lambda self: Own.plan(self) * 2), SMALL, "plan", "1: r0 is in the plan 2 times"),
    "left out": (
        planning(lambda self: Own.plan(self)[1:]),
        SMALL,
        "plan",
        "1: r0 is in self.running and not in the plan",
    ),
    "not in running": (scheduling(not_run), SMALL, "plan", "r0 is in the plan, but not in self.running"),
    "ended": (
        planning(lambda self: [(r, r.gap or 1) for r in self.__dict__.setdefault("all", list(self.running))]),
        SMALL,
        "plan",
        "2: r1 is in the plan, and it has ended",
    ),
    "lost": (scheduling(pops), SMALL, "plan", "2: r3 is lost: it has left self.waiting and is not in self.running"),
    "in both": (scheduling(stays), SMALL, "plan", "1: r0 runs and is still in self.waiting"),
    "empty": (scheduling(lambda self: []), SMALL, "plan", "1: the plan is empty, and 5 requests wait"),
    "a queue": (scheduling(a_queue), SMALL, "plan", "memory.reserve() is given a Queue, but a request is needed"),
    "_admit": (scheduling(Orca.schedule), SMALL, "plan", "you call the package's own _admit: write yours"),
    "the package's": (Orca, SMALL, "plan", "you call the package's own _admit: write yours"),
    "crowd": (scheduling(crowd), ROOMY, "size", "1: 8 requests run, and max_num_seqs is 3"),
    "unreserved": (
        scheduling(unreserved),
        SMALL,
        "memory",
        "1: r0 runs, but memory.reserve() has not granted it K/V slots",
    ),
    "reserved twice": (
        scheduling(twice),
        SMALL,
        "memory",
        "memory.reserve() has granted r4 its K/V slots twice: ask once",
    ),
    "reserved early": (scheduling(early), ROOMY, "memory", "1: K/V slots are reserved for r3, which does not join"),
    "overtakes": (scheduling(overtakes), SMALL, "order", "2: r4 joins, and r3, which came first, still waits"),
    "to the end": (
        scheduling(to_the_end),
        SMALL,
        "order",
        "1: r4 now stands before r3 in self.waiting, but came later",
    ),
    "refused to the end": (
        scheduling(refused_to_the_end),
        SMALL,
        "order",
        "2: r3 was refused and is no longer first in self.waiting: leave it there",
    ),
    "later first": (scheduling(later_first), SMALL, "order", "asked for a later request before an earlier one"),
    "sorted": (scheduling(sorts), SMALL, "order", "1: r4 now stands before r3 in self.waiting, but came later"),
}


@pytest.mark.parametrize("made, case, rule, words", WRONG.values(), ids=WRONG)
def test_what_breaks_a_rule_is_told(made, case, rule, words):
    run = Watch(made, case, named="it")
    assert words in run.faults[rule] and run.faults[rule].startswith("case 'it', iteration "), run.faults


def test_the_run_that_breaks_a_rule_is_kept_to_be_drawn(monkeypatch):
    run = Watch(scheduling(overtakes), SMALL, named="it")
    assert run.when["order"] == 2 and len(run.trace.iterations) > 2
    halted = Watch(planning(lambda self: [(r, 1) for r in self.running]), SMALL)
    assert halted.when == {"plan": 1} and halted.trace.iterations == []
    drawn = []
    monkeypatch.setattr("tinyengine.course.checks.show_run", lambda *run: drawn.append(run))

    @exercise("2.1", points=4, solution=Own, mistakes=[])
    def check_2_1(c, answer):
        runs = c.cases("runs", answer, {"small": SMALL}, lambda answer, _: Watch(answer, SMALL, named="small"))
        keeps(c, runs, None)

    check_2_1(Own)
    assert drawn == []
    check_2_1(scheduling(overtakes))
    [(trace, iteration)] = drawn
    assert iteration == 2 and len(trace.iterations) > 2


def test_a_run_without_fault_is_silent_and_counted():
    run = Watch(Own, SMALL)
    assert (run.faults, run.late, run.idle, len(run.plans)) == ({}, "", 2, 6)  # the last plan is empty
    assert run.plans[0] == [("r0", 3), ("r1", 2), ("r2", 6)]


def test_one_that_could_have_joined_is_seen_the_first_time():
    def static(self):
        return self.plan() if self.running else Own.schedule(self)

    run = Watch(scheduling(static), SMALL, named="small")
    assert run.late == "case 'small', iteration 4: r3 waits, while a batch slot and the K/V slots for it are free"
    assert (run.faults, run.idle) == ({}, 8)


def test_a_cap_is_told_to_the_scheduler_and_watched():
    run = Watch(Own, SMALL, "small", most="cap", cap=1)
    assert run.faults["cap"] == "case 'small' with cap = 1, iteration 1: 3 requests join, and cap allows 1"


def test_errors_and_endless_loops_of_the_learner_reach_the_check():
    def endless(self):
        while True:
            pass

    for schedule, error in ((endless, "a loop never ends"), (lambda: [], "takes 0 positional arguments")):
        with pytest.raises(Exception, match=error):
            Watch(scheduling(schedule), SMALL)
    with pytest.raises(Exception, match="a loop never ends"):
        replay(scheduling(endless), SMALL)


def test_a_plan_of_ended_requests_ends_too():
    keeps_all = planning(lambda self: [(r, 1) for r in self.__dict__.setdefault("all", list(self.running))])
    with pytest.raises(RuntimeError, match="5,000 iterations, and still a plan"):
        replay(keeps_all, ([(1, 2)], 1, 10))


def test_a_case_without_a_name_is_told_as_small_as_it_can_be(capsys):
    @exercise("2.1", points=4, solution=Own, mistakes=[])
    def check_2_1(c, answer):
        runs = c.cases("runs", answer, draw_cases(Random(1), 4), Watch)
        keeps(c, runs, lambda case: Watch(answer, case))

    check_2_1(scheduling(lambda self: Own.schedule(self)))
    assert "4 of 4 points" in capsys.readouterr().out
    check_2_1(scheduling(crowd))
    said = capsys.readouterr().out
    assert "3 of 4 points" in said
    sizes = said.split("case (")[1].split("]")[0]
    assert sizes.count("(") == 3, said  # one more than the two that its batch holds


def test_smallest():
    assert smallest(([1, 2, 3, 4], "x"), lambda case: 3 in case[0]) == ([3], "x")
    assert smallest(([1], "x"), lambda case: True) == ([1], "x")


def test_drawn_cases_depend_on_the_seed_alone_and_can_be_served():
    assert draw_cases(Random(5)) == draw_cases(Random(5)) != draw_cases(Random(6))
    for seed in range(20):
        for case in draw_cases(Random(seed)):
            assert Watch(Own, case).faults == {}


def test_any_scheduler_can_be_served():
    assert len(replay(Static, SMALL).iterations) == 7
    trace = serve(guarded(Chunked(Blocks(8, 4), max_num_seqs=2, max_num_batched_tokens=4)), [(6, 3), (2, 2)])
    assert trace.block_size == 4 and sum(span.n_tokens for it in trace.iterations for span in it.spans) == 6 + 2 + 2 + 1


def test_settings_are_attributes_of_the_scheduler():
    seen = []
    replay(scheduling(lambda self: seen.append(self.cap) or Own.schedule(self)), SMALL, cap=7)
    assert set(seen) == {7}
