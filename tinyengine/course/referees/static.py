"""The referee of exercises 01: a rectangle, a mask over its padding, a static scheduler under watch, who waits how
long, and an order of the queue."""

from typing import NamedTuple

import torch

from tinyengine.course.checks import ends, far, plain, quote, same
from tinyengine.course.exercise import call, exercise
from tinyengine.course.rectangles import CASES, attended, real_of, served, waiting_times
from tinyengine.course.watch import Halt, Watch, draw_cases, keeps, some
from tinyengine.scheduler import Scheduler


def in_the_engine(c, **parts):
    """One line of the check, of one point."""
    told = "with your code a request gets other tokens than alone"
    c.equal("the real engine gives the tokens of each request alone", lambda: served(**parts), lambda: served(),
            because=lambda *_: told)  # fmt: skip


def look_at_part(c, answer, solution, runs, part, split=list):
    """The reason for the next line is looked for in this part of the answer alone. A mistake explains it that leaves
    the other parts as they should be, or as the answer has them. split: what a case gives, as its parts."""

    def behave(tried, case):
        got, mine, right = (split(call(one, case)) for one in (tried, answer, solution))
        others = [plain([*parts[:part], *parts[part + 1 :]]) for parts in (got, mine, right)]
        return got[part], others[0] in others[1:] or tried is answer

    c.cases("it runs again", answer, [run.case for run in runs], behave)


# 1.1: (chunks,)
HAND = [([11, 12, 13], 0), ([21], 0), ([31, 32], 0)]
CHUNKS = [
    ([([7, 8, 9], 0)],),
    (HAND,),
    ([([4], 6), ([5], 2), ([6], 9)],),
    ([([5, 6], 3), ([9], 7), ([8, 0, 7, 0], 0)],),
]


def rectangle(chunks):
    """Chunks as a rectangle: tokens, positions, real [B, W] and last [B]."""
    width = max(len(token_ids) for token_ids, _ in chunks)
    tokens = torch.zeros(len(chunks), width, dtype=torch.long)
    positions = torch.zeros_like(tokens)
    real = torch.zeros_like(tokens, dtype=torch.bool)
    for line, (token_ids, first) in enumerate(chunks):
        n = len(token_ids)
        tokens[line, :n] = torch.tensor(token_ids)
        positions[line, :n] = torch.arange(first, first + n)
        real[line, :n] = True
    last = torch.tensor([len(token_ids) - 1 for token_ids, _ in chunks])
    return tokens, positions, real, last


