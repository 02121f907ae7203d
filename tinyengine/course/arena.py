"""An arena of K/V slots, filled and emptied step by step, and drawn after each step.

A step is ("add", name, slots), a request that reserves so many slots, or ("end", name), its end.
"""

from tinyengine.course.checks import quote
from tinyengine.course.watch import some
from tinyengine.memory import Slots
from tinyengine.request import Request, SamplingParams

COLORS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442")


def asking(name: str, slots: int) -> Request:
    """A request that reserves so many slots."""
    return Request(name, [1] * (slots - 1), SamplingParams(max_tokens=1))


class Played:
    """What the steps leave. rows: after each step, (step, {name: slot ranges}). trouble: what stopped them, or "";
    kind: the same without names and numbers."""

    def __init__(self, steps, n_slots: int = 100, contiguous: bool = True):
        self.steps, self.memory = list(steps), Slots(n_slots, contiguous)
        self.requests, self.rows, self.trouble, self.kind = {}, [], "", ""
        for step in self.steps:
            self._take(step)
            if self.trouble:
                break
            self.rows.append((step, {name: held.ranges for name, held in self.memory.holdings().items()}))

    @property
    def free(self) -> int:
        return self.memory.n_slots - self.memory.n_rsrv

    @property
    def held(self) -> int:
        return self.memory.n_rsrv

    @property
    def adds(self) -> int:
        """Requests that were added."""
        return len(self.requests)

    @property
    def largest(self) -> int:
        """Slots of the largest hole."""
        return max(map(len, self.memory.holes), default=0)

    def grants(self, slots: int) -> bool:
        """Whether the arena would now grant a request of so many slots."""
        probe = asking("probe", slots)
        granted = self.memory.reserve(probe)
        self.memory.release(probe)
        return granted

    def _take(self, step) -> None:
        match step:
            case ("add", str(name), int(slots)):
                self._add(step, name, slots)
            case ("end", str(name)):
                if name not in self.requests:
                    self._stop("ends nothing", f"{step} ends a request that was never added")
                elif not self.requests[name].table:
                    self._stop("ends twice", f"{step} ends a request that has ended before")
                else:
                    self.memory.release(self.requests[name])
            case _:
                form = 'write ("add", name, slots) or ("end", name), the name as a str and the slots as an int'
                self._stop("no step", f"{quote(step)} is no step: {form}")

    def _add(self, step, name, slots) -> None:
        most = self.memory.n_slots
        if not 2 <= slots <= most:
            self._stop("size", f"{step} asks for {some(slots, 'slot')}, but 2 to {most} are allowed")
        elif name in self.requests:
            self._stop("name", f"{step} uses a name that was used before")
        else:
            self.requests[name] = asking(name, slots)
            if not self.memory.reserve(self.requests[name]):
                self._stop("refused", f"{step} is refused itself: no hole has {slots} slots")

    def _stop(self, kind: str, sentence: str) -> None:
        self.kind, self.trouble = kind, sentence


def draw(steps) -> None:
    """One row for each step: the arena after it, K/V slot 0 at the left."""
    import matplotlib.pyplot as plt

    played = Played(steps)
    names = list(played.requests)
    _, axes = plt.subplots(figsize=(8, 0.9 + 0.4 * max(1, len(played.rows))), layout="constrained")
    for y, (_, held) in enumerate(played.rows):
        axes.broken_barh([(0, played.memory.n_slots)], (y - 0.4, 0.8), facecolor="white", edgecolor="#59636e")
        for name, ranges in held.items():
            for first, end in ranges:
                color = COLORS[names.index(name) % len(COLORS)]
                axes.broken_barh([(first, end - first)], (y - 0.4, 0.8), facecolor=color, edgecolor="#1b1f24")
                label = f"{name} ({end - first})"
                axes.text((first + end) / 2, y, label, ha="center", va="center", clip_on=True, color="#1b1f24")
    axes.set(xlim=(0, played.memory.n_slots), ylim=(len(played.rows) - 0.5, -0.5), xlabel="K/V slot")
    free = f"{some(played.free, 'K/V slot')} free in all, the largest hole has {played.largest}"
    axes.set_title(played.trouble or free, fontsize=10)
    axes.spines[:].set_visible(False)
    axes.set_yticks(range(len(played.rows)), [" ".join(map(str, step)) for step, _ in played.rows])
    plt.show()
