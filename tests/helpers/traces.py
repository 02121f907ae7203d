"""Traces to draw: runs of the real schedulers without a model, and a toy that chunks and preempts."""

import random
from collections.abc import Callable

from tinyengine.memory import Blocks, Holding, Slots
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.priority import Prioritised
from tinyengine.request import Request, SamplingParams, Slo
from tinyengine.scheduler import Chunked, Orca, Paged, Scheduler, Static
from tinyengine.speculate import Speculative
from tinyengine.trace import Event, Iteration, RequestRecord, Span, Trace


class Busy(Speculative, Prioritised, Chunked):
    pass


BUSY = {"max_num_batched_tokens": 16, "num_speculative_tokens": 3}
# One of each: chunks, a decode, a request held without budget, a preemption, its recompute, an abort.
CHUNKS = Trace(
    stage="chunked",
    max_num_seqs=3,
    requests={
        "r0": RequestRecord("r0", 6, 3, 0.0),
        "r1": RequestRecord("r1", 2, 4, 0.0),
        "r2": RequestRecord("r2", 4, 9, 0.0),
    },
    iterations=[
        Iteration(0.0, 0.5, (Span("r0", 0, 4),), budget=4),
        Iteration(0.5, 0.5, (Span("r0", 4, 2, (70,)), Span("r1", 0, 2, (71,))), budget=4),
        Iteration(1.0, 0.25, (Span("r0", 6, 1, (72,)), Span("r1", 2, 1, (73,)), Span("r2", 0, 2)), budget=4),
        Iteration(1.25, 0.25, (Span("r0", 7, 1, (74,)), Span("r1", 3, 1, (75,))), padding=2, budget=2),
        Iteration(2.0, 0.25, (Span("r2", 2, 2, (76,)),), budget=4),
        Iteration(2.25, 0.25, (Span("r1", 0, 4, (77,), recomputed=4), Span("r2", 4, 1, (78,))), budget=5),
    ],
    events=[
        *(Event(0, "arrive", request_id) for request_id in ("r0", "r1", "r2")),
        Event(0, "admit", "r0"),
        Event(1, "admit", "r1"),
        Event(2, "admit", "r2"),
        Event(3, "finish", "r0", "length"),
        Event(4, "preempt", "r1"),
        Event(5, "admit", "r1"),
        Event(5, "finish", "r1", "length"),
        Event(5, "abort", "r2"),
    ],
    pieces={"r0": [" Paris", "</script>", "."], "r1": ["a", "b", "c"], "r2": ["x", "y"]},
)


def sized(*sizes: tuple[int, int]) -> list[Request]:
    """Requests r0, r1, ... of (prompt, output) tokens."""
    return [
        Request(f"r{n}", [1] * prompt, SamplingParams(max_tokens=output)) for n, (prompt, output) in enumerate(sizes)
    ]


def requests(count: int = 12, longest: int = 24, prompt: int = 12, seed: int = 3) -> list[Request]:
    chance = random.Random(seed)
    return sized(*((chance.randint(1, prompt), chance.randint(2, longest)) for _ in range(count)))