RANGE = "positions[line, :n] = torch.arange(first, first + n)"
LAST = "[len(token_ids) - 1 for token_ids, _ in chunks]"
RECTANGLE_MISTAKES = [
    ("left", "you pad on the left: here the padding stands behind a request's tokens",
     ("[line, :n]", "[line, width - n :]"), (LAST, "[width - 1] * len(chunks)")),
    ("left, last", "you pad on the left, and last as if the padding stood on the right",
     ("[line, :n]", "[line, width - n :]")),
    ("left, columns", "you pad on the left, and your positions count the columns of the line",
     (RANGE, "positions[line] = torch.arange(width)"), ("[line, :n]", "[line, width - n :]"),
     (LAST, "[width - 1] * len(chunks)")),
    ("left, from 0", "you pad on the left, and your positions begin at 0 in each chunk",
     ("[line, :n]", "[line, width - n :]"), (LAST, "[width - 1] * len(chunks)"),
     ("torch.arange(first, first + n)", "torch.arange(n)")),
    ("from 0", "your positions begin at 0 in each chunk, also where older tokens of the request stand before it",
     ("arange(first, first + n)", "arange(n)")),
    ("from 1", "your positions are one too high: first_position is that of the chunk's first token",
     ("arange(first, first + n)", "arange(first + 1, first + 1 + n)")),
    ("padding counts", "your positions go on over the padding: there they are 0",
     (RANGE, "positions[line] = torch.arange(first, first + width)")),
    ("columns", "your positions are the numbers of the columns: each request counts its own tokens",
     (RANGE, "positions[line] = torch.arange(width)")),
    ("last column", "last is the last column for every request, but a short one ends before it",
     ("[len(token_ids) - 1 for", "[width - 1 for")),
    ("past the end", "last is one too far: columns are counted from 0",
     ("len(token_ids) - 1 for", "len(token_ids) for")),
    ("along the rows", "last counts along the rows of the whole batch: the column in the request's own line is needed",
     (LAST, "[len(ids) - 1 + line * width for line, (ids, _) in enumerate(chunks)]")),
    ("from the end", "last is -1 for every request: a short one ends before the last column",
     (LAST, "[-1] * len(chunks)")),
    ("position", "last is the position of a request's last token, but its column is needed",
     (LAST, "[first + len(token_ids) - 1 for token_ids, first in chunks]")),
    ("ids", "last holds token ids, but the number of a column is needed", (LAST, "[ids[-1] for ids, _ in chunks]")),
    ("id 0", "you take each token with id 0 for padding, but a request may hold that token too",
     ("positions, real, last", "positions, tokens != 0, last")),
    ("inverted", "real is the wrong way round: it is True where a token is", ("positions, real, last",
     "positions, ~real, last")),
    ("cut", "you cut all requests to the shortest",
     ("width = max(", "width = min("), ("n = len(token_ids)", "n = width"),
     ("torch.tensor(token_ids)", "torch.tensor(token_ids[:n])")),
    ("on its side", "your rectangle lies on its side: it has one line for each request",
     ("return tokens, positions, real, last", "return tokens.T, positions.T, real.T, last")),
    ("repeated", "you fill the padding with a request's last token: it holds token 0",
     ("tokens[line, :n] = torch.tensor(token_ids)",
      "tokens[line] = torch.tensor(token_ids + token_ids[-1:] * (width - n))")),
    ("sorted", "you sort the requests by length: the lines keep the order of the batch",
     ("enumerate(chunks)", "enumerate(sorted(chunks, key=lambda chunk: -len(chunk[0])))")),
    ("sorted, last too", "you sort the requests, the longest first: the lines keep the order of the batch",
     ("    width = max(", "    chunks = sorted(chunks, key=lambda chunk: -len(chunk[0]))\n    width = max(")),
    ("sorted upwards", "you sort the requests, the shortest first: the lines keep the order of the batch",
     ("    width = max(", "    chunks = sorted(chunks, key=lambda chunk: len(chunk[0]))\n    width = max(")),
    ("too wide", "your lines are one column too wide: W is the length of the longest chunk",
     ("for token_ids, _ in chunks)\n", "for token_ids, _ in chunks) + 1\n")),
    ("swapped", "you return real before positions",
     ("tokens, positions, real, last\n", "tokens, real, positions, last\n")),
    ("last as a column", "last is a column, [B, 1]: it has one number for each request, [B]",
     ("positions, real, last\n", "positions, real, last[:, None]\n")),
]  # fmt: skip


def draw_chunks(random):
    number = random.randint
    chunk = lambda: ([number(0, 99) for _ in range(number(1, 5))], number(0, 9))  # noqa: E731
    return [([chunk() for _ in range(number(2, 6))],) for _ in range(4)]


PARTS = ("tokens", "positions", "real", "last")


def kinds(got) -> str:
    """What is wrong with the kinds of the four parts of a rectangle, or ""."""
    for name, part in zip(PARTS, got):
        if not isinstance(part, torch.Tensor):
            return f"{name} is {quote(part)}, where a tensor is needed"
        if part.is_floating_point():
            return f"{name} is a tensor of {str(part.dtype).removeprefix('torch.')}, where whole numbers are needed"
    return ""


def wrong_line(runs, part: int) -> str:
    """The first request for which this part of a rectangle is wrong, as the learner has it; or ""."""
    for run in runs:
        got, want = plain(run.got[part]), plain(run.want[part])
        if not isinstance(got, list) or len(got) != len(want):
            return f"rectangle({quote(run.case[0])}) gives {quote(got)}, where one line for each request is needed"
        for number, (line, right) in enumerate(zip(got, want)):
            if not same(line, right):
                return f"for request {number} of rectangle({quote(run.case[0])}) you have {quote(line)}"
    return ""


