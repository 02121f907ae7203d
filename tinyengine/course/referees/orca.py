"""The referee of exercises 02: waste counted, a scheduler under watch, an arena brought to refuse a request."""

from tinyengine.course import watch
from tinyengine.course.arena import Played, draw
from tinyengine.course.checks import ends
from tinyengine.course.exercise import exercise
from tinyengine.course.watch import Watch, draw_cases, guarded, keeps, real_tokens, serve, some
from tinyengine.memory import Slots
from tinyengine.scheduler import Scheduler

__all__ = ["CASES", "check_2_1", "check_2_2", "check_2_3", "draw", "guarded", "replay", "serve"]


# 2.1: (outputs, max_num_seqs)
PUBLISHED = ([500, 50, 200, 30], 4)
WASTE = [([4], 1), ([3, 3, 3, 3], 2), ([7], 4), ([5, 1, 3, 2], 3), ([2, 9, 1, 1, 8, 2, 6, 4], 3)]


def static_waste(outputs, max_num_seqs):
    """(iterations, idle slot-steps) of static batching, first come, first served."""
    iterations = idle_slot_steps = 0
    for first in range(0, len(outputs), max_num_seqs):
        batch = outputs[first : first + max_num_seqs]
        iterations += max(batch)
        idle_slot_steps += max(batch) * max_num_seqs - sum(batch)
    return iterations, idle_slot_steps


def refilled(outputs, max_num_seqs):
    slots = [0] * max_num_seqs
    for output in outputs:
        slots[slots.index(min(slots))] += output
    return max(slots), max(slots) * max_num_seqs - sum(outputs)


WASTE_MISTAKES = [
    ("prompt", "you count an iteration for the prompt alone, but that iteration gives the first token",
     ("max(batch)", "(max(batch) + 1)"), ("- sum(batch)", "- sum(batch) - len(batch)")),
    ("mean", "you take the mean output of a batch, but it runs until its longest request has ended",
     ("max(batch)", "sum(batch) / len(batch)")),
    ("sum", "you add up the outputs of a batch, but its requests run side by side", ("max(batch)", "sum(batch)")),
    ("shortest", "you end a batch with its shortest request", ("max(batch)", "min(batch)")),
    ("last batch", "you leave out the last batch where it is not full",
     ("range(0, len(outputs)", "range(0, len(outputs) - max_num_seqs + 1")),
    ("only requests", "you count only batch slots that had a request: in the last batch the others are idle as well",
     ("* max_num_seqs -", "* len(batch) -")),
    ("sorted", "you sort the outputs, but first come, first served keeps their order",
     ("= outputs[", "= sorted(outputs)[")),
    ("refilled", "you refill a batch slot when its request has ended: that is Orca; static batching waits", refilled),
    ("other order", "you return the two numbers in the other order",
     ("return iterations, idle_slot_steps", "return idle_slot_steps, iterations")),
    ("busy", "you count the busy slot-steps instead of the idle ones", ("max(batch) * max_num_seqs - sum", "sum")),
    ("fraction", "you give a fraction of the slot-steps: give their number",
     ("return iterations, idle_slot_steps", "return iterations, idle_slot_steps / (iterations * max_num_seqs)")),
]  # fmt: skip


def draw_waste(random):
    number = random.randint
    return [([number(1, 12) for _ in range(number(2, 9))], number(1, 4)) for _ in range(6)]


@exercise("2.1", points=3, solution=static_waste, mistakes=WASTE_MISTAKES)
def check_2_1(c, answer):
    published, *runs = c.cases("it counts", answer, [PUBLISHED, *WASTE], drawn=draw_waste)
    if c.parts("it returns two numbers", [*runs, published], "(iterations, idle_slot_steps)", 2):
        c.agree("iterations", runs, part=0)
        c.agree("idle slot-steps", runs, part=1)
        c.agree("outputs (500, 50, 200, 30) in 4 batch slots", [published])


