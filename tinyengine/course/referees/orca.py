"""The referee of exercises 02: waste counted, schedulers under watch, an arena that refuses, one that is written."""

from collections import Counter

from tinyengine.course import watch
from tinyengine.course.arena import Filled, Played, draw, draw_capacity, fill
from tinyengine.course.checks import ends
from tinyengine.course.exercise import exercise
from tinyengine.course.overtaking import Overtaking, joins
from tinyengine.course.watch import Watch, draw_cases, guarded, keeps, real_tokens, serve, some
from tinyengine.memory import Slots
from tinyengine.scheduler import Orca, Scheduler

__all__ = ["CASES", "SETUPS", "check_2_1", "check_2_2", "check_2_3", "check_2_4", "check_2_5", "check_2_6", "draw",
           "draw_capacity", "fill", "guarded", "joins", "replay", "serve"]  # fmt: skip


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
SMALL = [(1, 12), (1, 5), (2, 9), (2, 11), (3, 5), (1, 4), (3, 8), (2, 5), (2, 12), (2, 8), (4, 7), (2, 11)]
CASES = {
    "small": ([(3, 5), (2, 1), (6, 3), (2, 2), (1, 2)], 3, 20),
    "holes": ([(2, 4), (2, 8), (1, 2), (3, 5)], 3, 20),
    "roomy": ([(4, 6), (4, 2), (4, 3), (4, 1), (4, 5), (4, 2), (4, 4), (4, 1)], 3, 200),
    "tight": ([(6, 14), (2, 4), (8, 20), (1, 3), (5, 9), (2, 2), (9, 16), (3, 1), (1, 8), (4, 4)], 4, 40),
    "published": ([(128, 500), (64, 50), (256, 200), (32, 30), (64, 50), (64, 50)], 4, 1400),
    "short_long_mix": ([(32, 32), (512, 128)] * 8, 2, 2560),
    "queue": ([(4, 6), (6, 2), (1, 2), (1, 2), (2, 2)], 2, 14),
    "rush": ([(8, 4), (16, 6), *SMALL], 3, 32),
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
    ("none", "max_prefills may be None: no limit", ("joined ==", "joined >=")),
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


def replay(scheduler_class, case, **settings):
    """Serves a case with a new scheduler of this class, which gets these attributes; returns the Trace."""
    return watch.replay(scheduler_class, case_of(case), **settings)


def run(scheduler_class, case):
    try:
        return Watch(scheduler_class, case_of(case), named=case)
    except TypeError as error:
        capped(scheduler_class, (case, 100))  # raises too, unless the trouble is that None is taken for a number
        raise TypeError("max_prefills is None, which is no number").with_traceback(error.__traceback__) from None


def capped(scheduler_class, case):
    case, most = case
    return Watch(scheduler_class, case_of(case), case, "max_prefills", max_prefills=most)


def draw_capped(random):
    return [(case, random.randint(1, 3)) for case in draw_cases(random)]


@exercise("2.2", points=10, solution=MyOrca, mistakes=ORCA_MISTAKES, part=True)
def check_2_2(c, answer):
    runs = c.cases("schedule() runs", answer, CASES, run, Watch.behaviour, draw_cases)
    if not keeps(c, runs, lambda case: run(answer, case)):
        return c.wait("the rest")
    slow = next((run for run in runs if run.got.idle > run.want.idle), runs[0])
    if not c.par("idle slot-steps", slow.got.idle, slow.want.idle, points=3, where=f"see {slow.got.late}"):
        return c.wait("the rest")
    own = guarded(answer(Slots(320), max_num_seqs=3))
    differ = "with your scheduler a request ends with other tokens than alone"
    if not c.equal("the real engine gives the tokens of each request alone", lambda: real_tokens(own),
                   lambda: real_tokens(max_num_seqs=1), because=lambda *_: differ):  # fmt: skip
        return c.wait("the rest")
    cases = [(case, most) for case in ("small", "roomy", "tight") for most in (1, 2)]
    runs = c.cases("with max_prefills", answer, cases, capped, Watch.behaviour, draw_capped)
    told = [*(fault for run in runs for fault in run.got.faults.values()), *(run.got.late for run in runs)]
    trouble = next(filter(None, told), "")
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


# 2.4: (steps, n_slots)
ARENAS = [
    ([("add", "a", 5), ("add", "b", 7), ("add", "c", 8), ("add", "d", 2), ("end", "b"), ("add", "e", 3)], 20),
    ([("add", "a", 6), ("add", "b", 2), ("add", "c", 3), ("add", "d", 4), ("end", "a"), ("end", "c"), ("add", "e", 3),
      ("add", "f", 4), ("add", "g", 3), ("end", "d"), ("add", "h", 5)], 20),
    ([("add", "a", 4), ("add", "b", 2), ("end", "a"), ("add", "c", 3), ("add", "d", 9)], 20),
    ([("add", "a", 10), ("end", "a"), ("add", "b", 10), ("add", "c", 2), ("end", "b"), ("add", "d", 9)], 10),
]  # fmt: skip


class MySlots(Slots):
    """An arena that gives each request one range of K/V slots, first fit."""

    def reserve(self, request):
        """Gives the request its slots, or changes nothing and returns False."""
        wanted = request.max_slots
        for index, hole in enumerate(self.holes):
            if len(hole) >= wanted:
                request.table, rest = hole[:wanted], hole[wanted:]
                self.holes[index : index + 1] = [rest] if rest else []
                self.holders[request.request_id] = request
                return True
        return False


FITS, LOOP = "if len(hole) >= wanted:", "for index, hole in enumerate(self.holes):"
CUT = "self.holes[index : index + 1] = [rest] if rest else []"
SLOTS_MISTAKES = [
    ("not shortened", "what you give away stays in self.holes, and the next request gets it too",
     (CUT, "pass")),
    ("empty hole", "a hole that is used up stays in self.holes without a slot", (" if rest else []", "")),
    ("rest lost", "you take the whole hole out of self.holes, and its rest is lost", ("[rest] if rest else []", "[]")),
    ("whole hole", "the request gets the whole hole: it asked for less",
     ("hole[:wanted], hole[wanted:]", "hole, hole[:0]")),
    ("too small", "you take a hole that is too small for the request", (FITS, "if hole:")),
    ("exact", "a hole of exactly the size that is asked for is large enough", (FITS, "if len(hole) > wanted:")),
    ("several holes", "you put a request together from several holes: one hole must hold it",
     (LOOP, """slots = [slot for hole in self.holes for slot in hole]
        if len(slots) >= wanted:
            request.table = slots[:wanted]
            self.holders[request.request_id] = request
            self.holes = [range(slot, slot + 1) for slot in slots[wanted:]]
            return True
        for index, hole in ():""")),
    ("best fit", "you take the smallest hole that is large enough: take the first one", (LOOP,
     "for index, hole in sorted(enumerate(self.holes), key=lambda pair: len(pair[1])):")),
    ("worst fit", "you take the largest hole: take the first one that is large enough", (LOOP,
     "for index, hole in sorted(enumerate(self.holes), key=lambda pair: -len(pair[1])):")),
    ("last fit", "you search from the end of the arena: take the first hole that is large enough", (LOOP,
     "for index, hole in reversed([*enumerate(self.holes)]):")),
    ("end of the hole", "you give the end of the hole: give its beginning",
     ("hole[:wanted], hole[wanted:]", "hole[len(hole) - wanted :], hole[: len(hole) - wanted]")),
    ("first hole only", "you look at the first hole only", ("        return False", "            return False")),
    ("prompt", "you reserve for the prompt alone: an output needs K/V slots too",
     ("wanted = request.max_slots", "wanted = request.num_prompt_tokens")),
    ("one short", "you reserve one slot less than prompt + max_tokens", ("request.max_slots", "request.max_slots - 1")),
    ("one more", "you reserve one slot more than prompt + max_tokens", ("request.max_slots", "request.max_slots + 1")),
    ("no holder", "you do not put the request into self.holders, so release() will not find it",
     ("self.holders[request.request_id] = request", "pass")),
    ("wrong key", "the request stands in self.holders under another key: its request_id is the key",
     ("self.holders[request.request_id]", "self.holders[request]")),
    ("no table", "you do not put the K/V slots into request.table",
     ("request.table, rest = hole[:wanted]", "_, rest = hole[:wanted]")),
    ("holder too early", "a refused request stands in self.holders: it must change nothing",
     ("wanted = request.max_slots", "wanted = request.max_slots\n        self.holders[request.request_id] = request")),
    ("no True", "you reserve, and do not return True", ("                return True", "                break")),
    ("to the end of the list", "the rest of a hole goes to the end of self.holes: keep the order of address",
     (CUT, "del self.holes[index]\n                self.holes += [rest] if rest else []")),
]  # fmt: skip


def draw_arenas(random):
    """Requests of 2 to 9 slots that come and go in a small arena."""
    cases = []
    for _ in range(6):
        steps, there = [], []
        for number in range(14):
            if there and random.random() < 0.45:
                steps.append(("end", there.pop(random.randrange(len(there)))))
            else:
                there.append(f"q{number}")
                steps.append(("add", there[-1], random.randint(2, 9)))
        cases.append((steps, random.randint(16, 30)))
    return cases


def filled_view(filled):
    return [filled.faults, filled.seen]


@exercise("2.4", points=4, solution=MySlots, mistakes=SLOTS_MISTAKES, part=True)
def check_2_4(c, answer):
    runs = c.cases("reserve() runs", answer, ARENAS, Filled, filled_view, draw_arenas)
    faults = {rule: next((run.got.faults[rule] for run in runs if rule in run.got.faults), "") for rule in Filled.rules}
    granted = any(run.got.granted for run in runs)
    for rule, name in Filled.rules.items():
        if faults[rule] or (granted and not faults["books"]):
            c.true(name, not faults[rule], faults[rule])
    if any(faults.values()):
        return c.wait("the real engine" if granted else "the rest")
    differ = "with your arena a request ends with other tokens than alone"
    own = guarded(Orca(answer(320), max_num_seqs=3))
    c.equal("the real engine gives the tokens of each request alone", lambda: real_tokens(own),
            lambda: real_tokens(max_num_seqs=1), because=lambda *_: differ)  # fmt: skip


# 2.5: (memory, utilisation, weights, kv_bytes, n_max)
GIB = 2**30
SETUPS = {
    "OPT-13B, 40 GiB": (40 * GIB, 0.95, 26 * GIB, 819_200, 2_048),
    "Qwen3-8B, 80 GiB": (80 * GIB, 0.9, 16_400_000_000, 147_456, 32_768),
    "LLaMA2-70B, 80 GiB": (80 * GIB, 0.9, 140_000_000_000, 327_680, 4_096),
}
CAPACITIES = [(1000, 0.9, 500, 8, 20), (100, 0.9, 31, 7, 3), (64, 0.5, 2, 4, 9), (40, 0.5, 30, 2, 3)]


def capacity(memory, utilisation, weights, kv_bytes, n_max):
    """(K/V slots of the arena, requests of n_max slots side by side)."""
    n_slots = max(0, int(memory * utilisation - weights) // kv_bytes)
    return n_slots, n_slots // n_max


LEFT = "int(memory * utilisation - weights)"
CAPACITY_MISTAKES = [
    ("of the rest", "you take the share of what the weights leave: utilisation is a share of the whole memory",
     (LEFT, "int((memory - weights) * utilisation)")),
    ("whole memory", "you use the whole memory: only the share `utilisation` may be used", (" * utilisation", "")),
    ("no weights", "the weights have to be in the memory as well", (" - weights", "")),
    ("negative", "where not even the weights fit, there are no K/V slots, and not less than none",
     (f"max(0, {LEFT} // kv_bytes)", f"{LEFT} // kv_bytes")),
    ("rounded up", "you round the K/V slots up: the last one is not there whole", (LEFT, f"-(-{LEFT}"),
     ("// kv_bytes)", "// kv_bytes))")),
    ("parts of a slot", "you count a part of a K/V slot: round down", (f"{LEFT} //", f"{LEFT} /")),
    ("requests up", "you round the requests up: the last one does not fit whole",
     ("n_slots // n_max", "-(-n_slots // n_max)")),
    ("parts of a request", "you count a part of a request: round down", ("n_slots // n_max", "n_slots / n_max")),
    ("bytes", "you divide bytes by n_max: a request of n_max slots needs n_max * kv_bytes bytes",
     ("n_slots // n_max", "n_slots * kv_bytes // n_max")),
    ("other order", "you return the two numbers in the other order",
     ("n_slots, n_slots // n_max", "n_slots // n_max, n_slots")),
    ("slots alone", "a request needs n_max K/V slots, not one", ("n_slots, n_slots // n_max", "n_slots, n_slots")),
]  # fmt: skip


def draw_capacities(random):
    """Devices whose memory leaves a part of a slot over, so that no rounding of a share of it matters."""
    number, cases = random.randint, []
    while len(cases) < 6:
        case = number(500, 5000), random.choice([0.5, 0.8, 0.9]), number(0, 2500), number(3, 30), number(2, 12)
        if 0.1 < (case[0] * case[1] - case[2]) / case[3] % 1 < 0.9:
            cases.append(case)
    return cases


@exercise("2.5", points=3, solution=capacity, mistakes=CAPACITY_MISTAKES)
def check_2_5(c, answer):
    runs = c.cases("it counts", answer, [*CAPACITIES, *SETUPS.values()], drawn=draw_capacities)
    if c.parts("it returns two numbers", runs, "(K/V slots, requests)", 2):
        published = runs[len(CAPACITIES)]
        c.agree("K/V slots", runs, part=0)
        c.agree("requests side by side", runs, part=1)
        c.agree("OPT-13B on 40 GiB", [published])


# 2.6: name: (sizes, max_num_seqs, n_slots, patience)
QUEUES = {
    "queue, 2": (*CASES["queue"], 2),
    "queue, 0": (*CASES["queue"], 0),
    "rush, 3": (*CASES["rush"], 3),
    "two large": ([(8, 9), (9, 6), (2, 2), (8, 5), (1, 3), (1, 2), (2, 4), (1, 4), (2, 2)], 3, 24, 2),
    "tight, 1": (*CASES["tight"], 1),
}


class MyFiller(Scheduler):
    """Iteration-level scheduling: a request may overtake those that do not fit."""

    patience = 2  # how often a request may be overtaken

    def __init__(self, memory, max_num_seqs=8):
        super().__init__(memory, max_num_seqs)
        self.overtaken = Counter()  # by request id

    def schedule(self):
        """This iteration's [(request, n_tokens), ...]; [] when nothing can run."""
        passed = []
        for request in list(self.waiting):
            if len(self.running) == self.max_num_seqs:
                break
            if self.memory.reserve(request):
                self.waiting.remove(request)
                self.running.append(request)
                self.overtaken.update(passed)
            else:
                passed.append(request.request_id)
            if any(self.overtaken[name] == self.patience for name in passed):
                break
        return [(request, request.gap) for request in self.running]


UPDATE, PASS = "self.overtaken.update(passed)", "passed.append(request.request_id)"
PATIENT = "any(self.overtaken[name] == self.patience for name in passed)"
FILLER_MISTAKES = [
    ("nobody overtakes", "nobody overtakes: behind a request that does not fit, one that fits may join",
     (PASS, "break")),
    ("no bound", "you do not look at self.patience, so a large request may wait for ever", (PATIENT, "False")),
    ("once more", "a request is overtaken once more than self.patience allows",
     ("== self.patience", "> self.patience")),
    ("once less", "you stop one overtaking too early", ("== self.patience", ">= self.patience - 1")),
    ("head only", "you count for the head of the queue only: every request that is passed is overtaken",
     (UPDATE, "self.overtaken.update(passed[:1])")),
    ("refusals", "you count how often a request is refused, not how often it is overtaken",
     (UPDATE, "pass"), (PASS, f"{PASS}\n                self.overtaken[request.request_id] += 1"),
     ("== self.patience", "> self.patience")),
    ("anew", "you count anew in every iteration", ("passed = []", "passed, self.overtaken = [], Counter()")),
    ("in all", "you count all overtakings together: each request has a count of its own",
     (UPDATE, "self.overtaken['all'] += len(passed)"), ("self.overtaken[name]", "self.overtaken['all']")),
    ("not asked", "a request that has been overtaken self.patience times is never asked again",
     ("if self.memory.reserve(request):",
      "if self.overtaken[request.request_id] < self.patience and self.memory.reserve(request):")),
    ("looked at once", "you look at a request's count when it is refused, but several may pass it in one iteration",
     (PATIENT, "passed and passed[-1] == request.request_id and self.overtaken[passed[-1]] == self.patience")),
    ("one by one", "one request joins per iteration, however many batch slots are free",
     (UPDATE, f"{UPDATE}\n                break")),
    ("too many", "you admit one request too many: a batch slot must be free before a request joins",
     ("== self.max_num_seqs", "> self.max_num_seqs")),
    ("to the end", "a request that was refused goes to the end of the queue: it keeps its place",
     (PASS, f"{PASS}\n                self.waiting.remove(request)\n                self.waiting.append(request)")),
    ("smallest first", "you try the smallest request first: begin at the head of the queue",
     ("list(self.waiting)", "sorted(self.waiting, key=lambda request: request.max_slots)")),
    ("stays", "a request that joins stays in self.waiting", ("self.waiting.remove(request)", "pass")),
]  # fmt: skip


def waits(scheduler_class, case):
    named = case if isinstance(case, str) else None
    return Overtaking(scheduler_class, QUEUES.get(named, case), named)


def draw_queues(random):
    return [(*case, random.randint(0, 3)) for case in draw_cases(random, 6)]


@exercise("2.6", points=7, solution=MyFiller, mistakes=FILLER_MISTAKES)
def check_2_6(c, answer):
    runs = c.cases("schedule() runs", answer, QUEUES, waits, Overtaking.behaviour, draw_queues)
    nobody = not any(run.got.overtaken.total() or "order" in run.got.faults for run in runs)
    if nobody:  # who never overtakes does not overtake too often: that earns nothing
        runs[0].got.rules = {rule: name for rule, name in Overtaking.rules.items() if rule != "order"}
    if not keeps(c, runs, lambda case: waits(answer, case)):
        return c.wait("the rest")
    slow = next((run for run in runs if run.got.idle > run.want.idle), runs[0])
    c.par("idle slot-steps", slow.got.idle, slow.want.idle, points=3, where=f"see {slow.got.late}")
    if nobody:
        c.wait(Overtaking.rules["order"])
