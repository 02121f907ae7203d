"""Exercise 5.6: a scheduler with five faults, the promises that it breaks, and where each of them shows."""

from typing import NamedTuple

from tinyengine.course.budgeting import Budgeted, draw, with_budget
from tinyengine.course.checks import ends, quote
from tinyengine.course.paging import Pool
from tinyengine.course.watch import is_pair, some
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Scheduler


class Broken(Scheduler):
    """A token budget, and chunks in whole tiles; with five faults."""

    tile = 4  # tokens

    def __init__(self, memory, max_num_seqs=8, max_num_batched_tokens=16):
        super().__init__(memory, max_num_seqs)
        self.max_num_batched_tokens = max_num_batched_tokens

    def schedule(self):
        """This iteration's [(request, n_tokens), ...]; [] when nothing can run."""
        self.plan, self.left = [], self.max_num_batched_tokens
        ran = list(self.running)
        while self.left and self.waiting and len(self.running) < self.max_num_seqs:
            if not self.memory.admit(self.waiting[0]):
                break
            self.running.append(self.waiting.popleft())
            self.give(self.running[-1])
        for request in ran:
            self.give(request)
        return self.plan

    def give(self, request):
        """Gives a running request tokens of the budget, and the blocks for them."""
        n_tokens = self.chunk(request)
        while n_tokens and request in self.running:
            if self.memory.grow(request, request.computed + n_tokens):
                self.plan.append((request, n_tokens))
                self.left -= 1
                return
            self.preempt(self.running[-1])

    def chunk(self, request):
        """How many of its open tokens fit into the budget, in whole tiles."""
        n_tokens = min(request.gap, self.left)
        if request.gap == 1:  # a decode
            return n_tokens
        return n_tokens // self.tile * self.tile

    def preempt(self, request):
        """Its K/V are gone: it waits in front, to begin anew."""
        self.running.remove(request)
        self.memory.release(request)
        request.computed = 0
        request.tokens = list(request.prompt_token_ids)
        self.waiting.appendleft(request)

    def emits(self, request, n_tokens):
        """The model's next token is due after these n_tokens of the request."""
        return request.computed + n_tokens >= request.num_prompt_tokens


class Tiled(Budgeted):
    """One run of a scheduler whose chunks are whole tiles; after each plan it says who is due a token."""

    joins_with_tokens = False  # no promise of 5.6

    def share(self, request: Request, left: int) -> int:
        whole = left // Broken.tile * Broken.tile
        return request.gap if request.gap <= left else whole or left

    def look(self, scheduler, queue, ran, plan) -> None:
        super().look(scheduler, queue, ran, plan)
        for request, n_tokens in plan:
            emits = bool(ends(scheduler.emits, request, n_tokens))
            if emits != (n_tokens == request.gap):
                told = f"computes {n_tokens} of {some(request.gap, 'open token')}"
                self.note("emits", f"{request.request_id} {told}, and emits() is {emits}")


class State(NamedTuple):
    """A scheduler in the middle of a run. running: (name, prompt, outputs, computed) each; waiting: (name, prompt)."""

    running: list[tuple[str, int, int, int]]
    waiting: list[tuple[str, int]]
    n_blocks: int
    budget: int


def made(scheduler_class, state: State):
    """(a scheduler in this state, its requests by name)"""
    memory = Pool(state.n_blocks, lambda rule, sentence: None)
    scheduler = with_budget(scheduler_class, state.budget)(memory, 16)
    requests = {}
    for name, prompt, *progress in [*state.running, *state.waiting]:
        requests[name] = request = Request(name, [1] * prompt, SamplingParams(max_tokens=99, ignore_eos=True))
        if progress:
            outputs, request.computed = progress
            request.tokens += [2] * outputs
            memory.holders[name] = request
            memory.grow(request, request.computed)
            scheduler.running.append(request)
        else:
            scheduler.waiting.append(request)
    return scheduler, requests


def one_step(scheduler_class, state: State) -> dict:
    """The plan that a scheduler makes in a state, and how many tokens the requests have then."""
    scheduler, requests = made(scheduler_class, state)
    plan = ends(scheduler.schedule)
    if not (isinstance(plan, list | tuple) and all(map(is_pair, plan))):
        return {"odd": quote(plan), "plan": {}, "tokens": {}}
    return {
        "plan": {request.request_id: n_tokens for request, n_tokens in plan},
        "tokens": {name: len(request.tokens) for name, request in requests.items()},
    }


def said(scheduler_class, case: tuple[int, int, int, int]) -> bool:
    """What emits() says. case: (prompt, outputs, computed, n_tokens)."""
    *progress, n_tokens = case
    scheduler, requests = made(scheduler_class, State([("a", *progress)], [], 40, 16))
    return bool(ends(scheduler.emits, requests["a"], n_tokens))


def find_faults(scheduler_class, cases: dict) -> None:
    """Prints the first broken promise of each case, and draws the longest run that breaks one."""
    runs = {name: Tiled(scheduler_class, case, named=name) for name, case in cases.items()}
    for name, one in runs.items():
        print(one.trouble or f"case {name!r}: nothing is broken")
    broken = [one for one in runs.values() if one.trouble] or list(runs.values())
    longest = max(broken, key=lambda one: len(one.trace.iterations))
    first = next(iter(longest.when.values()), 1)
    draw(longest.trace, iteration=max(1, min(first, len(longest.trace.iterations))))