class Stepper:
    """An engine without a model: an iteration lasts 1 ms and 20 us a row; over slots, it is a padded rectangle.

    watch: called with each plan and the memory, before the plan is committed. queues: of each iteration, the queue that
    the scheduler itself has. keep: of the trace.
    """

    def __init__(
        self,
        make: type[Scheduler],
        work: list[Request],
        max_num_seqs: int = 4,
        memory: Slots | Blocks | None = None,
        alphabet: int = 1000,
        watch: Callable | None = None,
        keep: int | None = None,
        **options,
    ):
        self.memory = memory or Slots(100_000)
        self.scheduler = make(self.memory, max_num_seqs, **options)
        self.trace = Trace.of(make.__name__.lower(), self.scheduler, keep)
        self.queues: list[tuple[str, ...]] = []
        self.alphabet, self.watch, self.time, self.chance = alphabet, watch, 0.0, random.Random(0)
        self.add(*work)

    def add(self, *work: Request):
        for request in work:
            self.scheduler.add(request)
            self.trace.arrive(request)
            self.trace.pieces[request.request_id] = []

    def abort(self, request: Request):
        self.scheduler.abort(request)
        if request.request_id in self.trace.requests:  # as the engine does
            self.trace.event("abort", request.request_id)

    def fail(self):
        """A step whose model raises: what was planned is not computed."""
        self.trace.hold(self.memory.holders)
        self.scheduler.schedule()

    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished()

    def step(self):
        budget = self.scheduler.token_budget
        self.trace.hold(self.memory.holders)
        plan = self.scheduler.schedule()
        computed = sum(n_tokens for _, n_tokens in plan)
        is_padded = self.memory.contiguous
        rows = max(n_tokens for _, n_tokens in plan) * self.scheduler.height(plan) if is_padded else computed
        if self.watch:
            self.watch(plan, self.memory)
        tokens = [_tokens(request, n_tokens, self.alphabet, self.chance) for request, n_tokens in plan]
        self.queues.append(tuple(request.request_id for request in self.scheduler.waiting))
        fields = {"duration": 0.001 + 0.00002 * rows, "padding": rows - computed, "budget": budget}
        iteration = self.trace.iteration(plan, tokens, self.memory, time=self.time, **fields)
        events = self.scheduler.commit(plan, tokens)
        self.trace.append(iteration)
        for token in events:
            if token.request.request_id in self.trace.pieces:
                self.trace.pieces[token.request.request_id].append(f" word{token.token_id}")
            if token.finish_reason:
                self.trace.event("finish", token.request.request_id, token.finish_reason)
        self.time += fields["duration"]


def wild(seed: int, keep: int | None = None) -> Stepper:
    """Any scheduler in a small arena: requests arrive, are preempted and aborted, and steps fail, all the time."""
    chance = random.Random(seed)
    kind, memory, options = chance.choice(
        [
            (Static, Slots(60), {}),
            (Orca, Slots(60), {}),
            (Paged, Blocks(12, 4), {}),
            (Chunked, Blocks(12, 4), {"max_num_batched_tokens": 9}),
            (Busy, CachedBlocks(12, 4), BUSY | {"policy": "fcfs"}),
            (Busy, Blocks(12, 4), BUSY | {"policy": "priority"}),
        ]
    )
    engine = Stepper(kind, [], 4, memory, alphabet=3, keep=keep, **options)
    alive: list[Request] = []
    count = 0
    while count < 40 or engine.has_unfinished():
        for _ in range(chance.choice([0, 0, 1, 4]) if count < 40 else 0):
            params = SamplingParams(max_tokens=chance.randint(1, 20), ignore_eos=True)
            slo = Slo(chance.choice([None, 0.01, 0.1]), None)
            fields = {"arrival": engine.time, "priority": chance.randint(0, 1), "slo": slo}
            alive.append(Request(f"r{count}", [1] * chance.randint(1, 20), params, **fields))
            engine.add(alive[-1])
            count += 1
        alive = [request for request in alive if not request.finished]
        if alive and chance.random() < 0.05:
            engine.abort(chance.choice(alive))
        if chance.random() < 0.1:
            engine.fail()
        if engine.has_unfinished():
            engine.step()
    return engine


def run(*args, **options) -> Trace:
    """The trace of a Stepper that has run to its end."""
    engine = Stepper(*args, **options)
    while engine.has_unfinished():
        engine.step()
    return engine.trace


def cut(trace: Trace, count: int) -> Trace:
    """The trace without its first `count` iterations, as one that forgets has them not."""
    rest = Trace.from_json(trace.to_json())
    rest.forget(count)
    return rest


