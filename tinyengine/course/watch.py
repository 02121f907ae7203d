"""A scheduler under watch: it serves a few requests with dummy tokens, and what breaks a rule is noted. No torch.

    run = Watch(MyOrca, ([(3, 5), (2, 1)], 3, 20))
    run.faults    # {"order": "iteration 2: r1 joins, and r0, which came first, still waits"}
    run.idle      # idle slot-steps

A case is (sizes, max_num_seqs, n_slots), a size is (prompt, output) in tokens. The requests are named r0, r1, ..., and
all of them wait from the start.
"""

from itertools import pairwise
from numbers import Integral

from tinyengine.course.checks import a_type, ends, quote
from tinyengine.memory import Slots
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Scheduler
from tinyengine.trace import Trace

LONGEST = 5000  # iterations of a run


class Halt(Exception):
    """The run cannot go on; the reason is noted."""


def some(number: int, thing: str) -> str:
    """1 token, 2 tokens"""
    return f"{number} {thing}{'s' * (number != 1)}"


def new_trace(scheduler) -> Trace:
    memory = scheduler.memory
    contiguous = getattr(memory, "contiguous", False)
    return Trace(type(scheduler).__name__, scheduler.max_num_seqs, memory.n_slots, memory.block_size, contiguous)


def serve(scheduler, sizes, trace: Trace | None = None) -> Trace:
    """Serves requests of (prompt, output) tokens with dummy tokens: only the scheduler counts.

    sizes: a list, whose requests are named r0, r1, ..., or a dict by name. trace: is filled.
    """
    memory, trace = scheduler.memory, new_trace(scheduler) if trace is None else trace
    named = sizes if isinstance(sizes, dict) else {f"r{number}": size for number, size in enumerate(sizes)}
    for name, (prompt, output) in named.items():
        request = Request(name, [1] * prompt, SamplingParams(max_tokens=output, ignore_eos=True))
        scheduler.add(request)
        trace.arrive(request)
    while plan := scheduler.schedule():
        now = len(trace.iterations)
        if now == LONGEST:
            raise RuntimeError(f"{LONGEST:,} iterations, and still a plan: an empty one ends the run")
        tokens = [2 if n_tokens == request.gap else None for request, n_tokens in plan]
        trace.record(plan, tokens, memory, time=now, duration=1)
        for request, _, finish_reason in scheduler.commit(plan, tokens):
            if finish_reason:
                trace.event("finish", request.request_id, finish_reason)
    return trace


def replay(scheduler_class, case: tuple, **settings) -> Trace:
    """Serves a case with a new scheduler of this class; settings: attributes that it is given."""
    sizes, max_num_seqs, n_slots = case
    scheduler = scheduler_class(Slots(n_slots), max_num_seqs=max_num_seqs)
    vars(scheduler).update(settings)
    return serve(guarded(scheduler), sizes)


def draw_cases(random, number: int = 4) -> list[tuple]:
    """Cases of 3 to 9 requests, in an arena that holds one of the largest to three of them."""
    cases = []
    for _ in range(number):
        sizes = [(random.randint(1, 9), random.randint(1, 12)) for _ in range(random.randint(3, 9))]
        largest = max(map(sum, sizes))
        cases.append((sizes, random.randint(2, 4), random.randint(largest, 3 * largest)))
    return cases


def guarded(scheduler):
    """The same scheduler, but an endless loop in its schedule() is stopped."""
    schedule = scheduler.schedule
    scheduler.schedule = lambda: ends(schedule)
    return scheduler


class Ledger(Slots):
    """Slots that remember which requests they granted and refused. note(rule, sentence) hears of a wrong question."""

    def __init__(self, n_slots: int, note):
        super().__init__(n_slots)
        self.note, self.granted, self.refused = note, [], []

    def reserve(self, request) -> bool:
        if not isinstance(request, Request):
            self.note("plan", f"memory.reserve() is given a {type(request).__name__}, but a request is needed")
            raise Halt
        granted = super().reserve(request)
        (self.granted if granted else self.refused).append(request.request_id)
        return granted

    def fits(self, request: Request) -> bool:
        return any(len(hole) >= request.max_slots for hole in self.holes)


