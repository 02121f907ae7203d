"""The referee of exercises 05: a scheduler with a token budget, the budget from a promise, a victim, a queue with
deadlines, the guesses of a draft, and a scheduler with five faults."""

import random
from math import inf
from statistics import fmean

from tinyengine.course import budgeting
from tinyengine.course.budgeting import EOS, PATIENCE, Budgeted, Ticket
from tinyengine.course.checks import ends, quote, same
from tinyengine.course.exercise import call, exercise, source_text
from tinyengine.course.five_faults import PROMISES, TILED, State, Tiled, state_told
from tinyengine.course.watch import smallest, some
from tinyengine.scheduler import Scheduler

# 5.1: name: (sizes, max_num_seqs, n_blocks, budget); blocks of 4 slots
CASES = {
    "short prompts": ([(4, 6), (4, 2), (4, 3), (3, 1), (4, 5), (4, 2)], 3, 20, 12),
    "a long prompt alone": ([(21, 3)], 2, 8, 8),
    "a long prompt among answers": ([(2, 9), (3, 8), (20, 3), (2, 4)], 4, 30, 6),
    "several share the budget": ([(3, 4), (13, 3), (2, 3), (6, 1)], 3, 20, 8),
    "blocks run out": ([(4, 9), (4, 9), (4, 9)], 3, 4, 12),
    "blocks run out in a prompt": ([(3, 12), (2, 9), (18, 2), (1, 3)], 4, 8, 5),
}


def between(definition, first: str, last: str) -> str:
    """The text of a solution from `first` up to `last`."""
    text = source_text(definition)
    return text[text.index(first) : text.index(last, text.index(first))]


class MyChunked(Scheduler):
    """A token budget: those that run come first, and long prompts come in chunks."""

    def __init__(self, memory, max_num_seqs=8, max_num_batched_tokens=512):
        super().__init__(memory, max_num_seqs)
        self.max_num_batched_tokens = max_num_batched_tokens

    def schedule(self):
        """This iteration's [(request, n_tokens), ...]; [] when nothing can run."""
        plan, budget = [], self.max_num_batched_tokens
        while budget and len(plan) < len(self.running):
            request = self.running[len(plan)]
            n_tokens = min(request.gap, budget)
            if self.memory.grow(request, request.computed + n_tokens):
                plan.append((request, n_tokens))
                budget -= n_tokens
            else:
                self.preempt(self.running[-1])
        while budget and self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self.memory.admit(request):
                break
            self.running.append(self.waiting.popleft())
            n_tokens = min(request.gap, budget)
            self.memory.grow(request, request.computed + n_tokens)
            plan.append((request, n_tokens))
            budget -= n_tokens
        return plan

    def preempt(self, request):
        """Its blocks go back; it waits in front, to compute all its tokens anew."""
        self.running.remove(request)
        self.memory.release(request)
        request.computed = 0
        self.waiting.appendleft(request)