@exercise("1.1", points=5, solution=rectangle, mistakes=RECTANGLE_MISTAKES, part=True)
def check_1_1(c, answer):
    runs = c.cases("it makes a rectangle", answer, CHUNKS, drawn=draw_chunks)
    if not c.parts("it returns four things", runs, "(tokens, positions, real, last)", 4):
        return c.wait("the rest")
    trouble = next(filter(None, (kinds(run.got) for run in runs)), "")
    c.true("four tensors", not trouble, trouble, points=0)
    wrong = [wrong_line(runs, part) for part in range(4)]
    for part, (name, told) in enumerate(zip(PARTS, wrong)):
        if told:
            look_at_part(c, answer, rectangle, runs, part)
        c.true(name, not told, told)
    if trouble or any(wrong):
        return c.wait("the real engine")
    in_the_engine(c, rectangle=answer)


# 1.2: a line for each request, x where a column holds a token; and how many columns are new
LINES = {
    "one request": (("xxxx",), 4),
    "prompts, padded on the left": (("..xx", "xxxx", "...x"), 4),
    "prompts, padded on the right": (("xx..", "xxxx", "x..."), 4),
    "a decode step behind them": (("..xxx", "xxxxx", "...xx"), 1),
    "a decode step behind padding on the right": (("xx..x", "xxxxx", "x...x"), 1),
    "two new columns": (("...xxx", "xxxxxx", "xx..xx"), 2),
}


def mask(real, n):
    """Which keys the newest n columns may see: real [B, K] -> [B, n, K]."""
    width = real.shape[1]
    causal = torch.ones(n, width, dtype=torch.bool).tril(width - n)
    itself = torch.eye(width, dtype=torch.bool)[width - n :]
    return causal & real[:, None] | itself


SEES = "causal & real[:, None] | itself"
MASK_MISTAKES = [
    ("everything", "every token sees every key", (SEES, "torch.ones(len(real), n, width, dtype=torch.bool)")),
    ("padded keys", "a token sees keys of padding", (SEES, "causal.expand(len(real), n, width)")),
    ("future", "a token sees keys of tokens that come after it", ("causal & ", "")),
    ("top left", "your mask is aligned to the top left: the newest column comes after all others",
     ("tril(width - n)", "tril()")),
    ("only itself", "a token sees no key but its own", (SEES, "itself.expand(len(real), n, width)")),
    ("not itself", "a token does not see its own key",
     ("tril(width - n)", "tril(width - n - 1)"), (" | itself", "")),
    ("first lines", "you take the first n lines of the square, but the newest n columns have the last ones",
     ("tril(width - n)", "tril()"), ("[width - n :]", "[:n]")),
    ("first lines, NaN", "you take the first n lines of the square, and a row of padding sees no key at all",
     ("tril(width - n)", "tril()"), (" | itself", "")),
    ("numbers", "your mask holds numbers, where True and False are needed", (SEES, f"({SEES}).float()")),
    ("one too far", "a token sees the key of the column behind it", ("tril(width - n)", "tril(width - n + 1)")),
    ("NaN", "a row of padding sees no key at all, and so its softmax divides 0 by 0", (" | itself", "")),
    ("first", "all requests get the padding of the first one",
     ("real[:, None]", "real[:1, None].expand(len(real), 1, width)")),
    ("inverted", "your mask is the wrong way round: True where a key may be seen", (SEES, f"~({SEES})")),
    ("all columns", "you give a line for each column, but only the newest n have a query",
     ("ones(n, width", "ones(width, width"), ("tril(width - n)", "tril()"), ("[width - n :]", "")),
    ("from the left", "you hide as many columns at the left as there is padding, but padding may stand elsewhere",
     ("real[:, None]", "(torch.arange(width) >= (~real).sum(1)[:, None])[:, None]")),
]  # fmt: skip


class Seen(NamedTuple):
    """What attention gives with a mask. form: what is wrong with its form, or "". out: rows of tokens. finite: whether
    rows of padding are numbers."""

    form: str
    out: list
    finite: bool


def seen(answer, case):
    real, n = real_of(case[0]), case[1]
    got, shape = ends(answer, real.clone(), n), [len(real), n, real.shape[1]]
    if got is None:
        return None
    if not isinstance(got, torch.Tensor):
        return Seen(f"you have {quote(got)}, where a tensor is needed", [], True)
    if list(got.shape) != shape or got.dtype != torch.bool:
        kind = str(got.dtype).removeprefix("torch.")
        make = ": make it True / False" if got.dtype != torch.bool else ""
        return Seen(f"you have a tensor {list(got.shape)} of {kind}, where {shape} of bool is needed{make}", [], True)
    out, is_token = attended(got, real, n), real[:, real.shape[1] - n :]
    return Seen("", out[is_token].nan_to_num(nan=1e6).tolist(), bool(out[~is_token].isfinite().all()))