# 2.2: name: (sizes, max_num_seqs, n_slots)
CASES = {
    "small": ([(3, 5), (2, 1), (6, 3), (2, 2), (1, 2)], 3, 20),
    "holes": ([(2, 4), (2, 8), (1, 2), (3, 5)], 3, 20),
    "roomy": ([(4, 6), (4, 2), (4, 3), (4, 1), (4, 5), (4, 2), (4, 4), (4, 1)], 3, 200),
    "tight": ([(6, 14), (2, 4), (8, 20), (1, 3), (5, 9), (2, 2), (9, 16), (3, 1), (1, 8), (4, 4)], 4, 40),
    "published": ([(128, 500), (64, 50), (256, 200), (32, 30), (64, 50), (64, 50)], 4, 1400),
    "short_long_mix": ([(32, 32), (512, 128)] * 8, 2, 2560),
}


class MyOrca(Scheduler):
    """Iteration-level scheduling: the batch is chosen anew before every iteration."""

    max_prefills = None  # most that may join in one iteration; None: any number

    def schedule(self):
        """This iteration's [(request, n_tokens), ...]; [] when nothing can run."""
        joined = 0
        while self.waiting and len(self.running) < self.max_num_seqs:
            if joined == self.max_prefills or not self.memory.reserve(self.waiting[0]):
                break
            self.running.append(self.waiting.popleft())
            joined += 1
        return [(request, request.gap) for request in self.running]


REFUSED = "not self.memory.reserve(self.waiting[0])"
CAP = "joined == self.max_prefills or "
ORCA_MISTAKES = [
    ("static", "you admit only when the batch is empty, and that is static batching",
     ("while ", "ran = bool(self.running)\n        while not ran and ")),
    ("one by one", "you admit one request per iteration, however many batch slots are free", ("joined += 1", "break")),
    ("too many", "you admit one request too many: a batch slot must be free before a request joins",
     ("< self.max_num_seqs", "<= self.max_num_seqs")),
    ("no reserve", "a request joins, and you have not asked memory.reserve() for its K/V slots", (REFUSED, "False")),
    ("free slots", "you compare with the number of free K/V slots, but they must be one piece: only reserve() can tell",
     (REFUSED, "self.memory.n_slots - self.memory.n_rsrv < self.waiting[0].max_slots"),
     ("self.running.append(", "self.memory.reserve(self.waiting[0])\n            self.running.append(")),
    ("too early", "you ask memory.reserve() before you know that a batch slot is free, and the K/V slots stay reserved",
     ("self.waiting and", "self.waiting and self.memory.reserve(self.waiting[0]) and"), (REFUSED, "False")),
    ("overtakes", "a smaller request overtakes one that was refused: all behind that one wait",
     (REFUSED, "not (first := next(filter(self.memory.reserve, self.waiting), None))"),
     ("self.waiting.popleft()", "first"), ("joined += 1", "self.waiting.remove(first)\n            joined += 1")),
    ("to the end", "a request that was refused goes to the end of the queue: it keeps its place",
     ("break", "self.waiting.append(self.waiting.popleft())\n                break")),
    ("lost", "you take a request out of the queue before the memory has granted it, and forget it when it is refused",
     ("self.waiting[0]", "request := self.waiting.popleft()"), ("append(self.waiting.popleft())", "append(request)")),
    ("asks for ever", "a refused request is asked for again and again: leave the loop when the memory refuses",
     ("break", "continue")),
    ("one token", "you plan one token each, but a request that joins computes its whole prompt", ("request.gap", "1")),
    ("newcomers", "the plan has only those that join, but all that run are served",
     ("joined = 0", "joined, ran = 0, list(self.running)"), ("running]", "running if request not in ran]")),
    ("no return", "schedule() makes a plan and does not return it", ("return ", "")),
    ("no cap", "you do not look at self.max_prefills", (CAP, "")),
    ("cap on running", "max_prefills limits those that join in this iteration, not those that run",
     ("joined ==", "len(self.running) ==")),
    ("cap on plan", "max_prefills limits those that join, not those that are in the plan",
     (CAP, ""), ("self.running]", "self.running][: self.max_prefills]")),
    ("cap for ever", "those that join are to be counted anew in every iteration",
     ("joined = 0", "self.joined = getattr(self, 'joined', 0)"), ("joined ==", "self.joined =="),
     (" joined += 1", " self.joined += 1")),
]  # fmt: skip


def case_of(name):
    """A case of CASES by its name; another case as it is."""
    return CASES[name] if isinstance(name, str) else name