CHUNK = "n_tokens = min(request.gap, budget)\n"
FIRST, SECOND = f"{CHUNK}            if", f"{CHUNK}            self"
PAY_1, PAY_2 = "                budget -= n_tokens\n", "            budget -= n_tokens\n        return"
NEWEST = "self.preempt(self.running[-1])"
PASSES = between(MyChunked, "        while budget and len(plan)", "        return plan")
SECOND_PASS = between(MyChunked, "        while budget and self.waiting", "        return plan")
BEHIND = """        for request in ran:
            n_tokens = min(request.gap, budget)
            while n_tokens and request in self.running:
                if self.memory.grow(request, request.computed + n_tokens):
                    plan.append((request, n_tokens))
                    budget -= n_tokens
                    break
                self.preempt(self.running[-1])
"""
EARLY = """        while self.waiting and len(self.running) < self.max_num_seqs and self.memory.admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
"""
CHUNKED_MISTAKES = [
    ("joins for nothing", "requests join before you know what those that run leave: some join and get no token",
     (PASSES, EARLY + PASSES[: PASSES.index("        while budget and self.waiting")])),
    ("joins after the budget", "requests join also when the budget is used up",
     ("        while budget and self.waiting", "        while self.waiting")),
    ("joins, and not into the plan", "requests join also when the budget is used up, and stay out of the plan",
     ("        while budget and self.waiting", "        while self.waiting"),
     ("            plan.append((request, n_tokens))\n            budget -= n_tokens\n        return",
      "            if n_tokens:\n                plan.append((request, n_tokens))\n            budget -= n_tokens\n"
      "        return")),
    ("no batch slots", "requests join whether a batch slot is free or not",
     (" and len(self.running) < self.max_num_seqs", "")),
    ("newcomers first", "you let others join before those that run have got their tokens",
     ("plan, budget = [], self.max_num_batched_tokens", "plan, budget, ran = [], self.max_num_batched_tokens, "
      "list(self.running)"), (PASSES, SECOND_PASS + BEHIND)),
    ("no budget", "you plan whole gaps, and never look at the budget", (CHUNK, "n_tokens = request.gap\n"),
     (PAY_1, ""), (PAY_2, "        return")),
    ("in requests", "you count the budget in requests: it is tokens", (PAY_1, "                budget -= 1\n"),
     (PAY_2, "            budget -= 1\n        return")),
    ("not paid by newcomers", "newcomers take nothing off the budget", (PAY_2, "        return")),
    ("not paid by those that run", "those that run take nothing off the budget", (PAY_1, "")),
    ("each its own", "each pass begins with a whole budget: there is one for both",
     ("        while budget and self.waiting", "        budget = self.max_num_batched_tokens\n        while budget and "
      "self.waiting")),
    ("never cut", "a prompt that is larger than what is left of the budget waits for a larger rest: it can be cut",
     ("            if not self.memory.admit(request):", "            if request.gap > budget or not "
      "self.memory.admit(request):")),
    ("decodes only", "a running request gets one token, also where more of its prompt is open",
     (FIRST, "n_tokens = 1\n            if")),
    ("one newcomer", "one request joins per iteration, however much of the budget is left",
     (PAY_2, "            break\n        return")),
    ("no newcomers beside a prompt", "no request joins beside the last chunk of a prompt, though there is budget left",
     ("        while budget and self.waiting", "        reads = any(n > 1 for _, n in plan)\n        while "
      "not reads and budget and self.waiting")),
    ("whole prompt", "a newcomer gets the blocks of its whole prompt at once: it needs those of its chunk",
     (SECOND + ".memory.grow(request, request.computed + n_tokens)",
      SECOND + ".memory.grow(request, len(request.tokens))")),
    ("by chunk", "grow() wants the number of all tokens that are computed then, not of the new ones",
     ("if self.memory.grow(request, request.computed + n_tokens)", "if self.memory.grow(request, n_tokens)")),
    ("no blocks", "a newcomer is admitted and gets no blocks: grow() gives them",
     ("            self.memory.grow(request, request.computed + n_tokens)\n", "")),
    ("first chunk", "a request joins when its first chunk fits: memory.admit() asks for all its tokens",
     ("            if not self.memory.admit(request):\n                break\n            self.running",
      "            self.memory.holders[request.request_id] = request\n            if not self.memory.grow(request, "
      "min(request.gap, budget)):\n                del self.memory.holders[request.request_id]\n                "
      "break\n            self.running")),
    ("itself", "you preempt the request that lacks a block: the newest gives way", (NEWEST, "self.preempt(request)")),
    ("oldest first", "you preempt the oldest request, though it is in the plan: the newest gives way",
     (NEWEST, "self.preempt(self.running[0])")),
    ("oldest", "you preempt the oldest request: the newest gives way", (NEWEST,
     "self.preempt(self.running[0])\n                budget += sum(n for _, n in plan[:1])\n                "
     "plan = plan[1:]")),
    ("skipped", "a request that lacks a block is left out of the plan, and nobody gives way", (NEWEST, "return plan")),
    ("too many", "you admit one request too many: a batch slot must be free before a request joins",
     ("< self.max_num_seqs", "<= self.max_num_seqs")),
    ("overtakes", "a smaller request overtakes one that does not fit: all behind that one wait",
     ("request = self.waiting[0]\n            if not self.memory.admit(request):",
      "request = next(filter(self.memory.admit, self.waiting), None)\n            if request is None:"),
     ("self.running.append(self.waiting.popleft())",
      "self.waiting.remove(request)\n            self.running.append(request)")),
    ("no return", "schedule() makes a plan and does not return it", ("        return plan", "        plan = None")),
]  # fmt: skip


def run(scheduler_class, case):
    named = case if isinstance(case, str) else None
    return Budgeted(scheduler_class, CASES.get(named, case), named)


def runs_right(c, name: str, runs, again, points: int = 1, but=(), only=None) -> bool:
    """A line of the check for these runs, whose `got` is a Budgeted. In a notebook the first broken one is drawn.

    again(case): a new Budgeted, since a drawn case is told as small as it can be. but, only: rules.
    """

    def faults(watch):
        return [rule for rule in watch.faults if rule not in but and rule == (only or rule)]

    broken = next((run for run in runs if faults(run.got)), None)
    if broken is None:
        return c.true(name, True, "", points)
    rule, watch = faults(broken.got)[0], broken.got
    if not isinstance(broken.case, str):
        watch = again(smallest(broken.case, lambda case: rule in again(case).faults))
    c.draw(watch.trace, watch.when[rule])
    return c.true(name, False, watch.faults[rule].removeprefix(f"case {name!r}, "), points)