def draw_lines(random):
    def line(width, n):
        old = "".join(random.choice("x.") for _ in range(width - n))
        return old + random.choice(["x" * n, "." * (n - 1) + "x"])

    sizes = [(random.randint(2, 7), random.randint(2, 4)) for _ in range(4)]
    return [(tuple(line(width + n, n) for _ in range(random.randint(2, 4))), n) for width, n in sizes]


def wrong_row(answer, runs) -> str:
    """The first token whose row of attention is not what it is alone, and what the mask lets it see; or ""."""
    for run in runs:
        lines, n = run.case
        real = real_of(lines)
        tokens = real[:, -n:].nonzero().tolist()
        for (request, line), mine, right in zip(tokens, run.got.out, run.want.out):
            if far(mine, right, 1e-9, 1e-9):
                seen_there = ends(answer, real.clone(), n)[request, line].nonzero().flatten().tolist()
                return (f"{place(run.case)}: request {request}, column {real.shape[1] - n + line} gets another result "
                        f"than alone; your mask lets it see {columns(seen_there)}")  # fmt: skip
    return ""


def columns(numbers) -> str:
    """column 2, columns 0, 1, 2"""
    return f"column{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}" if numbers else "no column"


def place(case) -> str:
    return f"lines {' '.join(case[0])}, n = {case[1]}"


@exercise("1.2", points=4, solution=mask, mistakes=MASK_MISTAKES)
def check_1_2(c, answer):
    runs = c.cases("it makes a mask", answer, list(LINES.values()), seen, list, draw_lines)
    form = next((f"{place(run.case)}: {run.got.form}" for run in runs if run.got.form), "")
    if not c.true("a tensor [B, n, K] of bool", not form, form, points=0):
        return c.wait("the rest")
    right, groups = True, {"one request alone": runs[:1], "prompts side by side": runs[1:3], "decode steps": runs[3:]}
    for name, group in groups.items():
        trouble = wrong_row(answer, group)
        right &= c.true(name, not trouble, trouble)
    if not right:
        return c.wait("rows of padding")
    odd = next((place(run.case) for run in runs if not run.got.finite), "")
    c.true("no row is NaN, not even one of padding", not odd, f"{odd}: a row of padding is NaN")


# 1.3


class MyStatic(Scheduler):
    """Static batching: no request joins before the whole batch has ended."""

    batch_size = 0  # requests with which the batch began

    def schedule(self):
        """This iteration's [(request, n_tokens), ...]; [] when nothing can run."""
        if not self.running:
            while self.waiting and len(self.running) < self.max_num_seqs:
                if not self.memory.reserve(self.waiting[0]):
                    break
                self.running.append(self.waiting.popleft())
            self.batch_size = len(self.running)
        return [(request, request.gap) for request in self.running]