def replay(scheduler_class, case, max_prefills=None):
    """Serves a case with a new scheduler of this class, and returns the Trace."""
    return watch.replay(scheduler_class, case_of(case), max_prefills=max_prefills)


def run(scheduler_class, case):
    return Watch(scheduler_class, case_of(case), named=case)


def capped(scheduler_class, case):
    case, most = case
    return Watch(scheduler_class, case_of(case), case, "max_prefills", max_prefills=most)


def draw_capped(random):
    return [(case, random.randint(1, 3)) for case in draw_cases(random)]


@exercise("2.2", points=10, solution=MyOrca, mistakes=ORCA_MISTAKES)
def check_2_2(c, answer):
    runs = c.cases("schedule() runs", answer, CASES, run, Watch.behaviour, draw_cases)
    if not keeps(c, runs, lambda case: run(answer, case)):
        return c.wait("the rest")
    own = guarded(answer(Slots(320), max_num_seqs=3))
    differ = "with your scheduler a request ends with other tokens than alone"
    if not c.equal("the real engine gives the tokens of each request alone", lambda: real_tokens(own),
                   lambda: real_tokens(max_num_seqs=1), because=lambda *_: differ):  # fmt: skip
        return c.wait("the rest")
    slow = next((run for run in runs if run.got.idle > run.want.idle), runs[0])
    c.par("idle slot-steps", slow.got.idle, slow.want.idle, points=3, where=f"see {slow.got.late}")
    cases = [(case, most) for case in ("small", "roomy", "tight") for most in (1, 2)]
    runs = c.cases("with max_prefills", answer, cases, capped, Watch.behaviour, draw_capped)
    # a scheduler that is late without a cap is late with one: that is not held against it twice
    late = [] if slow.got.late else [run.got.late for run in runs]
    trouble = next(filter(None, [*(fault for run in runs for fault in run.got.faults.values()), *late]), "")
    c.true("at most max_prefills join in one iteration", not trouble, trouble, points=2)


# 2.3


def my_steps():
    """Steps on Slots(100) that leave 40 slots free, yet a request of 40 is refused."""
    return [("add", "a", 39), ("add", "b", 22), ("end", "a")]


STEPS_MISTAKES = [
    ("too full", "the arena is too full: only after an end is enough free in all", (', ("end", "a")', "")),
    ("one piece", "all that is free lies in one piece", ('("end", "a")', '("end", "b")')),
    ("large hole", "the arena is cut in pieces, but one of them is large enough", ('"b", 22', '"b", 20')),
    ("refused", "one of your own requests is larger than the largest hole", ('"b", 22', '"b", 62')),
    ("ends nothing", "only a request that holds slots can end", ('"end", "a"', '"end", "c"')),
    ("no return", "my_steps() makes a list and does not return it", ("return ", "")),
    ("requests", "the free end of the arena is a hole as well: use it", ('"b", 22', '"b", 2), ("add", "c", 20')),
    ("held", "a hole may be larger, as long as it is too small", ('"a", 39', '"a", 30'), ('"b", 22', '"b", 40')),
]  # fmt: skip


def play(answer, _):
    """The arena after the answer's steps."""
    steps = ends(lambda: None if (steps := answer()) is None else list(steps))
    return None if steps is None else Played(steps)


def sight(played):
    """What shows a mistake in the steps."""
    holes = len(played.memory.holes)
    return played.kind or (played.grants(40), played.free >= 40, holes, played.adds, played.held > 22)


@exercise("2.3", points=3, solution=my_steps, mistakes=STEPS_MISTAKES)
def check_2_3(c, answer):
    [run] = c.cases("you give steps", answer, [()], play, sight)
    played, par = run.got, run.want
    trouble = played.trouble
    if not trouble and played.grants(40):
        trouble = f"it is granted: a hole of {some(played.largest, 'slot')} is free"
    if not trouble and played.free < 40:
        trouble = f"only {some(played.free, 'slot')} {'is' if played.free == 1 else 'are'} free in all"
    if c.true("a request of 40 slots is refused, and 40 or more are free", not trouble, trouble):
        counter = Played(played.steps, contiguous=False)
        c.true("the bare counter grants it", lambda: counter.grants(40), "it refuses", points=0)
        c.par("requests", played.adds, par.adds, show=False)
        c.par("slots still held", played.held, par.held, show=False)