@exercise("5.1", points=8, solution=MyChunked, mistakes=CHUNKED_MISTAKES, part=True)
def check_5_1(c, answer):
    def again(case):
        return run(answer, case)

    runs, right = c.cases("schedule() runs", answer, CASES, run, Budgeted.behaviour, budgeting.draw_cases), []
    runs, drawn = runs[: len(CASES)], runs[len(CASES) :]
    if all("plan" in run.got.faults and not run.got.plans for run in runs):
        runs_right(c, "a plan", runs, again)
        return c.wait("the rest")
    right.append(runs_right(c, "no block is held before its chunk is computed", runs, again, only="more"))
    right.append(runs_right(c, "who joins gets a token", runs, again, 0, only="joins"))
    for own in runs:
        right.append(runs_right(c, own.case, [own], again, but=["more", "joins"]))
    if not all(right) or not runs_right(c, "drawn requests", drawn, again, points=0):
        return c.wait("the real engine")
    told = "with it a request gets other tokens than alone"
    c.equal("the real engine gives the tokens of each request alone", lambda: budgeting.served(MyChunked=answer),
            budgeting.served, because=lambda *_: told)  # fmt: skip


# 5.2: name: (steps, promise); a step is (tokens, seconds)
STEPS = {
    "steps on a line": [
        ([(10, 0.0135), (50, 0.0155)], 0.02002), ([(8, 0.012), (16, 0.0132), (64, 0.0204)], 0.0395),
        ([(8, 0.04), (24, 0.09)], 0.0215), ([(8, 0.04), (24, 0.09)], 0.0185),
    ],
    "three or four steps beside their line": [
        ([(8, 0.009), (16, 0.015), (24, 0.015)], 0.02), ([(200, 0.04), (20, 0.02), (20, 0.024), (110, 0.029)], 0.0301),
        ([(2, 0.5), (4, 0.7), (9, 1.1)], 0.44),
    ],
    "a promise that no budget keeps": [
        ([(8, 0.04), (24, 0.09)], 0.0172), (budgeting.MEASURED, 0.00011), (budgeting.MEASURED, 0.0001),
    ],
    "measured steps": [(budgeting.MEASURED, 0.0198), (budgeting.MEASURED, 0.05)],
}  # fmt: skip


def token_budget(steps, promise):
    """The largest budget that keeps `promise` seconds, by a line through the steps."""
    mean_tokens = fmean(tokens for tokens, _ in steps)
    mean_seconds = fmean(seconds for _, seconds in steps)
    both = sum((n - mean_tokens) * (seconds - mean_seconds) for n, seconds in steps)
    per_token = both / sum((n - mean_tokens) ** 2 for n, _ in steps)
    fixed = mean_seconds - per_token * mean_tokens
    budget = int((promise - fixed) / per_token)
    least = fixed + per_token
    if budget < 1:
        raise ValueError(f"1 token takes {least:.3g} s, more than {promise} s")
    return budget


INVERT, REFUSE = "int((promise - fixed) / per_token)", "    if budget < 1:\n"
RAISE = 'raise ValueError(f"1 token takes {least:.3g} s, more than {promise} s")'
SUMS = "both / sum((n - mean_tokens) ** 2 for n, _ in steps)"
BUDGET_MISTAKES = [
    ("mean per token", "you take the mean seconds of a token: an iteration has a fixed cost besides",
     (SUMS, "mean_seconds / mean_tokens")),
    ("mean of means", "you take the mean of each step's seconds per token: an iteration has a fixed cost besides",
     (SUMS, "fmean(seconds / n for n, seconds in steps)"), ("mean_seconds - per_token * mean_tokens", "0")),
    ("through 0", "your line begins at 0 seconds: it may begin higher",
     (SUMS, "sum(n * s for n, s in steps) / sum(n * n for n, _ in steps)"),
     ("mean_seconds - per_token * mean_tokens", "0")),
    ("the ends", "you draw the line through two of the steps: all of them count",
     (SUMS, "(max(steps)[1] - min(steps)[1]) / (max(steps)[0] - min(steps)[0])"),
     ("mean_seconds - per_token * mean_tokens", "min(steps)[1] - per_token * min(steps)[0]")),
    ("first and last", "you draw the line through the first and the last step: all of them count",
     (SUMS, "(steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])"),
     ("mean_seconds - per_token * mean_tokens", "steps[0][1] - per_token * steps[0][0]")),
    ("slope of the ends", "your seconds per token come from the smallest and the largest step: all of them count",
     (SUMS, "(max(steps)[1] - min(steps)[1]) / (max(steps)[0] - min(steps)[0])")),
    ("slope of the first and last", "your seconds per token come from the first and the last step: all of them count",
     (SUMS, "(steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])")),
    ("the other way", "you fit tokens by seconds: the errors are in the seconds",
     (SUMS, "sum((s - mean_seconds) ** 2 for _, s in steps) / both")),
    ("fixed forgotten", "you fit the fixed cost, and leave it out of the budget", ("(promise - fixed)", "promise")),
    ("fixed added", "you add the fixed cost to the promise: it has to be taken from it", ("(promise - fixed)",
     "(promise + fixed)")),
    ("up", "you round up: that budget breaks the promise", (INVERT, "-int((fixed - promise) / per_token // 1)")),
    ("nearest", "you round to the nearest: half of the time that breaks the promise", ("int(", "round(")),
    ("one less", "you take one token less than the promise allows", (INVERT, INVERT + " - 1")),
    ("largest measured", "you take a size that was measured: the line says what is between them",
     (REFUSE, "    budget = max((n for n, _ in steps if n <= budget), default=budget)\n" + REFUSE)),
    ("not beyond", "you stop at the largest size that was measured: the line goes on after it",
     (REFUSE, "    budget = min(budget, max(n for n, _ in steps))\n" + REFUSE)),
    ("at least 1 always", "you give 1 token where even that breaks the promise", (RAISE, "return 1")),
    ("0", "you give 0 tokens where no budget keeps the promise, and then nothing ever runs", (RAISE, "return 0")),
    ("negative", "you give less than 1 token where no budget keeps the promise",
     ("int((promise", "math.floor((promise"), (RAISE, "pass"),
     ("def token_budget", "import math\n\n\ndef token_budget")),
    ("too strict", "you refuse a promise that 1 token keeps", ("budget < 1", "budget <= 1")),
    ("a fraction", "you give a part of a token: a budget is whole", (INVERT, INVERT[3:])),
]  # fmt: skip
REFUSED = "ValueError: "