REFUSED = "not self.memory.reserve(self.waiting[0])"
STATIC_MISTAKES = [
    ("joins", "a request joins while others of the batch still run", ("if not self.running:", "if True:")),
    ("joins later", "requests join whenever a batch slot is free, also beside others that still run",
     ("if not self.running:", "began = not self.running\n        if True:"),
     ("            self.batch_size =", "            self.batch_size = self.batch_size if not began else")),
    ("one by one", "a batch begins with one request, however many batch slots are free",
     ("append(self.waiting.popleft())", "append(self.waiting.popleft())\n                break")),
    ("too many", "you admit one request too many: a batch slot must be free before a request joins",
     ("< self.max_num_seqs", "<= self.max_num_seqs")),
    ("only full", "you wait for a full batch: then the last requests of the queue may never run",
     ("if not self.running:", "if not self.running and len(self.waiting) >= self.max_num_seqs:")),
    ("no reserve", "a request joins, and you have not asked memory.reserve() for its K/V slots", (REFUSED, "False")),
    ("too early", "you ask memory.reserve() before you know that a batch slot is free, and the K/V slots stay reserved",
     ("self.waiting and", "self.waiting and self.memory.reserve(self.waiting[0]) and"), (REFUSED, "False")),
    ("empty queue", "you look at the first request of the queue also where none waits", ("self.waiting and ", "")),
    ("overtakes", "a smaller request overtakes one that was refused: all behind that one wait",
     (REFUSED, "not (first := next(filter(self.memory.reserve, self.waiting), None))"),
     ("self.running.append(self.waiting.popleft())",
      "self.running.append(first)\n                self.waiting.remove(first)")),
    ("to the end", "a request that was refused goes to the end of the queue: it keeps its place",
     ("break", "self.waiting.append(self.waiting.popleft())\n                    break")),
    ("lost", "you take a request out of the queue before the memory has granted it, and forget it when it is refused",
     ("self.waiting[0]", "request := self.waiting.popleft()"), ("append(self.waiting.popleft())", "append(request)")),
    ("lost, and on", "you forget each request that is refused, and go on to the next",
     ("self.waiting[0]", "request := self.waiting.popleft()"), ("append(self.waiting.popleft())", "append(request)"),
     ("break", "continue")),
    ("asks for ever", "a refused request is asked for again and again: leave the loop when the memory refuses",
     ("break", "continue")),
    ("one token", "you plan one token each, but in its first iteration a request computes its whole prompt",
     ("request.gap", "1")),
    ("prompt again", "you plan the whole prompt in every iteration, but a decode step computes one token",
     ("request.gap", "request.num_prompt_tokens")),
    ("first only", "the plan has only requests that begin, but all that run are served",
     ("in self.running]", "in self.running if not request.computed]")),
    ("no return", "schedule() makes a plan and does not return it", ("return ", "")),
    ("still running", "batch_size counts the requests that still run: those that have ended stay in it until the batch "
     "is over", ("            self.batch_size", "        self.batch_size")),
    ("not set", "you never set batch_size", ("            self.batch_size = len(self.running)\n", "")),
    ("batch slots", "batch_size is the number of batch slots, but a batch may begin with fewer requests",
     ("self.batch_size = len(self.running)", "self.batch_size = self.max_num_seqs")),
]  # fmt: skip


class StaticWatch(Watch):
    """A scheduler that must keep its batch together."""

    rules = Watch.rules | {
        "reserve": "no request runs without K/V slots",
        "batch": "no request joins before the whole batch has ended",
        "full": "a new batch begins with as many requests as it can",
        "height": "batch_size is the number of requests with which the batch began",
    }
    began = 0

    def look(self, scheduler, queue, ran, plan):
        self.scheduler, self.ran = scheduler, ran
        super().look(scheduler, queue, ran, plan)

    def look_at_places(self, scheduler, queue, plan):
        """Two faults that are not the plan's: a request that is lost, after which the run goes on, and a queue that
        is left waiting."""
        there = [*scheduler.waiting, *scheduler.running]
        lost = [request.request_id for request in queue if request not in there]
        if lost:
            self.note("order", f"{lost[0]} is lost: it has left self.waiting and is not in self.running")
        if self.plans and not plan and scheduler.waiting and not scheduler.running:
            number = len(scheduler.waiting)
            self.note("full", f"the plan is empty, and {some(number, 'request')} wait{'s' * (number == 1)}")
            raise Halt
        super().look_at_places(scheduler, [request for request in queue if request in there], plan)

    def look_at_memory(self, waiting, running):
        bare = [request.request_id for request in running if not request.table]
        if bare:
            self.note("reserve", f"{bare[0]} runs, but memory.reserve() has not granted it K/V slots")
        else:
            super().look_at_memory(waiting, running)

    def look_at_joining(self, waiting, running, joined):
        if not self.ran:
            self.began = len(running)
            super().look_at_joining(waiting, running, joined)
            if self.late and "order" not in self.faults:
                self.faults.setdefault("full", self.late)
                self.when.setdefault("full", self.when["late"])
        elif joined:
            self.note("batch", f"{some(joined, 'request')} join{'s' * (joined == 1)} a batch that has not ended")
        size = getattr(self.scheduler, "batch_size", None)
        if running and size != self.began and "batch" not in self.faults:
            self.note("height", f"batch_size is {quote(size)}, and the batch began with {some(self.began, 'request')}")