def _tokens(request: Request, n_tokens: int, alphabet: int, chance: random.Random) -> int | list[int] | None:
    """What a model without any sense would answer: of a draft, some are right."""
    if n_tokens < request.gap:
        return None
    new = chance.randrange(alphabet)
    if not request.guesses:
        return new
    guesses = request.tokens[-request.guesses :]
    return [*guesses[: chance.randint(0, request.guesses)], new]


def busy(seed: int, prefix: int = 0, **options) -> Trace:
    """Chunks over so few blocks that requests are preempted, with guesses, and with `prefix` tokens in common."""
    chance = random.Random(seed)
    work = [
        Request(
            f"r{n}", [5] * prefix + [chance.randrange(3) for _ in range(chance.randint(1, 30))],
            SamplingParams(max_tokens=chance.randint(1, 20), ignore_eos=True),
        )
        for n in range(9)
    ]  # fmt: skip
    blocks = max(8, -(-(prefix + 50) // 4) + chance.randint(0, 6))
    memory = CachedBlocks(blocks, 4) if prefix else Blocks(blocks, 4)
    return run(Busy, work, 4, memory, 3, **BUSY | {"policy": "fcfs"} | options)


def wander(names: list[str], slots: int, count: int, chance: random.Random) -> Trace:
    """A scheduler that does anything that a Trace allows: chunks, pauses, preempts, aborts, guesses, at random."""
    trace = Trace("", slots, 400)
    memory: dict[str, Holding] = {}
    waiting, running, computed, total, reached = list(names), [], {}, {}, dict.fromkeys(names, 0)
    for name in names:
        trace.requests[name] = RequestRecord(name, chance.randint(1, 6), 100, 0.0)
        trace.events.append(Event(0, "arrive", name))
        computed[name], total[name] = 0, trace.requests[name].num_prompt_tokens
    for number in range(count):
        for name in [name for name in running if chance.random() < 0.15]:
            trace.events.append(Event(number, "preempt", name))
            running.remove(name)
            del memory[name]
            waiting.insert(0, name)
            computed[name] = 0
        while waiting and len(running) < slots and chance.random() < 0.7:
            running.append(waiting.pop(0))
            trace.events.append(Event(number, "admit", running[-1]))
        spans = []
        for name in [name for name in running if chance.random() < 0.8]:
            draft = chance.choice([0, 0, 1, 3]) if total[name] - computed[name] == 1 else 0
            size = chance.randint(1, total[name] - computed[name]) + draft
            new = chance.randint(1, draft + 1) if computed[name] + size - draft == total[name] else 0
            tokens = tuple(chance.randint(0, 511) for _ in range(new))
            span = Span(name, computed[name], size, tokens, draft, min(size, max(0, reached[name] - computed[name])))
            spans.append(span)
            computed[name] = span.end
            reached[name] = max(reached[name], span.end)
            total[name] += new
            trace.pieces.setdefault(name, []).extend([name + "<"] * new)
        for name in running:
            memory[name] = _held(memory.get(name), computed[name], chance)
        held = {name: memory[name] for name in running}
        record = Iteration(number / 8, 0.125, tuple(spans), chance.randint(0, 3), memory=held)
        trace.iterations.append(record)
        for name in [name for name in running + waiting if chance.random() < 0.1]:
            trace.events.append(Event(number, chance.choice(["finish", "abort"]), name, chance.choice([None, "stop"])))
            (running if name in running else waiting).remove(name)
            memory.pop(name, None)
    return trace


def _held(before: Holding | None, computed: int, chance: random.Random) -> Holding:
    """Grows at its end, in a new range, or comes to lie anywhere else."""
    ranges = list(before.ranges) if before and chance.random() < 0.9 else []
    if ranges and chance.random() < 0.4:
        ranges[-1] = (ranges[-1][0], ranges[-1][1] + chance.randint(1, 4))
    if not ranges or chance.random() < 0.3:
        first = chance.randint(0, 50)
        ranges.append((first, first + chance.randint(1, 8)))
    return Holding(tuple(ranges), computed if chance.random() < 0.8 else chance.randint(0, 9))