def budgeted(answer, case):
    """The budget, or the words of a ValueError."""
    try:
        return ends(answer, list(case[0]), case[1])
    except ValueError as error:
        return f"{REFUSED}{error}"


def budget_view(got):
    return REFUSED if str(got).startswith(REFUSED) else got


def draw_steps(random):
    """Measured steps that lie beside a line, and promises whose budget does not depend on rounding."""
    cases = []
    while len(cases) < 6:
        fixed, each = random.uniform(0.005, 0.02), random.uniform(0.0001, 0.001)
        sizes = random.sample(range(4, 300), random.randint(2, 7))
        steps = [(n, round((fixed + each * n) * random.uniform(0.9, 1.15), 5)) for n in sizes]
        promise = round(fixed + each * random.randint(30, 500), 4)
        mean_n, mean_s = fmean(n for n, _ in steps), fmean(s for _, s in steps)
        slope = sum((n - mean_n) * (s - mean_s) for n, s in steps) / sum((n - mean_n) ** 2 for n, _ in steps)
        exact = (promise - mean_s) / slope + mean_n if slope > 0 else 0
        if exact > 2 and slope * mean_n < mean_s and 0.1 < exact % 1 < 0.4:
            cases.append((steps, promise))
    return cases


def wrong_budget(run) -> str:
    """What is wrong with a budget, in a sentence; "" where it is right."""
    (steps, promise), got, want = run.case, run.got, run.want
    if same(budget_view(got), budget_view(want)):
        return ""
    told = f"steps {quote(steps)}, a promise of {promise} s: you "
    if budget_view(got) == REFUSED:
        return f"{told}raise a {got}, and there is a budget that keeps it"
    if budget_view(want) == REFUSED:
        return f"{told}give {quote(got)}, and no budget keeps it"
    side = "" if not isinstance(got, int | float) else ", too many" if got > want else ", too few"
    return f"{told}give {quote(got)}{side}"


def by_line(c, groups: dict, answer, wrong, name: str, **how) -> list:
    """A line of the check for each group of cases; drawn ones count to the last. wrong(run): what is, in a sentence."""
    cases = [case for group in groups.values() for case in group]
    runs, first = c.cases(name, answer, cases, **how), 0
    for line, group in groups.items():
        end = first + len(group)
        trouble = next(filter(None, map(wrong, runs[first : None if end == len(cases) else end])), "")
        c.true(line, not trouble, trouble)
        first = end
    return runs


@exercise("5.2", points=4, solution=token_budget, mistakes=BUDGET_MISTAKES)
def check_5_2(c, answer):
    by_line(c, STEPS, answer, wrong_budget, "it fits", behave=budgeted, view=budget_view, drawn=draw_steps)


# 5.3
VICTIMS = {
    "one priority": [
        [Ticket("a", 0, 4), Ticket("b", 0, 7), Ticket("c", 0, 9)],
        [Ticket("a", 1, 8), Ticket("b", 1, 9), Ticket("c", 1, 3), Ticket("d", 1, 5)],
        [Ticket("a", 2, 5)],
    ],
    "several priorities": [
        [Ticket("a", 2, 4), Ticket("b", 0, 7), Ticket("c", 1, 9)],
        [Ticket("a", 0, 3), Ticket("b", 1, 5), Ticket("c", 1, 2), Ticket("d", 0, 9)],
        [Ticket("a", -1, 3), Ticket("b", -2, 5), Ticket("c", -1, 2, 30)],
    ],
    "the same arrival": [
        [Ticket("a", 0, 4), Ticket("b", 0, 4), Ticket("c", 0, 1)],
        [Ticket("a", 1, 2), Ticket("b", 3, 6), Ticket("c", 3, 6), Ticket("d", 2, 6)],
    ],
}


def choose_victim(running):
    """The request that gives its blocks back."""
    return max(reversed(running), key=lambda one: (one.priority, one.arrival))