def run(scheduler_class, case):
    try:
        return StaticWatch(scheduler_class, CASES[case] if isinstance(case, str) else case, named=case)
    except IndexError as error:  # of an empty queue
        raise IndexError(f"{error}, in case {quote(case)}").with_traceback(error.__traceback__) from None


WORTH = {"batch": 2}  # points of a rule; the others have one


@exercise("1.3", points=10, solution=MyStatic, mistakes=STATIC_MISTAKES, part=True)
def check_1_3(c, answer):
    runs = c.cases("schedule() runs", answer, CASES, run, Watch.behaviour, draw_cases)
    for rules in (("plan",), ("batch", "full"), ("reserve",), ("size", "order", "memory", "height")):
        if not keeps(c, runs, lambda case: run(answer, case), rules, WORTH):
            return c.wait("the rest")
    in_the_engine(c, MyStatic=answer)


# 1.4: (outputs, max_num_seqs)
QUEUES = [([4], 1), ([3, 3, 3, 3], 2), ([7], 4), ([5, 1, 3, 2], 3), ([2, 9, 1, 1, 8, 2, 6, 4], 3)]


def waits(outputs, max_num_seqs):
    """For each request the iterations of (first token, last token, return)."""
    found, begin = [], 0
    for first in range(0, len(outputs), max_num_seqs):
        batch = outputs[first : first + max_num_seqs]
        end = begin + max(batch)
        found += [(begin + 1, begin + output, end) for output in batch]
        begin = end
    return found


def refilled(outputs, max_num_seqs):
    free, found = [0] * max_num_seqs, []
    for output in outputs:
        slot = free.index(min(free))
        found.append((free[slot] + 1, free[slot] + output, free[slot] + output))
        free[slot] += output
    return found


EACH = "(begin + 1, begin + output, end)"
WAITS_MISTAKES = [  # those of one part are last
    ("swapped", "you give the last token and the return in the other order",
     (EACH, "(begin + 1, end, begin + output)")),
    ("gaps", "you count the last two from the beginning of the batch: count them from the arrival",
     (EACH, "(begin + 1, output, end - begin)")),
    ("from 0", "you count iterations from 0: the first one is iteration 1",
     (EACH, "(begin, begin + output - 1, end - 1)")),
    ("prompt", "you count an iteration for the prompt alone, but that iteration gives the first token",
     (EACH, "(begin + 2, begin + output + 1, end + 1)")),
    ("one too late", "a request of n tokens gets the last one in its n-th iteration, not in the one after it",
     ("begin + output, end)", "begin + 1 + output, end)")),
    ("together", "you let all requests of a batch get their last token at its end, but a short one gets it sooner",
     ("begin + output, end)", "end, end)")),
    ("streamed", "you return each request when it has ended, but model.generate(batch) returns all at once",
     ("begin + output, end)", "begin + output, begin + output)")),
    ("each batch at 0", "every batch begins when the one before it has ended, not at once",
     ("        begin = end\n", "")),
    ("in a row", "you add up the outputs of a batch, but its requests run side by side", ("max(batch)", "sum(batch)")),
    ("shortest", "you end a batch with its shortest request", ("max(batch)", "min(batch)")),
    ("no batch", "every batch begins at once, and each request returns with its own last token",
     (EACH, "(begin + 1, begin + output, begin + output)"), ("        begin = end\n", "")),
    ("sum between", "the next batch begins after the sum of a batch's outputs: they run side by side",
     ("begin = end", "begin += sum(batch)")),
    ("sum at the end", "you return a batch after the sum of its outputs: they run side by side",
     (EACH, "(begin + 1, begin + output, begin + sum(batch))")),
    ("whole queue", "you let the longest request of the whole queue decide when a batch ends",
     ("max(batch)", "max(outputs)")),
    ("refilled", "you refill a batch slot when its request has ended: static batching waits", refilled),
    ("sorted", "you sort the outputs, but first come, first served keeps their order",
     ("= outputs[", "= sorted(outputs)[")),
    ("first from 0", "your first tokens are one iteration too early: the first iteration is iteration 1",
     (EACH, "(begin, begin + output, end)")),
    ("last from 0", "your last tokens are one iteration too early: the first iteration is iteration 1",
     (EACH, "(begin + 1, begin + output - 1, end)")),
    ("output alone", "you count a last token from the beginning of its batch: the batches before it take time as well",
     (EACH, "(begin + 1, output, end)")),
    ("batch alone", "you count a return from the beginning of its batch: the batches before it take time as well",
     (EACH, "(begin + 1, begin + output, end - begin)")),
    ("all at the end", "you return every request when the whole queue has ended, but each batch returns at its own end",
     ("return found", "return [(one, other, begin) for one, other, _ in found]")),
    ("last batch", "you leave out the last batch where it is not full",
     ("range(0, len(outputs)", "range(0, len(outputs) - max_num_seqs + 1")),
    ("all at once", "you put the whole queue into one batch, but only max_num_seqs requests are a batch",
     ("range(0, len(outputs), max_num_seqs)", "[0]"), (" = outputs[first : first + max_num_seqs]", " = outputs")),
    ("one by one", "you serve one request at a time",
     ("range(0, len(outputs), max_num_seqs)", "range(len(outputs))"), ("first + max_num_seqs", "first + 1")),
]  # fmt: skip


