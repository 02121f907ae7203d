"""Traces to draw: runs of the real schedulers without a model, and a toy that chunks and preempts."""

import random

from tinyengine.memory import Slots
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Scheduler
from tinyengine.trace import Event, Iteration, RequestRecord, Span, Trace

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
        Iteration(0.0, 0.5, (Span("r0", 0, 4),), ("r1", "r2"), budget=4),
        Iteration(0.5, 0.5, (Span("r0", 4, 2, (70,)), Span("r1", 0, 2, (71,))), ("r2",), budget=4),
        Iteration(1.0, 0.25, (Span("r0", 6, 1, (72,)), Span("r1", 2, 1, (73,)), Span("r2", 0, 2)), (), budget=4),
        Iteration(1.25, 0.25, (Span("r0", 7, 1, (74,)), Span("r1", 3, 1, (75,))), (), padding=2, budget=2),
        Iteration(2.0, 0.25, (Span("r2", 2, 2, (76,)),), ("r1",), budget=4),
        Iteration(2.25, 0.25, (Span("r1", 0, 4, (77,), recomputed=4), Span("r2", 4, 1, (78,))), (), budget=5),
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


def run(make: type[Scheduler], work: list[Request], max_num_seqs: int = 4, stage: str = "") -> Trace:
    """The scheduler serves `work`; each iteration lasts 1 ms and 20 us a token, padding as a rectangle has it."""
    scheduler = make(Slots(100_000), max_num_seqs)
    trace = Trace(stage or make.__name__.lower(), max_num_seqs, 100_000)
    for request in work:
        scheduler.add(request)
        trace.arrive(request)
    time, chance = 0.0, random.Random(0)
    while plan := scheduler.schedule():
        widest = max(n_tokens for _, n_tokens in plan)
        padding = widest * scheduler.rows(plan) - sum(n_tokens for _, n_tokens in plan)
        duration = 0.001 + 0.00002 * widest * scheduler.rows(plan)
        tokens = [chance.randrange(1000) for _ in plan]
        waiting = tuple(request.request_id for request in scheduler.waiting)
        trace.record(
            plan, tokens, scheduler.memory.holdings(), time=time, duration=duration, waiting=waiting, padding=padding
        )
        for token in scheduler.commit(plan, tokens):
            trace.pieces.setdefault(token.request.request_id, []).append(f" word{token.token_id}")
            if token.finish_reason:
                trace.event("finish", token.request.request_id, token.finish_reason)
        time += duration
    return trace


def wander(names: list[str], slots: int, count: int, chance: random.Random) -> Trace:
    """A scheduler that does anything that a Trace allows: chunks, pauses, preempts, aborts, guesses, at random."""
    trace = Trace("", slots)
    waiting, running, computed, total, reached = list(names), [], {}, {}, dict.fromkeys(names, 0)
    for name in names:
        trace.requests[name] = RequestRecord(name, chance.randint(1, 6), 100, 0.0)
        trace.events.append(Event(0, "arrive", name))
        computed[name], total[name] = 0, trace.requests[name].num_prompt_tokens
    for number in range(count):
        for name in [name for name in running if chance.random() < 0.15]:
            trace.events.append(Event(number, "preempt", name))
            running.remove(name)
            waiting.insert(chance.randint(0, len(waiting)), name)
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
        record = Iteration(number / 8, 0.125, tuple(spans), tuple(waiting), chance.randint(0, 3))
        trace.iterations.append(record)
        for name in [name for name in running + waiting if chance.random() < 0.1]:
            trace.events.append(Event(number, chance.choice(["finish", "abort"]), name, chance.choice([None, "stop"])))
            (running if name in running else waiting).remove(name)
    return trace