VICTIM = "max(reversed(running), key=lambda one: (one.priority, one.arrival))"
VICTIM_MISTAKES = [
    ("last", "you take the last of the batch, whatever its priority is", (VICTIM, "running[-1]")),
    ("first", "you take the first of the batch", (VICTIM, "running[0]")),
    ("newest", "you take the newest, whatever its priority is", ("(one.priority, one.arrival)",
     "one.arrival")),
    ("arrival first", "you compare arrival before priority", ("(one.priority, one.arrival)",
     "(one.arrival, one.priority)")),
    ("most urgent", "you take from the most urgent requests: a small number is urgent", ("(one.priority",
     "(-one.priority")),
    ("oldest", "of the least urgent you take the one that came first", ("one.arrival)", "-one.arrival)")),
    ("priority only", "you look at the priority, and never at the arrival", ("(one.priority, one.arrival)",
     "one.priority")),
    ("first of equals", "of requests with the same priority and arrival you take the first of the batch",
     ("reversed(running)", "running")),
    ("best", "you take the one that should stay longest", ("max(", "min(")),
    ("changed", "you change the list `running`: only say who", (VICTIM,
     "running.pop(max(range(len(running)), key=lambda n: (running[n].priority, running[n].arrival, n)))")),
    ("name", "you give a name, and a request is needed", (VICTIM, VICTIM + ".name")),
    ("list", "you give a list, and one request is needed", (VICTIM, f"[{VICTIM}]")),
]  # fmt: skip


def victim(answer, case):
    """(the victim, whether the list is as it was)"""
    running = list(case)
    got = ends(answer, running)
    return None if got is None else (got, running == case)


def draw_tickets(random):
    def ticket(name):
        due = random.choice((None, random.randint(20, 40)))
        return Ticket(name, random.randint(0, 3), random.randint(0, 12), due)

    return [[ticket(name) for name in "abcdef"[: random.randint(2, 6)]] for _ in range(8)]


def wrong_victim(run) -> str:
    got, kept = run.got
    if not kept:
        return f"of {quote(run.case)}: your call changes `running`"
    return "" if got == run.want[0] else f"of {quote(run.case)} you choose {quote(got)}"


@exercise("5.3", points=3, solution=choose_victim, mistakes=VICTIM_MISTAKES)
def check_5_3(c, answer):
    by_line(c, VICTIMS, answer, wrong_victim, "it chooses", behave=victim, drawn=draw_tickets)


# 5.4: name: [(waiting, now), ...]
QUEUES = {
    "by priority, then by arrival": [
        ([Ticket("a", 1, 3), Ticket("b", 0, 5), Ticket("c", 2, 1)], 6),
        ([Ticket("a", 1, 7), Ticket("b", 1, 4), Ticket("c", 1, 6)], 8),
        ([Ticket("a", 1, 4), Ticket("b", 1, 4)], 5),
        ([Ticket("a", -1, 4), Ticket("b", 0, 2)], 5),
    ],
    "deadlines": [
        ([Ticket("a", 0, 1, 12), Ticket("b", 0, 3, 9), Ticket("c", 0, 2, 10)], 4),
        ([Ticket("a", 0, 1), Ticket("b", 0, 3, 20), Ticket("c", 0, 2)], 5),
        ([Ticket("a", 1, 2, 6), Ticket("b", 0, 3, 30), Ticket("c", 0, 2)], 5),
        ([Ticket("a", 0, 3, 5), Ticket("b", 0, 1, 8)], 7),
        ([Ticket("a", 0, 3, 0), Ticket("b", 0, 1)], 7),
    ],
    "a stream of urgent requests: nobody waits for ever": [(budgeting.rush(),)],
    "waiting makes urgent": [
        ([Ticket("a", 1, 0), Ticket("b", 1, 11)], 12),
        ([Ticket("a", 1, 2), Ticket("b", 0, 11)], 12),
        ([Ticket("a", 1, 3), Ticket("b", 0, 11, 14)], 12),
        ([Ticket("a", 3, 0), Ticket("b", 1, 25), Ticket("c", 2, 19, 40)], 30),
        ([Ticket("a", 0, 0), Ticket("b", -2, 25)], 30),
        ([Ticket("a", 1, 0, 90), Ticket("b", 0, 19, 25)], 25),
    ],
}


def next_in_queue(waiting, now):
    """The request that joins next."""

    def urgency(request):
        rank = request.priority - (now - request.arrival) // PATIENCE
        deadline = inf if request.deadline is None else request.deadline
        return rank, deadline, request.arrival

    return min(waiting, key=urgency)