class Watch:
    """One run of a scheduler class; named: what the learner knows the case by.

    settings: attributes that the scheduler is given. most: which of them, if any, is the most requests that may join in
    one iteration.

    faults: {rule: the first sentence}, in the order of time. plans: (request id, tokens) in each iteration, sorted.
    idle: idle slot-steps. late: where the first of the queue could have joined for the first time and did not, or "".
    trace: of the iterations that ran. when: the iteration of each fault, and of `late`, from 1.
    """

    rules = {
        "plan": "every plan serves each running request with its gap",
        "size": "the batch never exceeds max_num_seqs",
        "memory": "K/V slots are reserved once, before a request runs",
        "order": "first come, first served",
    }
    forbidden = ("_admit",)  # methods of the package that would be the answer

    def __init__(self, scheduler_class, case: tuple, named=None, most: str = "", **settings):
        sizes, self.max_num_seqs, n_slots = case
        self.scheduler_class, self.most, self.settings = scheduler_class, most, settings
        told = " and ".join(f"{name} = {value}" for name, value in settings.items())
        self.label = f"case {named or case!r}" + (f" with {told}" if told else "")
        self.turn = {f"r{number}": number for number in range(len(sizes))}
        self.memory = self.arena(n_slots)
        self.faults, self.when, self.plans, self.late, self.idle = {}, {}, [], "", 0
        scheduler = self._scheduler()
        self.trace = new_trace(scheduler)
        try:
            serve(scheduler, sizes, self.trace)
            self.idle = sum(self.max_num_seqs - len(iteration.spans) for iteration in self.trace.iterations)
        except Halt:
            pass

    def arena(self, n_slots: int):
        """The memory of the run."""
        return Ledger(n_slots, self.note)

    def _scheduler(self):
        """A new scheduler of the class, whose every plan is looked at."""
        run, made = self, self.scheduler_class

        class Watched(made):
            def schedule(self):
                run.memory.refused = []
                queue, ran = list(self.waiting), list(self.running)
                plan = ends(super().schedule)
                run.look(self, queue, ran, plan)
                return plan

        Watched.__name__ = Watched.__qualname__ = made.__name__  # as errors tell it
        for name in self.forbidden:
            if getattr(made, name, None) is getattr(Scheduler, name):

                def own(scheduler, *_, name=name):
                    run.note("plan", f"you call the package's own {name}: write yours")
                    raise Halt

                setattr(Watched, name, own)
        scheduler = Watched(self.memory, max_num_seqs=self.max_num_seqs)
        vars(scheduler).update(self.settings)
        return scheduler

    def behaviour(self) -> list:
        """What shows a mistake."""
        return [self.faults, self.plans]

    def here(self) -> str:
        return f"{self.label}, iteration {len(self.plans) + 1}"

    def note(self, rule: str, sentence: str) -> None:
        self.faults.setdefault(rule, f"{self.here()}: {sentence}")
        self.when.setdefault(rule, len(self.plans) + 1)

    def look(self, scheduler, queue, ran, plan) -> None:
        """Notes what this iteration breaks. queue, ran: the requests that waited and that ran before it. Raises Halt
        where the run cannot go on."""
        self.look_at_form(plan)
        self.look_at_plan(scheduler, plan)
        self.look_at_places(scheduler, queue, plan)
        if "plan" in self.faults:
            raise Halt
        waiting, running = list(scheduler.waiting), list(scheduler.running)
        if len(running) > self.max_num_seqs:
            self.note("size", f"{len(running)} requests run, and max_num_seqs is {self.max_num_seqs}")
        self.look_at_memory(waiting, running)
        self.look_at_order(queue, waiting, running)
        self.look_at_joining(waiting, running, len([request for request in running if request not in ran]))
        self.plans.append(sorted((request.request_id, n_tokens) for request, n_tokens in plan))

    def look_at_form(self, plan) -> None:
        """A list of (request, n_tokens) pairs."""
        if not isinstance(plan, list | tuple):
            forgot = ": did you forget to return?" if plan is None else ""
            odd = f"{quote(plan)}, {a_type(plan)}" if plan is not None else "None"
        else:
            item = next((item for item in plan if not is_pair(item)), None)
            if all(map(is_pair, plan)):
                return
            group = isinstance(item, tuple | list)
            inside = f"({', '.join(type(part).__name__ for part in item)})" if group else type(item).__name__
            forgot = ""
            odd = f"a {type(plan).__name__} with {inside} in it"
        self.note("plan", f"schedule() gives {odd}, but a list of (request, n_tokens) pairs is needed{forgot}")
        raise Halt

    def look_at_plan(self, scheduler, plan) -> None:
        """Each of the plan runs, once, with its gap."""
        ids = [request.request_id for request, _ in plan]
        for request, n_tokens in plan:
            name, planned = request.request_id, f"is planned with {some(n_tokens, 'token')}"
            if ids.count(name) > 1:
                self.note("plan", f"{name} is in the plan {some(ids.count(name), 'time')}")
            elif request.finished:
                self.note("plan", f"{name} is in the plan, and it has ended")
            elif n_tokens != request.gap and not request.computed:
                self.note("plan", f"{name} {planned}, but it joins, and its whole prompt is open: plan its gap")
            elif n_tokens != request.gap:
                self.note("plan", f"{name} {planned}, which is not its gap")
            elif request not in scheduler.running:
                self.note("plan", f"{name} is in the plan, but not in self.running: it would be forgotten")

    def look_at_places(self, scheduler, queue, plan) -> None:
        """Each request that is there waits, or runs and is in the plan; and the plan is not empty for nothing."""
        planned = [request for request, _ in plan]
        for request in [*queue, *scheduler.running]:
            waits, runs, name = request in scheduler.waiting, request in scheduler.running, request.request_id
            if not (waits or runs):
                self.note("plan", f"{name} is lost: it has left self.waiting and is not in self.running")
            elif waits and runs:
                self.note("plan", f"{name} runs and is still in self.waiting: take it out when it joins")
            elif runs and request not in planned:
                self.note("plan", f"{name} is in self.running and not in the plan")
        if not plan and scheduler.waiting:
            number = len(scheduler.waiting)
            self.note("plan", f"the plan is empty, and {some(number, 'request')} wait{'s' * (number == 1)}")

    def look_at_memory(self, waiting, running) -> None:
        """A request that runs holds memory, granted once; one that waits holds none."""
        granted = self.memory.granted
        for request in running:
            if not request.table:
                self.note("memory", f"{request.request_id} runs, but memory.reserve() has not granted it K/V slots")
            if granted.count(request.request_id) > 1:
                self.note("memory", f"memory.reserve() has granted {request.request_id} its K/V slots twice: ask once")
        for request in waiting:
            if request.table:
                self.note("memory", f"K/V slots are reserved for {request.request_id}, which does not join")
        try:
            self.memory.check()
        except AssertionError as error:
            self.note("memory", f"the arena's books are wrong: {error}")

    def look_at_order(self, queue, waiting, running) -> None:
        """First come, first served, by the order of `add`, whatever has become of the queue since."""
        in_turn = sorted(waiting, key=self.place)
        first = in_turn[0] if in_turn else None
        for request in running:
            if request in queue and first and self.place(first) < self.place(request):
                name = first.request_id
                self.note("order", f"{request.request_id} joins, and {name}, which came first, still waits")
        if waiting != in_turn:
            if first.request_id in self.memory.refused and waiting[0] is not first:
                name = first.request_id
                self.note("order", f"{name} was refused and is no longer first in self.waiting: leave it there")
            later, sooner = next(pair for pair in pairwise(waiting) if self.place(pair[0]) > self.place(pair[1]))
            names = later.request_id, sooner.request_id
            self.note("order", f"{names[0]} now stands before {names[1]} in self.waiting, but came later")
        asked = [self.turn[request_id] for request_id in self.memory.granted]
        if asked != sorted(asked):
            self.note("order", "memory.reserve() is asked for a later request before an earlier one")

    def look_at_joining(self, waiting, running, joined: int) -> None:
        """Not more than may, and as many as can: the first time that one more could have joined is kept in `late`."""
        most = self.settings.get(self.most) or self.max_num_seqs
        if joined > most:
            self.note("cap", f"{some(joined, 'request')} join{'s' * (joined == 1)}, and {self.most} allows {most}")
        is_free = len(running) < self.max_num_seqs and joined < most
        if not self.late and waiting and is_free and self.memory.fits(waiting[0]):
            name = waiting[0].request_id
            self.late = f"{self.here()}: {name} waits, while a batch slot and the K/V slots for it are free"
            self.when["late"] = len(self.plans) + 1

    def place(self, request: Request) -> int:
        return self.turn[request.request_id]


