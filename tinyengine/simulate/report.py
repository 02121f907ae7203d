"""What a simulated run comes to, gathered as it goes: no list in it grows with the number of requests."""

from dataclasses import dataclass, field
from math import floor, log

BINS = 500  # to a factor of e: a bin is 0.2 % wide


class Histogram:
    """Times in bins of 0.2 %, each with their sum: where all times of a bin are equal, its mean is exact."""

    def __init__(self):
        self.bins: dict[int | None, list] = {}  # bin -> [how many, their sum]; None: the zeros

    def __eq__(self, other) -> bool:
        return self.bins == other.bins

    def add(self, value: float, count: int = 1):
        key = floor(log(value) * BINS) if value > 0 else None
        found = self.bins.get(key)
        if found is None:
            self.bins[key] = [count, value * count]
        else:
            found[0] += count
            found[1] += value * count

    @property
    def count(self) -> int:
        return sum(count for count, _ in self.bins.values())

    @property
    def mean(self) -> float | None:
        return sum(total for _, total in self.bins.values()) / self.count if self.bins else None

    def percentile(self, share: float) -> float | None:
        """Linear between the two nearest ranks, each taken as the mean of its bin; None where nothing was added."""
        if not self.bins:
            return None
        place = share * (self.count - 1)
        low, high = self._rank(floor(place)), self._rank(min(floor(place) + 1, self.count - 1))
        return low + (high - low) * (place - floor(place))

    def _rank(self, rank: int) -> float:
        keys = sorted(self.bins, key=lambda key: float("-inf") if key is None else key)
        for key in keys:
            count, total = self.bins[key]
            if rank < count:
                return total / count
            rank -= count
        raise IndexError("the rank is beyond the histogram")

    def to_json(self) -> dict:
        return {
            "mean": self.mean,
            **{f"p{percent}": self.percentile(percent / 100) for percent in (50, 90, 95, 99)},
        }


@dataclass
class Report:
    """A run in numbers; times in the unit of the cost model's clock, percentiles to 0.2 %.

    iterations: forward passes; jumped: how many of them were taken in stretches. tokens: rows computed.
    elapsed: from the first arrival to the last token. ttft: arrival to first token. tbt: all gaps between two tokens of
    a request. e2e: arrival to last token. delay: arrival to the beginning of the first iteration that has the request
    (the scheduling delay). worst_gap: of each request.
    busy: seconds that each stage computed. bubbles: stage-seconds that a stage waited for its next batch while requests
    were unfinished. batch_seconds: running requests x time. good: requests that met their promise.
    """

    stages: int = 1
    requests: int = 0
    finished: int = 0
    output_tokens: int = 0
    tokens: int = 0
    iterations: int = 0
    jumped: int = 0
    preemptions: int = 0
    good: int = 0
    started: float = 0.0
    ended: float = 0.0
    busy: float = 0.0
    bubbles: float = 0.0
    batch_seconds: float = 0.0
    ttft: Histogram = field(default_factory=Histogram)
    tbt: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    delay: Histogram = field(default_factory=Histogram)
    worst_gap: Histogram = field(default_factory=Histogram)

    @property
    def elapsed(self) -> float:
        return self.ended - self.started

    @property
    def requests_per_s(self) -> float:
        return self.finished / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def goodput(self) -> float:
        """Requests a second that met their promise."""
        return self.good / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def mean_batch(self) -> float:
        """Requests in the batch, over the time that one ran."""
        return self.batch_seconds / self.busy if self.busy > 0 else 0.0

    @property
    def bubble_share(self) -> float:
        """Of the stages' time."""
        return self.bubbles / (self.elapsed * self.stages) if self.elapsed > 0 else 0.0

    def to_json(self) -> dict:
        numbers = ("requests", "finished", "output_tokens", "iterations", "preemptions", "elapsed", "requests_per_s")
        shares = ("tokens_per_s", "goodput", "mean_batch", "bubble_share")
        times = ("ttft", "tbt", "e2e", "delay")
        return {
            **{name: getattr(self, name) for name in (*numbers, *shares)},
            **{name: getattr(self, name).to_json() for name in times},
        }