RANK, DUE = "request.priority - (now - request.arrival) // PATIENCE", "inf if request.deadline is None else "
ORDER = "rank, deadline, request.arrival"
QUEUE_MISTAKES = [
    ("first", "you take the first of the queue", ("min(waiting, key=urgency)", "waiting[0]")),
    ("no patience", "waiting makes nobody more urgent than the others, or all alike: a request may wait for ever",
     (RANK, "request.priority")),
    ("once", "waiting makes a request one priority more urgent, and no more however long it waits",
     (RANK, "request.priority - ((now - request.arrival) >= PATIENCE)")),
    ("not above 0", "you stop at priority 0: a request that waits on gets more urgent than that", (RANK,
     f"max(min(0, request.priority), {RANK})")),
    ("by the second", "each second counts: it is each whole PATIENCE seconds", ("// PATIENCE", "/ PATIENCE")),
    ("by seconds", "each second makes a request one priority more urgent", (" // PATIENCE", "")),
    ("longer than", "exactly PATIENCE seconds are enough", ("(now - request.arrival) //",
     "(now - request.arrival - 0.5) //")),
    ("less urgent", "who waits gets less urgent with you", ("request.priority - (", "request.priority + (")),
    ("large first", "you take large priorities first: a small number is urgent", (RANK, f"-({RANK})")),
    ("deadline first", "you compare deadlines before priorities", (ORDER, "deadline, rank, request.arrival")),
    ("no deadlines", "you do not look at deadlines", (ORDER, "rank, request.arrival")),
    ("none first", "a request without a deadline comes before those that have one", (DUE, "-" + DUE)),
    ("late ones wait", "you put a request whose deadline has passed behind the others", (DUE,
     "inf if request.deadline is None or request.deadline < now else ")),
    ("0 is none", "you take a deadline of 0 for none", ("request.deadline is None", "not request.deadline")),
    ("latest deadline", "you take the latest deadline first", (ORDER, "rank, -deadline, request.arrival")),
    ("newest", "of equals you take the one that came last", (ORDER, "rank, deadline, -request.arrival")),
    ("last of equals", "of equals in everything you take the last of the queue",
     ("min(waiting, key", "min(reversed(waiting), key")),
]  # fmt: skip


def draw_queues(random):
    return [(tickets, random.randint(13, 45)) for tickets in draw_tickets(random) + draw_tickets(random)]


def queued(answer, case):
    """The request that an answer chooses; of a stream of requests the order in which they leave the queue."""
    return call(answer, case) if len(case) == 2 else budgeting.stream(answer, *case)


def wrong_choice(run) -> str:
    if run.got == run.want:
        return ""
    if len(run.case) == 2:
        return f"second {run.case[1]}, {quote(run.case[0])} wait: you choose {quote(run.got)}"
    got, want = ({name: now for now, name in order} for order in (run.got, run.want))
    last = len(run.want)
    late = next((one for one in run.case[0] if got.get(one.name, last) > want[one.name] and not one.deadline), None)
    if late:
        waits = some(got.get(late.name, last) - late.arrival, "second")
        return f"{late}, among urgent ones, waits {waits}: too long"
    place = next((now for (now, mine), (_, right) in zip(run.got, run.want) if mine != right), len(run.got))
    return f"in second {place} of the stream you choose {quote(dict(run.got).get(place))}"


@exercise("5.4", points=4, solution=next_in_queue, mistakes=QUEUE_MISTAKES)
def check_5_4(c, answer):
    by_line(c, QUEUES, answer, wrong_choice, "it chooses", behave=queued, drawn=draw_queues)


# 5.5: (guesses, chosen)
DRAFTS = [
    ([5, 6, 7], [5, 6, 9, 8]),
    ([5, 6, 7], [5, 6, 7, 8]),
    ([5, 6, 7], [9, 6, 7, 8]),
    ([], [4]),
    ([5, 5, 5], [5, 4, 5, 6]),
    ([4, 5], [5, 6, 7]),
]
ENDS = [([5, EOS, 7], [5, EOS, 7, 8]), ([EOS, 6], [EOS, 6, 7]), ([5, 6], [5, 6, EOS]), ([5, EOS], [5, 4, 3]),
        ([5, 7], [5, EOS, 6])]  # fmt: skip
TEXTS = [(tuple(random.Random(seed).choices(range(0, 5), k=11)), [3, 1, 3]) for seed in (3, 4, 5, 8)]


def accepted(guesses, chosen):
    """(how many guesses hold, the token after them, how far `computed` goes back)"""
    holds = 0
    while holds < len(guesses) and guesses[holds] == chosen[holds] != EOS:
        holds += 1
    return holds, chosen[holds], len(guesses) - holds


