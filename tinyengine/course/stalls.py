"""What lesson 05 draws and measures: Sarathi-Serve's figure 7 on this package's own schedulers, the longest gap between
two tokens, and runs without the noise of the machine."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import inf

from tinyengine.memory import Blocks, Slots
from tinyengine.metrics import token_times
from tinyengine.scheduler import Chunked, Orca, Static
from tinyengine.simulate.cost import Load
from tinyengine.simulate.executor import Simulator, new_trace
from tinyengine.simulate.schedulers import PrefillFirst
from tinyengine.trace import Trace
from tinyengine.workload import Job

ROOM = 1024  # K/V slots: memory is not the subject
BLOCK = 4


class Ridge:
    """An iteration takes a second, or longer where it has more rows than a second is enough for."""

    stages = 1

    def __init__(self, rows: int):
        self.rows = rows

    def seconds(self, load: Load) -> float:
        return max(1.0, load.tokens / self.rows)


def four_schedulers(jobs: Mapping[str, tuple[int, int, float]], rows: int, budget: int, seats: int = 4) -> dict:
    """A trace of each scheduler in Sarathi-Serve's figure 7 (OSDI 2024), by name.

    jobs: (prompt, output, arrival) by name, in order of arrival. rows: that an iteration computes in a second. budget:
    tokens of the last one's iterations. seats: most requests in a batch (two in the static one, as in the figure).
    """
    schedulers = {
        "static": Static(Slots(ROOM), 2),
        "orca": Orca(Slots(ROOM), seats),
        "prefill_first": PrefillFirst(Blocks(ROOM // BLOCK, BLOCK), seats),
        "chunked": Chunked(Blocks(ROOM // BLOCK, BLOCK), seats, budget),
    }
    return {name: simulated(name, scheduler, jobs, rows) for name, scheduler in schedulers.items()}


def simulated(name: str, scheduler, jobs: Mapping[str, tuple[int, int, float]], rows: int) -> Trace:
    trace = new_trace(name, scheduler)
    simulator = Simulator(scheduler, Ridge(rows), trace)
    simulator.name = list(jobs).__getitem__
    simulator.run(Job(arrival, prompt, output) for prompt, output, arrival in jobs.values())
    return trace


def gaps(trace: Trace) -> dict[str, list[float]]:
    """The times between two tokens of each request, by request id."""
    return {name: [b - a for a, b in pairwise(times)] for name, times in token_times(trace).items()}


def longest_gap(trace: Trace) -> float:
    """0 where no request has two tokens."""
    return max((gap for own in gaps(trace).values() for gap in own), default=0.0)


def first_token(trace: Trace, request_id: str) -> float:
    """The time from its arrival to its first token."""
    return token_times(trace)[request_id][0] - trace.requests[request_id].arrival


def undisturbed(traces: Sequence[Trace]) -> Trace:
    """A run in which every iteration took its least time over several runs of the same plans: what its work costs. The
    longest gap of a single run would report when the machine was away. Arrivals move with their iterations."""
    ends = [[trace.iterations[0].time, *(iteration.end for iteration in trace.iterations)] for trace in traces]
    taken = ([end - start for start, end in pairwise(moments)] for moments in ends)
    durations = [min(column) for column in zip(*taken, strict=True)]
    starts = list(accumulate(durations, initial=ends[0][0]))
    iterations = [
        replace(iteration, time=start, duration=duration)
        for iteration, start, duration in zip(traces[0].iterations, starts, durations)
    ]

    def moved(arrival: float) -> float:
        """It keeps its distance from the end of the iteration before it."""
        n = max(0, bisect_right(ends[0], arrival) - 1)
        return starts[n] + min(arrival - ends[0][n], durations[n] if n < len(durations) else inf)

    requests = {name: replace(own, arrival=moved(own.arrival)) for name, own in traces[0].requests.items()}
    return replace(traces[0], iterations=iterations, requests=requests)