def draw_queues(random):
    number = random.randint
    return [([number(1, 12) for _ in range(number(2, 9))], number(1, 4)) for _ in range(6)]


@exercise("1.4", points=3, solution=waits, mistakes=WAITS_MISTAKES)
def check_1_4(c, answer):
    runs = c.cases("it counts", answer, QUEUES, drawn=draw_queues)
    odd = next((run for run in runs if not is_triples(run.got, len(run.want))), None)
    told = odd and f"waits{odd.case} gives {quote(odd.got)}, where a list of three numbers for each request is needed"
    if not c.true("three numbers for each request", odd is None, told, points=0):
        return c.wait("the rest")
    for part, name in enumerate(("first token", "last token", "return")):
        wrong = next(filter(None, (wrong_wait(run, part) for run in runs)), "")
        if wrong:
            look_at_part(c, answer, waits, runs, part, lambda rows: list(zip(*rows)))
        c.true(name, not wrong, wrong)


def is_triples(got, length: int) -> bool:
    rows = isinstance(got, list | tuple) and len(got) == length
    return rows and all(isinstance(row, list | tuple) and len(row) == 3 for row in got)


def wrong_wait(run, part: int) -> str:
    for number, (got, want) in enumerate(zip(run.got, run.want)):
        if got[part] != want[part]:
            return f"waits{run.case}: for request {number} you have {quote(got[part])}"
    return ""


# 1.5
KNOWN = [([5, 1, 3, 2], 3), ([2, 9, 1, 1, 8, 2, 6, 4], 3), ([1, 6, 2, 5], 2), ([3, 1, 4, 1, 5, 9, 2], 2)]
KNOWN += [([2, 2, 7], 1)]


def best_order(outputs, max_num_seqs):
    """(order, who): the queue with the fewest idle slot-steps, and who pays most."""

    def first_tokens(queue):
        found, begin = {}, 0
        for first in range(0, len(queue), max_num_seqs):
            batch = queue[first : first + max_num_seqs]
            found |= {number: begin + 1 for number in batch}
            begin += max(outputs[number] for number in batch)
        return found

    arrival = list(range(len(outputs)))
    order = sorted(arrival, key=lambda number: -outputs[number])
    before, after = first_tokens(arrival), first_tokens(order)
    return order, max(arrival, key=lambda number: after[number] - before[number])


