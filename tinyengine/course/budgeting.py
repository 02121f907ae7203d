"""What exercises 05 need: schedulers with a token budget under watch, requests with priorities and deadlines, a text
written with guesses."""

from typing import NamedTuple

from tinyengine.course import paging
from tinyengine.course.checks import ends, quote
from tinyengine.course.display import in_notebook, publish
from tinyengine.course.paging import Paging
from tinyengine.course.plugged import plugged
from tinyengine.course.watch import guarded, serve, some
from tinyengine.memory import Blocks
from tinyengine.request import Request
from tinyengine.speculate import look_up
from tinyengine.workload import workload

SIZE = paging.SIZE  # slots of a block
EOS = 0  # the token that ends a text, in 5.5
PATIENCE = 10  # seconds of waiting that make a request one priority more urgent, in 5.4


def engine(num_slots: int = 128, max_num_seqs: int = 4, budget: int = 12, **parts):
    """The real engine, stage chunked, with these parts of the learner's: MyChunked, MyBlocks, paged_attention."""
    sizes = dict(max_num_seqs=max_num_seqs, num_slots=num_slots, block_size=8, max_num_batched_tokens=budget)
    return plugged(paging.tiny(), "chunked", parts, **sizes)


def served(**parts) -> list[list[int]]:
    """The tokens of the course's eight requests, in an arena that is too small for all of them."""
    return [output.token_ids for output in workload("course").replay(engine(**parts))]


def be(number: int) -> str:
    return "is" if number == 1 else "are"


# 5.1


def with_budget(scheduler_class, budget: int):
    """The same class, made with this budget."""

    class Made(scheduler_class):
        def __init__(self, memory, max_num_seqs):
            super().__init__(memory, max_num_seqs, max_num_batched_tokens=budget)

    Made.__name__ = Made.__qualname__ = scheduler_class.__name__
    return Made


def show_run(scheduler_class, sizes, max_num_seqs: int, n_blocks: int, budget: int) -> None:
    """Draws a run with dummy tokens, and prints how many tokens each iteration computes."""
    scheduler = guarded(with_budget(scheduler_class, budget)(Blocks(n_blocks, SIZE), max_num_seqs))
    trace = serve(scheduler, sizes)
    totals = [sum(span.n_tokens for span in step.spans) for step in trace.iterations]
    print(f"{some(len(totals), 'iteration')}, tokens of each: {', '.join(map(str, totals))}")
    draw(trace, views=("slots", "memory"))


def draw(trace, **options) -> None:
    """The trace as a picture, in a notebook."""
    if in_notebook() and trace.iterations:
        from IPython.display import display

        from visualizers import show

        display(show(trace, **options))