def is_pair(item) -> bool:
    """(request, n_tokens)"""
    pair = isinstance(item, tuple | list) and len(item) == 2
    return pair and isinstance(item[0], Request) and isinstance(item[1], Integral)


def keeps(c, runs, again, rules=(), worth=None) -> bool:
    """One line of the check for each rule, of one point; only the broken ones where a plan cannot run. False where a
    rule is broken. runs: whose `got` is a Watch. again(case): a new Watch, since a case without a name is told as small
    as it can be. rules: only these. worth: the points of those that have other than one. In a notebook the first run
    that breaks a rule is drawn.
    """
    kept, can_run, worth = True, not any("plan" in run.got.faults for run in runs), worth or {}
    for rule in rules or runs[0].got.rules:
        name, points = runs[0].got.rules[rule], worth.get(rule, 1)
        broken = next((run for run in runs if rule in run.got.faults), None)
        if broken is None:
            if can_run:
                c.true(name, True, "", points)
            continue
        watch, kept = broken.got, False
        if not isinstance(broken.case, str):
            watch = again(smallest(broken.case, lambda case, rule=rule: rule in again(case).faults))
        c.true(name, False, watch.faults[rule], points)
        c.draw(watch.trace, watch.when[rule])
    return kept


def smallest(case: tuple, fails) -> tuple:
    """The case with the fewest requests that still fails: they are taken out one by one while it does."""
    sizes, number = list(case[0]), 0
    while number < len(sizes):
        fewer = sizes[:number] + sizes[number + 1 :]
        if fewer and fails((fewer, *case[1:])):
            sizes = fewer
        else:
            number += 1
    return (sizes, *case[1:])


def real_tokens(scheduler=None, max_num_seqs: int = 3) -> list[list[int]]:
    """The tokens that the real engine gives for the course's workload."""
    from tinyengine import Engine, load_model
    from tinyengine.workload import workload

    model = load_model("tiny", device="cpu")
    engine = Engine(model, "orca", scheduler=scheduler, max_num_seqs=max_num_seqs, num_slots=320, fast=False)
    return [output.token_ids for output in workload("course").replay(engine)]
