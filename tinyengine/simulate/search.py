"""How much load a deployment can take under an SLO, and what it gives at each load."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tinyengine.simulate.report import Report

FURTHEST = 2**12
Trial = Callable[[float], Report]  # a rate in requests a second -> what came of it


@dataclass(frozen=True)
class Capacity:
    """rate: the highest that was seen to hold, requests a second; 0.0 where even the lowest did not. report: its run.
    trials: every rate that was tried, in order, and whether it held."""

    rate: float
    report: Report | None
    trials: tuple[tuple[float, bool], ...]

    @property
    def is_bound(self) -> bool:
        """Whether no rate failed, so that `rate` is where the search ended, and no capacity."""
        return all(held for _, held in self.trials)


def holds(report: Report, tbt: float, delay: float = 2.0) -> bool:
    """Sarathi-Serve's condition (section 5.1): P99 TBT within the SLO, and a median scheduling delay that says the
    queue does not grow. A run in which no request got a second token has no TBT, and breaks none."""
    gap = report.tbt.percentile(0.99)
    return (gap is None or gap <= tbt) and report.delay.percentile(0.5) <= delay


def capacity(
    trial: Trial,
    tbt: float,
    delay: float = 2.0,
    start: float = 1.0,
    precision: float = 0.02,
    progress: Callable[[], object] = lambda: None,
) -> Capacity:
    """The highest rate that holds, to `precision`: doubled or halved from `start` to a bracket, then cut in two in
    proportion. Goes no further than FURTHEST times below and above `start`. progress: called after each trial."""
    tried: list[tuple[float, bool]] = []
    best: Report | None = None

    def try_rate(rate: float) -> bool:
        nonlocal best
        report = trial(rate)
        tried.append((rate, holds(report, tbt, delay)))
        if tried[-1][1]:
            best = report
        progress()
        return tried[-1][1]

    low = high = start
    if try_rate(start):
        while try_rate(high := 2 * low):
            low = high
            if low >= FURTHEST * start:
                return Capacity(low, best, tuple(tried))
    else:
        while not try_rate(low := high / 2):
            high = low
            if high <= start / FURTHEST:
                return Capacity(0.0, None, tuple(tried))
    while high / low > 1 + precision:
        middle = (low * high) ** 0.5
        if try_rate(middle):
            low = middle
        else:
            high = middle
    return Capacity(low, best, tuple(tried))


def curve(trial: Trial, rates: Iterable[float], progress: Callable[[], object] = lambda: None) -> list[dict]:
    """Latency against load: for each rate the numbers of its report, as JSON has them."""
    points = []
    for rate in rates:
        points.append({"rate": rate, **trial(rate).to_json()})
        progress()
    return points