WHILE, RETURN = "guesses[holds] == chosen[holds] != EOS", "holds, chosen[holds], len(guesses) - holds"
DRAFT_MISTAKES = [
    ("any place", "you count guesses that are right after a wrong one: they were made for another text",
     ("    while holds < len(guesses) and guesses[holds] == chosen[holds] != EOS:\n        holds += 1\n",
      "    holds = sum(one == two for one, two in zip(guesses, chosen))\n")),
    ("any place, and an end", "you count all guesses that are right in their place: one that is wrong ends the count",
     ("    while holds < len(guesses) and guesses[holds] == chosen[holds] != EOS:\n        holds += 1\n",
      "    holds = sum(one == two != EOS for one, two in zip(guesses, chosen))\n")),
    ("all or nothing", "you keep all guesses or none: those before the first wrong one hold",
     ("    return", "    holds = holds if holds == len(guesses) else 0\n    return")),
    ("shifted", "you compare a guess with the choice after it: chosen[0] is the choice after the text",
     (WHILE, "guesses[holds] == chosen[holds + 1] != EOS")),
    ("wrong one too", "you count the first wrong guess as one that holds",
     ("    return", "    holds = min(holds + 1, len(guesses))\n    return")),
    ("the guess", "after the guesses that hold you give the wrong guess, and not what the model chose",
     (RETURN, "holds, [*guesses, chosen[-1]][holds], len(guesses) - holds")),
    ("last choice", "you give the last choice: it comes after guesses that do not hold",
     (RETURN, "holds, chosen[-1], len(guesses) - holds")),
    ("one later", "you give the choice one place too late", (RETURN,
     "holds, chosen[min(holds + 1, len(guesses))], len(guesses) - holds")),
    ("no end", "a text that has ended goes on: you do not look for EOS", (" != EOS", "")),
    ("end counts", "where a guess is EOS and holds, you give the choice after the end of the text",
     (WHILE, "guesses[holds] == chosen[holds] and EOS not in guesses[:holds]")),
    ("any end", "an EOS anywhere in the guesses stops you, also one that is wrong", ("    return",
     "    holds = min(holds, guesses.index(EOS)) if EOS in guesses else holds\n    if EOS in guesses[holds:]:\n"
     "        holds = 0\n    return")),
    ("back by those that hold", "`computed` goes back by the guesses that hold: their K/V are right",
     (RETURN, "holds, chosen[holds], holds")),
    ("back by all", "`computed` goes back by all guesses, also by those that hold",
     (RETURN, "holds, chosen[holds], len(guesses)")),
    ("one too far", "`computed` goes back one too far: the last certain token was computed too",
     (RETURN, "holds, chosen[holds], len(guesses) - holds + 1")),
    ("one too near", "`computed` goes back one too little: the wrong guess has K/V, too",
     (RETURN, "holds, chosen[holds], max(0, len(guesses) - holds - 1)")),
    ("never back", "`computed` never goes back, and K/V of wrong guesses stay", (RETURN, "holds, chosen[holds], 0")),
    ("negative", "`computed` goes forward with you: the number is taken off", (RETURN,
     "holds, chosen[holds], holds - len(guesses)")),
    ("tokens", "you give the guesses that hold, and their number is needed", (RETURN,
     "guesses[:holds], chosen[holds], len(guesses) - holds")),
]  # fmt: skip


def draw_drafts(random):
    cases = []
    for _ in range(8):
        chosen = [random.randint(0, 3) for _ in range(random.randint(1, 6))]
        guesses = [one if random.random() < 0.8 else random.randint(0, 3) for one in chosen[:-1]]
        cases.append((guesses, chosen))
    return cases


def wrong_part(runs, part: int, words: str) -> str:
    run = next((run for run in runs if not same(run.got[part], run.want[part])), None)
    return f"guesses {run.case[0]}, chosen {run.case[1]}: {words.format(quote(run.got[part]))}" if run else ""


@exercise("5.5", points=5, solution=accepted, mistakes=DRAFT_MISTAKES)
def check_5_5(c, answer):
    runs = c.cases("it verifies", answer, DRAFTS + ENDS, drawn=draw_drafts)
    if not c.parts("it gives three numbers", runs, "(guesses that hold, token, how far back)", 3):
        return c.wait("the rest")
    says = "you say that {} hold", "you give token {} after them", "you take {} off `computed`"
    plain, ending = runs[: len(DRAFTS)], runs[len(DRAFTS) :]
    names = "how many guesses hold", "the token after them", "how far `computed` goes back"
    names += (f"a text that ends (EOS is {EOS})",)
    troubles = [wrong_part(plain, part, says[part]) for part in range(3)]
    troubles.append(next(filter(None, (wrong_part(ending, part, says[part]) for part in range(3))), ""))
    for name, trouble in zip(names, troubles):
        c.true(name, not trouble, trouble)
    if any(troubles):
        return c.wait("a whole text")
    texts = c.cases("a whole text", answer, TEXTS, budgeting.written)
    wrong = next((run for run in texts if run.got != run.want), None)
    c.true("a whole text", wrong is None, "a text written with your guesses is not the text without")


# 5.6


class Repaired(Scheduler):
    """A token budget, and chunks in whole tiles."""

    tile = 4  # tokens

    def __init__(self, memory, max_num_seqs=8, max_num_batched_tokens=16):
        super().__init__(memory, max_num_seqs)
        self.max_num_batched_tokens = max_num_batched_tokens

    def schedule(self):
        """This iteration's [(request, n_tokens), ...]; [] when nothing can run."""
        self.plan, self.left = [], self.max_num_batched_tokens
        ran = list(self.running)
        for request in ran:
            self.give(request)
        while self.left and self.waiting and len(self.running) < self.max_num_seqs:
            if not self.memory.admit(self.waiting[0]):
                break
            self.running.append(self.waiting.popleft())
            self.give(self.running[-1])
        return self.plan

    def give(self, request):
        """Gives a running request tokens of the budget, and the blocks for them."""
        n_tokens = self.chunk(request)
        while n_tokens and request in self.running:
            if self.memory.grow(request, request.computed + n_tokens):
                self.plan.append((request, n_tokens))
                self.left -= n_tokens
                return
            self.preempt(self.running[-1])

    def chunk(self, request):
        """How many of its open tokens fit into the budget, in whole tiles."""
        if request.gap <= self.left:
            return request.gap
        return self.left // self.tile * self.tile or self.left

    def preempt(self, request):
        """Its K/V are gone: it waits in front, to begin anew."""
        self.running.remove(request)
        self.memory.release(request)
        request.computed = 0
        self.waiting.appendleft(request)

    def emits(self, request, n_tokens):
        """The model's next token is due after these n_tokens of the request."""
        return request.computed + n_tokens >= len(request.tokens)