class Budgeted(Paging):
    """One run of a scheduler with a token budget. case: (sizes, max_num_seqs, n_blocks, budget), blocks of 4 slots.

    faults: by rule the first sentence, in the order of time.
    """

    joins_with_tokens = True  # a request that joins must get a token at once

    def __init__(self, scheduler_class, case: tuple, named=None):
        sizes, max_num_seqs, n_blocks, self.budget = case
        each = ", ".join(f"r{number} {size}" for number, size in enumerate(sizes))
        room = f"{some(max_num_seqs, 'batch slot')}, {some(n_blocks, 'block')}, a budget of {self.budget}"
        self.told = f"case {named!r}" if named else f"requests (prompt, output) {each}; {room}"
        self._reached, self._plan, self._before = {}, [], []
        super().__init__(with_budget(scheduler_class, self.budget), case[:3], named)

    @property
    def trouble(self) -> str:
        """The first fault, or nothing."""
        return next(iter(self.faults.values()), "")

    def here(self) -> str:
        return f"{self.told}, iteration {len(self.plans) + 1}"

    def share(self, request: Request, left: int) -> int:
        """The tokens that a request is due, where so many of the budget are left."""
        return min(request.gap, left)

    def look(self, scheduler, queue, ran, plan) -> None:
        self._plan, self._before = plan, ran
        super().look(scheduler, queue, ran, plan)
        self._reached |= {request.request_id: request.computed + n_tokens for request, n_tokens in plan}

    def look_at_plan(self, scheduler, plan) -> None:
        ids = [request.request_id for request, _ in plan]
        for request, n_tokens in plan:
            name, planned = request.request_id, f"is planned with {some(n_tokens, 'token')}"
            if ids.count(name) > 1:
                self.note("plan", f"{name} is in the plan {some(ids.count(name), 'time')}")
            elif request.finished:
                self.note("plan", f"{name} is in the plan, and it has ended")
            elif request not in scheduler.running:
                self.note("plan", f"{name} is in the plan, but not in self.running")
            elif n_tokens < 1:
                self.note("plan", f"{name} {planned}")
            elif n_tokens > request.gap:
                self.note("plan", f"{name} {planned}, and {request.gap} of it are open")
        total = sum(n_tokens for _, n_tokens in plan)
        if total > self.budget:
            self.note("budget", f"the plan has {total} tokens, and the budget is {self.budget}")

    def look_at_places(self, scheduler, queue, plan) -> None:
        for request in [*queue, *scheduler.running]:
            waits, runs, name = request in scheduler.waiting, request in scheduler.running, request.request_id
            if not (waits or runs):
                self.note("plan", f"{name} is lost: it neither waits nor runs")
            elif waits and runs:
                self.note("plan", f"{name} runs and is still in self.waiting")
        unfinished = len(scheduler.waiting) + len(scheduler.running)
        if not plan and unfinished:
            self.note("plan", f"the plan is empty, and {some(unfinished, 'request')} {be(unfinished)} unfinished")
        self.look_at_shares(scheduler.running, dict(plan))

    def look_at_shares(self, running, planned: dict) -> None:
        """Each that runs gets what it is due of what those before it leave."""
        left = self.budget
        for place, request in enumerate(running):
            n_tokens, due = planned.get(request, 0), self.share(request, left)
            told = f"{request.request_id} has {some(request.gap, 'open token')} and gets {n_tokens or 'none'}"
            later = next((other for other in running[place + 1 :] if planned.get(other)), None)
            if n_tokens < due and later:
                self.note("share", f"{told}, while {later.request_id}, behind it, gets {planned[later]}")
            elif n_tokens < due:
                spare = left - n_tokens
                self.note("share", f"{told}, while {some(spare, 'token')} of the budget {be(spare)} left")
            elif due < n_tokens <= left:
                self.note("share", f"{told} of the {left} that are left")
            left = max(0, left - n_tokens)

    def look_at_memory(self, waiting, running) -> None:
        planned = dict(self._plan)
        for request in running:
            name, end = request.request_id, request.computed + planned.get(request, 0)
            has, needs, told = len(request.table), self.memory.blocks(end), some(end, "computed token")
            if has < needs:
                self.note("memory", f"{name} has {some(has, 'block')} for {told}")
            elif has > needs:
                self.note("more", f"{name} holds {some(has, 'block')} for {told}")
            if name not in self.memory.holders:
                self.note("memory", f"{name} runs, and memory.admit() was not asked")
        self.look_at_books(waiting)

    def look_at_victims(self, ran, running, waiting) -> None:
        reached = {request: self._reached.get(request.request_id, 0) for request in ran}
        again = next((request for request in ran if request in running and request.computed < reached[request]), None)
        if again:
            self.note("victim", f"{again.request_id} is preempted, and joins again in the same iteration")
        out = [request for request in ran if request in waiting]
        if not out:
            return
        last, names = min(out, key=self.place), ", ".join(request.request_id for request in out)
        newer = [request for request in ran if request in running and self.place(request) > self.place(last)]
        if newer:
            self.note("victim", f"{names} {be(len(out))} preempted, and {newer[0].request_id}, which is newer, runs on")
        left = max(0, self.budget - sum(n_tokens for _, n_tokens in self._plan))
        end = reached[last] + min(len(last.tokens) - reached[last], left)
        if not newer and sum(len(one.table) for one in running) + self.memory.blocks(end) <= self.memory.n_blocks:
            self.note("victim", f"{names} {be(len(out))} preempted, and {last.request_id} had blocks enough to go on")

    def look_at_joining(self, waiting, running, joined: int) -> None:
        left, planned = self.budget - sum(n_tokens for _, n_tokens in self._plan), dict(self._plan)
        idle = next((request for request in running if request not in planned and request not in self._before), None)
        if idle and left <= 0 and self.joins_with_tokens:
            self.note("joins", f"{idle.request_id} joins, and no token of the budget is left for it")
        preempts = any(request in waiting for request in self._before)
        if preempts or left <= 0 or not waiting or len(running) >= self.max_num_seqs:
            return
        if self.memory.fits(waiting[0]):
            free = f"a batch slot, the blocks for it and {some(left, 'token')} of the budget are free"
            self.note("late", f"{waiting[0].request_id} waits, while {free}")