# What each promise is looked at in. Schedulers in the middle of a run, where no other fault shows; whole runs.
EMITS = [(6, 0, 0, 4), (6, 0, 4, 2), (6, 3, 8, 1), (6, 5, 0, 8), (6, 5, 4, 4), (6, 5, 8, 3), (4, 0, 0, 4)]
PAID = [
    State([], [("a", 8), ("b", 8)], 40, 8),
    State([("a", 12, 0, 4), ("b", 12, 0, 4)], [], 40, 12),
    State([("a", 3, 2, 4)], [("b", 16), ("c", 4)], 40, 9),
]
BEFORE = [State([(name, 3, 1, 3) for name in "abcd"], [("e", 9)], 40, 4)]
KEPT = [State([("a", 3, 2, 4), ("b", 3, 2, 4)], [], 2, 8), State([("a", 6, 3, 8), ("b", 2, 9, 10)], [("c", 9)], 5, 8)]
WHOLE = [
    State([("a", 11, 0, 8)], [], 40, 16),
    State([], [("a", 7)], 40, 16),
    State([("a", 13, 0, 4)], [], 40, 3),
    State([("a", 13, 0, 4)], [], 40, 6),
    State([("a", 14, 6, 8)], [], 40, 2),
]
TILED = {
    "a prompt of 11": ([(11, 3)], 2, 8, 16),
    "a prompt after answers": ([(4, 8), (4, 8), (21, 2)], 3, 20, 8),
    "blocks run out": ([(4, 13), (4, 9), (3, 9)], 3, 5, 8),
    "all at once": ([(8, 3), (8, 3), (3, 6), (16, 2)], 4, 20, 8),
}


def drawn_states(random):
    """States for the fault `emits`, as (prompt, outputs, computed, n_tokens)."""
    cases = []
    for _ in range(6):
        prompt, outputs = random.randint(1, 12), random.randint(0, 8)
        computed = random.randint(0, prompt + outputs - 1)
        cases.append((prompt, outputs, computed, random.randint(1, prompt + outputs - computed)))
    return cases


def draw_whole(random):
    """One request with a rest of any size, and a budget of any size."""
    progress = [(random.randint(12, 30), random.randint(0, 3), 4 * random.randint(0, 2)) for _ in range(6)]
    return [State([("a", *own)], [], 40, random.randint(1, 24)) for own in progress]


def state_told(state: State) -> str:
    """A state in words."""
    run = [f"{name} with {computed} of {prompt + out} tokens computed" for name, prompt, out, computed in state.running]
    wait = [f"{name} with {some(prompt, 'token')}" for name, prompt in state.waiting]
    parts = [f"running: {', '.join(run)}"] * bool(run) + [f"waiting: {', '.join(wait)}"] * bool(wait)
    return f"{'; '.join(parts)}; a budget of {state.budget}, {some(state.n_blocks, 'block')}"


def said_wrong(run) -> str:
    prompt, outputs, computed, n_tokens = run.case
    written = f" and {outputs} it has written" if outputs else ""
    told = f"a request of {some(prompt, 'prompt token')}{written}, {computed} of them computed: "
    return "" if run.got == run.want else f"{told}for the next {n_tokens} emits() is {run.got}"


def paid_wrong(run) -> str:
    total = sum(run.got["plan"].values())
    return "" if total <= run.case.budget else f"the plan has {total} tokens"


def before_wrong(run) -> str:
    plan = run.got["plan"]
    left_out = next((name for name, *_ in run.case.running if name not in plan), None)
    others = [f"{name} gets {some(plan[name], 'token')}" for name, _ in run.case.waiting if name in plan]
    return f"{left_out} runs and gets no token{', and '.join(['', *others])}" if left_out else ""


def kept_wrong(run) -> str:
    had = {name: prompt + outputs for name, prompt, outputs, _ in run.case.running}
    lost = next((name for name, number in had.items() if run.got["tokens"][name] != number), None)
    return f"{lost} had {had[lost]} tokens, and has {run.got['tokens'][lost]} after schedule()" if lost else ""


def whole_wrong(run) -> str:
    got, want = run.got["plan"].get("a", 0), run.want["plan"]["a"]
    return "" if got == want else f"a is planned with {some(got, 'token')}"


PROMISES = [  # name, states, what is wrong in a run, more states, how a state is run, what shows a mistake
    ("a token comes after the last chunk only", EMITS, said_wrong, drawn_states, said, bool),
    ("no plan has more tokens than the budget", PAID, paid_wrong, None, one_step,
     lambda got: sum(got["plan"].values())),
    ("those that run come first", BEFORE, before_wrong, None, one_step,
     lambda got: set("abcd") <= got["plan"].keys()),
    ("a preempted request keeps its tokens", KEPT, kept_wrong, None, one_step, lambda got: got["tokens"]),
    ("chunks are whole tiles, and never empty", WHOLE, whole_wrong, draw_whole, one_step,
     lambda got: got["plan"].get("a", 0)),
]  # fmt: skip