WHO = "max(arrival, key=lambda number: after[number] - before[number])"
ORDER_MISTAKES = [
    ("arrival", "you keep the order of arrival", ("sorted(arrival, key=lambda number: -outputs[number])", "arrival")),
    ("shortest first", "you serve the shortest first: where the last batch is not full, the longest request leaves "
     "batch slots idle", ("-outputs[number]", "outputs[number]")),
    ("mixed", "you put long and short requests side by side: the short ones' batch slots then idle",
     ("    before,", "    order = [n for pair in zip(order, order[::-1]) for n in pair][: len(order)]\n    before,")),
    ("lengths", "your order holds output lengths, but numbers of requests are needed",
     ("return order,", "return sorted(outputs, reverse=True),")),
    ("places", "your order gives the place of each request: needed is, place by place, the number of the request there",
     ("return order,", "return [order.index(number) for number in arrival],")),
    ("last", "you name the request in the last place: it waits longest, but another's wait may have grown more",
     (WHO, "order[-1]")),
    ("gains", "you name the request that gains most", (WHO, WHO.replace("max(", "min("))),
    ("shortest", "you name the shortest request: another's wait may have grown more",
     (WHO, "min(arrival, key=lambda number: outputs[number])")),
    ("place", "you name the place of the request that pays: its number is needed", (WHO, f"order.index({WHO})")),
    ("queue", "you compare places in the queue, but a request pays in iterations",
     (WHO, "max(arrival, key=lambda number: order.index(number) - number)")),
    ("not mapped", "you compare the waits place by place, but in your order another request stands in a place",
     (WHO, "max(arrival, key=lambda place: after[order[place]] - before[place])")),
    ("growth", "you return by how much the wait has grown: whose wait it is, is asked",
     (WHO, "max(after[number] - before[number] for number in arrival)")),
    ("other order", "you return the two things in the other order", (f"return order, {WHO}", f"return {WHO}, order")),
]  # fmt: skip


class Queue(NamedTuple):
    """An answer to 1.5, looked at. form: what is wrong with it, or "". idle: slot-steps. lengths: the outputs in its
    order, where another order has fewer. paid: by how many iterations the wait of `who` grows. more: by how many more
    another's does. arrival: slot-steps that are idle in the order of arrival."""

    form: str
    idle: int = 0
    lengths: list = ()
    paid: int = 0
    more: int = 0
    arrival: int = 0


def ordered(answer, case):
    outputs, width = case
    got = ends(answer, list(outputs), width)
    if got is None:
        return None
    if form := trouble_with(got, outputs):
        return Queue(form)
    order, who = list(got[0]), got[1]
    before, after = waiting_times(outputs, width), waiting_times(outputs, width, order)
    grown = [later - sooner for later, sooner in zip(after, before)]
    lengths = [outputs[number] for number in order]
    idle, least, arrival = (
        sum(max(queue[n : n + width]) for n in range(0, len(queue), width)) * width - sum(queue)
        for queue in (lengths, sorted(outputs, reverse=True), outputs)
    )
    return Queue("", idle, lengths if idle > least else [], grown[who], max(grown) - grown[who], arrival)


def trouble_with(got, outputs) -> str:
    if not (isinstance(got, tuple | list) and len(got) == 2 and isinstance(got[0], tuple | list)):
        return f"you have {quote(got)}, where (order, who) is needed, a list and a number"
    if sorted(map(str, got[0])) != sorted(map(str, range(len(outputs)))) or not all(isinstance(n, int) for n in got[0]):
        return f"your order is {quote(got[0])}, but it must hold each request's number, 0 to {len(outputs) - 1}, once"
    is_request = isinstance(got[1], int) and 0 <= got[1] < len(outputs)
    return "" if is_request else f"who is {quote(got[1])}, where a request's number, 0 to {len(outputs) - 1}, is needed"


@exercise("1.5", points=3, solution=best_order, mistakes=ORDER_MISTAKES)
def check_1_5(c, answer):
    runs = c.cases("it makes an order", answer, KNOWN, ordered, list, draw_queues)
    odd = next((run for run in runs if run.got.form), None)
    told = odd and f"best_order{odd.case}: {odd.got.form}"
    if not c.true("an order, and the number of a request", odd is None, told, points=0):
        return c.wait("the rest")
    idle, arrival = (sum(getattr(run.got, name) for run in runs) for name in ("idle", "arrival"))
    told = f"in all cases together you leave {some(idle, 'slot-step')} idle, and the orders of arrival {arrival}"
    if not c.true("it wastes less than the order of arrival", idle < arrival, told):
        return c.wait("the rest")
    slow = next((run for run in runs if run.got.idle > run.want.idle), runs[0])
    where = f"for the outputs {slow.case[0]} in {some(slow.case[1], 'batch slot')}"
    c.par("idle slot-steps", slow.got.idle, slow.want.idle, where=where)
    wrong = next((run for run in runs if run.got.more), None)
    paid = wrong and ("pays " if wrong.got.paid >= 0 else "gains ") + some(abs(wrong.got.paid), "iteration")
    told = wrong and f"best_order{wrong.case}: with your order the request that you name {paid}, and another pays more"
    c.true("who pays most for your order", wrong is None, told)