def draw_cases(random, number: int = 4) -> list[tuple]:
    """Cases of 3 to 7 requests with some long prompts, in a pool that is too small for them."""
    cases = []
    for _ in range(number):
        prompts = [random.choice((random.randint(1, 5), random.randint(8, 24))) for _ in range(random.randint(3, 7))]
        sizes = [(prompt, random.randint(1, 10)) for prompt in prompts]
        largest = max(-(-(sum(size) - 1) // SIZE) for size in sizes)
        cases.append((sizes, random.randint(2, 4), random.randint(largest, 2 * largest), random.randint(3, 12)))
    return cases


def show_answers(prompts, budget: int, **parts) -> None:
    """Answers of the real engine with parts of the learner's, printed and drawn."""
    made = engine(budget=budget, **parts)
    for answer in made.generate(prompts):
        print(answer.text)
    draw(made.trace, views=("slots",))


# 5.2

# (tokens, seconds) of iterations of the embedded model, as `tinyengine bench stall` measured them on one CPU core.
MEASURED = [(16, 0.00206), (32, 0.0027), (64, 0.00433), (128, 0.00782), (256, 0.01534), (384, 0.02378), (512, 0.03327)]


def show_budget(token_budget, steps, promise: float):
    """A chart of the steps, and where the budget of an answer lies."""
    from visualizers.plots import iteration_time_vs_tokens  # imported here: it needs matplotlib

    try:
        budget = ends(token_budget, list(steps), promise)
    except ValueError as error:
        return publish(f"ValueError: {error}")
    chart = iteration_time_vs_tokens(steps)
    axes = chart.axes[0]
    if line := line_of(token_budget, steps, promise):
        tokens = [0, max(budget, *(n for n, _ in steps))]
        axes.plot(tokens, [1e3 * (line[0] + line[1] * n) for n in tokens], color="#0072B2", label="your line")
    axes.axhline(1e3 * promise, linestyle="--", color="#009E73", label="the promise")
    axes.axvline(budget, color="#D55E00", label=f"your budget: {budget} tokens")
    axes.set_ylim(0, 1.1e3 * max(promise, *(seconds for _, seconds in steps)))
    axes.legend(frameon=False, fontsize=8)
    return chart


def line_of(token_budget, steps, promise: float) -> tuple[float, float] | None:
    """(fixed, per_token) of the line that an answer goes by, from its budgets for two larger promises."""

    def budget(seconds: float) -> int:
        return ends(token_budget, list(steps), seconds)

    try:
        few, many = budget(2 * promise), budget(40 * promise)
        per_token = 38 * promise / (many - few)
        low, high = 2 * promise, 2 * promise + 2 * per_token
        for _ in range(16):  # where exactly does the budget become larger than `few`?
            middle = (low + high) / 2
            low, high = (low, middle) if budget(middle) > few else (middle, high)
    except Exception:  # no line is drawn
        return None
    return high - per_token * (few + 1), per_token


# 5.3, 5.4


class Ticket(NamedTuple):
    """What a policy looks at in a request. priority: the smaller, the more urgent. deadline: of its first token, in
    seconds; None without a promise."""

    name: str
    priority: int = 0
    arrival: float = 0
    deadline: float | None = None

    def __repr__(self) -> str:
        due = "" if self.deadline is None else f", deadline {self.deadline:g}"
        return f"{self.name}(priority {self.priority}, arrival {self.arrival:g}{due})"


def show_victims(choose_victim, running) -> None:
    """Prints who gives way, one after the other."""
    running = list(running)
    while running:
        victim = ends(choose_victim, list(running))
        print(f"of {', '.join(one.name for one in running)}: {quote(victim)}")
        if victim not in running:
            break
        running.remove(victim)


def stream(next_in_queue, requests) -> list[tuple[float, str]]:
    """One request leaves the queue each second: [(second, name), ...]. It ends at a choice that does not wait."""
    coming, waiting, order, now = sorted(requests, key=lambda one: one.arrival), [], [], 0
    while coming or waiting:
        while coming and coming[0].arrival <= now:
            waiting.append(coming.pop(0))
        if waiting:
            chosen = ends(next_in_queue, list(waiting), now)
            if chosen not in waiting:
                break
            waiting.remove(chosen)
            order.append((now, chosen.name))
        now += 1
    return order


def rush(urgent: int = 40) -> list[Ticket]:
    """An urgent request every second, and two that are in no hurry."""
    others = [Ticket("slow", priority=2, arrival=0), Ticket("slower", priority=3, arrival=1)]
    return others + [Ticket(f"u{number}", arrival=number, deadline=number + 2) for number in range(urgent)]


def show_stream(next_in_queue, requests) -> None:
    """Prints when each request leaves the queue."""
    order = {name: now for now, name in stream(next_in_queue, requests)}
    print("second: who leaves the queue")
    print(", ".join(f"{now}: {name}" for name, now in order.items()))
    for one in requests:
        if one.deadline is None and one.name in order:
            print(f"{one.name} waits {order[one.name] - one.arrival:g} s")


# 5.5


def written(accepted, case) -> tuple:
    """A text that is written with guesses: its tokens, and after each iteration (how long it is, `computed`).

    case: (a table, by which the "model" chooses by the text alone; the prompt). Ends with EOS or after 24 tokens.
    """
    table, prompt = case
    tokens, computed, log = list(prompt), 0, []
    while len(tokens) < len(prompt) + 24 and tokens[-1] != EOS:
        guesses = look_up(tokens, 3)
        text = tokens + guesses
        computed = len(text)
        ends_at = range(len(tokens), len(text) + 1)
        chosen = [table[(text[end - 1] + 2 * (end % 3)) % len(table)] for end in ends_at]
        holds, token, back = ends(accepted, list(guesses), list(chosen))
        tokens += [*guesses[: int(holds)], int(token)]
        computed -= int(back)
        log.append((len(tokens), computed))
    return tokens, log


def show_call(accepted, guesses, chosen) -> None:
    print(f"guesses {guesses}, chosen {chosen}: {quote(ends(accepted, list(guesses), list(chosen)))}")


def show_guesses(accepted, question: str, most: int = 4) -> None:
    """Writes an answer of the real model with up to `most` guesses each time, and prints what became of them."""
    import torch  # imported here, as what follows

    from tinyengine.attention import one_request
    from tinyengine.course.phases import encoded

    model, tokens = paging.tiny(), encoded(question)
    end, prompt, iterations = model.eos_token_ids, len(tokens), 0
    while len(tokens) < prompt + 64 and tokens[-1] not in end:
        guesses = look_up(tokens, most)
        text = tokens + guesses
        with torch.inference_mode():  # without a K/V cache: the text is short
            hidden = model(torch.tensor(text), torch.arange(len(text)), lambda layer, *qkv: one_request(*qkv))
            chosen = model.logits(hidden[len(tokens) - 1 :]).argmax(-1).tolist()
        holds, token, back = ends(accepted, [named(one, end) for one in guesses], [named(one, end) for one in chosen])
        new, iterations = [*guesses[:holds], chosen[holds] if token == EOS else token], iterations + 1
        tokens += new
        if guesses:
            print(f"{len(guesses)} guessed, {holds} hold, back by {back}: {model.tokenizer.decode(new)!r}")
    print(f"{len(tokens) - prompt} tokens in {iterations} iterations")


def named(token: int, end) -> int:
    """The model's own end of a text by the name that it has in 5.5."""
    return EOS if token in end else token