GIVE = between(Repaired, "        for request in ran", "        while self.left")
JOIN = between(Repaired, "        while self.left", "        return self.plan")
CUT = between(Repaired, "        if request.gap", "\n    def preempt")
NEVER_LESS = """        n_tokens = min(request.gap, self.left)
        if request.gap == 1:  # a decode
            return n_tokens
        return n_tokens // self.tile * self.tile
"""
FORGET = "        request.computed = 0\n"
FAULTS = {  # each of the five: what makes it of the repaired scheduler
    "emits": [("len(request.tokens)", "request.num_prompt_tokens")],
    "in requests": [("self.left -= n_tokens", "self.left -= 1")],
    "newcomers first": [(GIVE + JOIN, JOIN + GIVE)],
    "forgets": [(FORGET, f"{FORGET}        request.tokens = list(request.prompt_token_ids)\n")],
    "rounded to 0": [(CUT, NEVER_LESS)],
}
EMIT = "request.computed + n_tokens >= len(request.tokens)"
FIVE_MISTAKES = [
    ("emits", "a request that comes back gets a token as soon as its prompt is computed, before its own output is",
     *FAULTS["emits"]),
    ("in requests", "the budget is counted in requests: it is tokens", *FAULTS["in requests"]),
    ("newcomers first", "newcomers still get their tokens before those that run", *FAULTS["newcomers first"]),
    ("forgets", "a preempted request still forgets what it has written", *FAULTS["forgets"]),
    ("rounded to 0", "what is left of a prompt is still rounded down to whole tiles, at the end to none",
     *FAULTS["rounded to 0"]),
    ("always emits", "each chunk gives a token, also one that is not the last", (EMIT, "True")),
    ("never while it reads", "only answers give tokens: the last chunk of a prompt gives one, too",
     (EMIT, "request.gap == 1")),
    ("emits at equal prompts", "a request that has written something never gets a token after a chunk",
     (EMIT, "request.computed + n_tokens == request.num_prompt_tokens or request.gap == 1")),
    ("no tiles", "you cut anywhere: a chunk that leaves a rest is whole tiles",
     ("self.left // self.tile * self.tile or self.left", "self.left")),
    ("no budget for a tile", "where less than a tile of the budget is left, a prompt gets nothing of it",
     (" or self.left", "")),
    ("tail apart", "the end of a prompt waits for an iteration of its own, though the budget has room for it",
     ("return request.gap\n", "return request.gap // self.tile * self.tile or request.gap\n")),
    ("past the budget", "where less than a tile of the budget is left, a whole tile is planned all the same",
     ("or self.left", "or min(self.tile, request.gap)")),
    ("computed stays", "`computed` of a preempted request stays, but its K/V are gone", (FORGET, "")),
    ("only the prompt is lost", "a preempted request loses the last token that it has written",
     (FORGET, f"{FORGET}        request.tokens = request.tokens[:-1]\n")),
    ("newcomers pay nothing", "newcomers take nothing off the budget", ("            self.give(self.running[-1])\n",
     "            left = self.left\n            self.give(self.running[-1])\n            self.left = left\n")),
]  # fmt: skip


def draw_tiled(random):
    return budgeting.draw_cases(random, 3)


def tiled(scheduler_class, case):
    named = case if isinstance(case, str) else None
    return Tiled(scheduler_class, TILED.get(named, case), named)


@exercise("5.6", points=6, solution=Repaired, mistakes=FIVE_MISTAKES)
def check_5_6(c, answer):
    for name, states, wrong, more, behave, view in PROMISES:
        runs = c.cases(name, answer, states, behave, view, drawn=more)
        odd = next((run.got["odd"] for run in runs if isinstance(run.got, dict) and "odd" in run.got), "")
        if odd:
            c.true(name, False, f"schedule() gives {odd}, but a list of (request, n_tokens) pairs is needed")
            return c.wait("the rest")
        broken = next((run for run in runs if wrong(run)), None)
        told = state_told(broken.case) + ": " if broken and isinstance(broken.case, State) else ""
        c.true(name, broken is None, told + wrong(broken) if broken else "")
    runs = c.cases("whole runs", answer, TILED, tiled, Tiled.behaviour, draw_tiled)
    runs_right(c, "whole runs", runs, lambda case: tiled(answer, case))
