"""The token budget from a promise: how many tokens may an iteration have, if no token is to come later than this?

    line = Line.fit(profile(model))                             # measured once (tinyengine.bench.iterations)
    budget = choose_budget(line, tbt_target=0.05)               # Engine(model, max_num_batched_tokens=budget)
    budget = AdaptiveBudget(line, tbt_target=0.05)              # Engine(model, budget=budget)

An iteration has a fixed cost (weights are read, kernels are launched, Python runs) and a cost per token. So its time is
affine in its tokens, and the mean time per token says nothing: it falls as iterations grow. Source: Sarathi-Serve
(OSDI 2024), section 4.3, which profiles once and takes the largest budget that keeps the promise.
"""

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, median

MINIMUM = 16  # tokens: a smaller chunk pays the fixed cost for next to nothing
MAXIMUM = 8192
ALIGN = 16  # tokens: one more than a full tile costs a whole further tile


@dataclass(frozen=True)
class Line:
    """Seconds of an iteration of n tokens: fixed + per_token * n.

    Raises ValueError unless fixed is at least 0 and per_token above 0, both finite.
    """

    fixed: float
    per_token: float

    def __post_init__(self):
        if not (isfinite(self.fixed) and self.fixed >= 0):
            raise ValueError(f"fixed is {self.fixed!r} seconds, but must be a finite number of at least 0")
        if not (isfinite(self.per_token) and self.per_token > 0):
            raise ValueError(
                f"per_token is {self.per_token!r} seconds, but must be a finite number above 0: measure larger "
                "iterations, whose tokens cost time"
            )

    @classmethod
    def fit(cls, points: list[tuple[int, float]]) -> "Line":
        """The line of least squares through points (tokens, seconds) that starts at 0 or above.

        Raises ValueError for points of fewer than two different sizes, and where more tokens took no more time.
        """
        sizes = {tokens for tokens, _ in points}
        if len(sizes) < 2:
            raise ValueError(f"points have {len(sizes)} different sizes, but a line needs at least 2: measure more")
        mean_tokens, mean_seconds = (fmean(column) for column in zip(*points))
        per_token = sum((tokens - mean_tokens) * (seconds - mean_seconds) for tokens, seconds in points)
        per_token /= sum((tokens - mean_tokens) ** 2 for tokens, _ in points)
        fixed = mean_seconds - per_token * mean_tokens
        if fixed < 0:  # time that bends upwards; no iteration takes less than none, so the best line begins at 0
            per_token = sum(tokens * seconds for tokens, seconds in points) / sum(tokens**2 for tokens, _ in points)
            fixed = 0.0
        return cls(fixed, per_token)

    def seconds(self, tokens: int) -> float:
        return self.fixed + self.per_token * tokens

    def tokens(self, seconds: float) -> int:
        """The most tokens that take at most so many seconds; 0 where the fixed cost alone takes longer."""
        return max(0, int((seconds - self.fixed) / self.per_token))


def choose_budget(
    line: Line, tbt_target: float, *, minimum: int = MINIMUM, align: int = ALIGN, maximum: int = MAXIMUM
) -> int:
    """The largest token budget whose iteration takes at most `tbt_target` seconds.

    The total of a batch, decodes and chunk together, is a multiple of `align`. (A chunk that is rounded by itself
    would leave the total off the tiles, and could leave no tokens for the end of a prompt.) A promise that cannot be
    kept gives `minimum`, never 0, or no prompt would ever be read.

    Raises ValueError for a target that is not above 0, and limits that are out of order.
    """
    _check(tbt_target, minimum, align, maximum)
    fitting = min(line.tokens(tbt_target), maximum)
    return max(minimum, fitting // align * align)


class Adaptive:
    """Goes before a `Chunked`. budget: says how many tokens the next iteration may have, and learns from how long each
    one took (an AdaptiveBudget); max_num_batched_tokens is its upper limit. None changes nothing.

    Raises ValueError for a budget that is a number.
    """

    def __init__(self, *args, budget: "AdaptiveBudget | None", **options):
        super().__init__(*args, **options)
        if budget is not None and not hasattr(budget, "tokens"):
            raise ValueError(f"budget is {budget!r}, but must be an AdaptiveBudget: a number is max_num_batched_tokens")
        self.budget = budget

    @property
    def token_budget(self) -> int:
        most = super().token_budget
        return min(most, self.budget.tokens) if self.budget else most

    def observe(self, n_tokens: int, seconds: float):
        if self.budget:
            self.budget.observe(n_tokens, seconds)


class AdaptiveBudget:
    """A budget that follows the machine: the same line, times how much slower or faster the last iterations were.

    Each iteration gives a ratio, measured / expected by the line. Slower is their median over the last `WINDOW` plus
    `DEVIATIONS` of their standard deviations, taken from the median distance to the median: so usual noise keeps the
    promise, and an iteration or two that stall move nothing. Ratios come from iterations of at least half the budget (a
    decode tells little about a chunk, if the line is not quite straight) and from those that broke the promise. So a
    machine that stalls only in small iterations ends at the minimum, until large ones outvote them.

    Arguments and errors as for choose_budget.
    """

    WINDOW = 32
    DEVIATIONS = 2.5

    def __init__(
        self, line: Line, tbt_target: float, *, minimum: int = MINIMUM, align: int = ALIGN, maximum: int = MAXIMUM
    ):
        self.line = line
        self.tbt_target = tbt_target
        self.limits = {"minimum": minimum, "align": align, "maximum": maximum}
        self.tokens = choose_budget(line, tbt_target, **self.limits)
        self._ratios = deque([1.0] * 4, maxlen=self.WINDOW)  # as the profile says, until measurements outvote it

    def observe(self, n_tokens: int, seconds: float):
        """An iteration of `n_tokens` has taken `seconds`. A number that is no time is passed over."""
        if n_tokens < 1 or not isfinite(seconds) or seconds <= 0:
            return
        if 2 * n_tokens < self.tokens and seconds <= self.tbt_target:
            return
        self._ratios.append(seconds / self.line.seconds(n_tokens))
        self.tokens = choose_budget(self.line, self.tbt_target / self._slowness(), **self.limits)

    def _slowness(self) -> float:
        centre = median(self._ratios)
        distance = median(abs(ratio - centre) for ratio in self._ratios)
        return centre + self.DEVIATIONS * 1.4826 * distance  # 1.4826 distances are one standard deviation of a normal


def _check(tbt_target: float, minimum: int, align: int, maximum: int):
    if not (isfinite(tbt_target) and tbt_target > 0):
        raise ValueError(f"tbt_target is {tbt_target!r} seconds, but must be a finite number above 0")
    if align < 1:
        raise ValueError(f"align is {align}, but must be at least 1 token")
    if not 1 <= minimum <= maximum:
        raise ValueError(f"minimum is {minimum} and maximum {maximum}, but 1 <= minimum <= maximum must hold")
