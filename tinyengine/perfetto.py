"""A trace as Chrome trace JSON, for ui.perfetto.dev and every other tool that reads that format. No torch.

Two processes: the engine, with a slice per iteration and counters beside it, and the requests, each a thread with its
waiting times and its share of every iteration. Times are microseconds since the first arrival (of a trace that forgets:
since its first iteration), in steps of 1 ns.

Source: Trace Event Format, the kinds "M" (names), "X" (slices), "C" (counters) and "i" (instants).
"""

from tinyengine.trace import Iteration, Trace

ENGINE, REQUESTS = 1, 2  # process ids
MARKS = ("admit", "preempt", "finish", "abort")


def chrome_events(trace: Trace) -> dict:
    """The object to be written as JSON. Slices of one thread never overlap, so that no reader drops one."""
    arrivals = [] if trace.forgotten else [record.arrival for record in trace.requests.values()]
    origin = min([*arrivals, *(iteration.time for iteration in trace.iterations)], default=0.0)
    threads = {request_id: number for number, request_id in enumerate(trace.requests, 1)}
    events = [
        _name("process_name", ENGINE, 0, f"engine {trace.stage}".strip()),
        _name("thread_name", ENGINE, 0, "iterations"),
    ]
    events.append(_name("process_name", REQUESTS, 0, "requests"))
    events += [
        _name("thread_name", REQUESTS, thread, request_id.encode("utf-8", "replace").decode())
        for request_id, thread in threads.items()
    ]
    for number, (iteration, waiting) in enumerate(zip(trace.iterations, trace.queue_lengths(), strict=True)):
        events += _iteration(trace, number, iteration, waiting, threads, origin)
    events += _waits(trace, threads, origin)
    events += _marks(trace, threads, origin)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _iteration(
    trace: Trace, number: int, iteration: Iteration, waiting: int, threads: dict[str, int], origin: float
) -> list[dict]:
    start, end = iteration.time - origin, iteration.end - origin
    sizes = {"tokens": iteration.num_tokens, "padding": iteration.padding, "budget": iteration.budget}
    events = [_slice(f"iteration {number + 1}", ENGINE, 0, start, end, {"iteration": number + 1, **sizes})]
    counters = {"running": len(iteration.spans), "waiting": waiting, "rows": sizes["tokens"] + iteration.padding}
    counters["K/V slots held"] = sum(holding.reserved for holding in iteration.memory.values())
    events += [_event("C", name, ENGINE, 0, start, args={name: value}) for name, value in counters.items()]
    for span in iteration.spans:
        args = {"iteration": number, "start": span.start, "n_tokens": span.n_tokens, "tokens": list(span.tokens)}
        args |= {"draft": span.draft, "recomputed": span.recomputed}
        events.append(_slice(trace.phase(span), REQUESTS, threads[span.request_id], start, end, args))
    return events


def _waits(trace: Trace, threads: dict[str, int], origin: float) -> list[dict]:
    """From arrival to the first iteration, and between two iterations of a request that do not touch."""
    events = []
    free = {record.request_id: max(record.arrival, origin) for record in trace.requests.values()}
    for iteration in trace.iterations:
        for span in iteration.spans:
            since = free[span.request_id]
            if iteration.time > since and span.request_id in threads:
                args = {"seconds": iteration.time - since}
                wait = _slice("wait", REQUESTS, threads[span.request_id], since - origin, iteration.time - origin, args)
                events.append(wait)
            free[span.request_id] = iteration.end
    return [event for event in events if event["dur"]]


def _marks(trace: Trace, threads: dict[str, int], origin: float) -> list[dict]:
    """Admitted and preempted at the beginning of an iteration, ended at the end of one."""
    if not trace.iterations:
        return []
    events = []
    for event in trace.events:
        if event.kind not in MARKS or event.request_id not in threads:
            continue
        iteration = trace.iterations[min(max(event.iteration, 0), len(trace.iterations) - 1)]
        at = iteration.end if event.kind in ("finish", "abort") else iteration.time
        args = {"iteration": event.iteration, "detail": event.detail, "cached": event.cached}
        events.append(
            {**_event("i", event.kind, REQUESTS, threads[event.request_id], at - origin, args=args), "s": "t"}
        )
    return events


def _name(kind: str, process: int, thread: int, name: str) -> dict:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(name: str, process: int, thread: int, start: float, end: float, args: dict) -> dict:
    duration = (_nanoseconds(end) - _nanoseconds(start)) / 1000
    return {**_event("X", name, process, thread, start, args), "dur": duration}


def _event(kind: str, name: str, process: int, thread: int, seconds: float, args: dict) -> dict:
    return {"ph": kind, "name": name, "pid": process, "tid": thread, "ts": _nanoseconds(seconds) / 1000, "args": args}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
