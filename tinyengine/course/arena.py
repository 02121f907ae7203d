"""An arena of K/V slots, filled and emptied step by step, and drawn after each step.

A step is ("add", name, slots), a request that reserves so many slots, or ("end", name), its end.
"""

from tinyengine.course.checks import a_type, ends, quote
from tinyengine.course.watch import Halt, some
from tinyengine.holding import as_ranges
from tinyengine.memory import Slots
from tinyengine.request import Request, SamplingParams

COLORS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442")
EDGE = "#1b1f24"


def asking(name: str, slots: int) -> Request:
    """A request that reserves so many slots."""
    output = min(2, slots - 1)
    return Request(name, [1] * (slots - output), SamplingParams(max_tokens=output))


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
            self.rows.append((" ".join(map(str, step)), held(self.requests)))

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


class Filled:
    """One run of a class of Slots under watch: a step that is refused is passed over, and its end too.

    case: (steps, n_slots). faults: {rule: the first sentence}; behind one of "books" nothing is tried. seen: what each
    step left. rows: as those of Played. granted: how many requests.
    """

    rules = {
        "books": "a request gets one range of free K/V slots, and the arena's books say so",
        "grants": "a request is refused only where no hole is large enough",
        "first": "it gets the beginning of the first hole that is large enough",
    }

    def __init__(self, slots_class, case: tuple):
        steps, n_slots = case
        self.faults, self.seen, self.rows, self.requests, self.granted = {}, [], [], {}, 0
        self.memory = self._own(slots_class)(n_slots)
        try:
            for kind, name, *slots in steps:
                told = self._add(name, *slots) if kind == "add" else self._end(name)
                self.seen.append([told, held(self.requests), quote(self.memory.holes)])
                self.rows.append((told, held(self.requests)))
        except Halt:
            pass

    def _own(self, made):
        """The class without the helpers of the package's own reserve."""
        run = self

        class Own(made):
            pass

        Own.__name__ = Own.__qualname__ = made.__name__  # as errors tell it
        for name in ("_find", "_cut"):
            if getattr(made, name, None) is getattr(Slots, name):
                setattr(
                    Own, name, lambda *_: run.stop("you use the package's own reserve, or its helpers: write yours")
                )
        return Own

    def stop(self, sentence: str) -> None:
        self.faults.setdefault("books", sentence)
        raise Halt

    def _add(self, name: str, slots: int) -> str:
        request, before = asking(name, slots), list(self.memory.holes)
        first = next((hole for hole in before if len(hole) >= slots), None)
        asked = f"{some(slots, 'slot')} asked for, holes at {places(before) or 'none'}"
        if not ends(self.memory.reserve, request):
            if first:
                self.faults.setdefault("grants", f"{asked}: you refuse")
            if request.table or name in self.memory.holders or list(self.memory.holes) != before:
                self.stop(f"{asked}: you refuse, and something has changed: table, holders or holes")
            return f"add {name} {slots}: refused"
        trouble = self._trouble(request, slots, before)
        if trouble:
            self.stop(f"{asked}: {trouble}")
        if first.start != request.table[0]:
            self.faults.setdefault("first", f"{asked}: you give {places(as_ranges(request.table))}")
        self.requests[name] = request
        self.granted += 1
        return f"add {name} {slots}"

    def _end(self, name: str) -> str:
        if name not in self.requests:
            return f"end {name}: it was refused"
        request = self.requests.pop(name)
        free = as_ranges(sorted([*slots_of(self.memory.holes), *request.table]))
        ends(self.memory.release, request)
        if self.memory.holes != free:
            self.stop(
                f"{name} has ended, and the holes are at {places(self.memory.holes)}: its slots are not free again"
            )
        return f"end {name}"

    def _trouble(self, request, slots: int, before) -> str:
        """What is wrong with a request that was granted, or ""."""
        table, holes, free = request.table, self.memory.holes, slots_of(before)
        if not isinstance(table, range | list) or not all(isinstance(slot, int) for slot in table):
            return f"request.table is {quote(table)}, {a_type(table)}, where a range of slots is needed"
        if not table:
            return "you grant it, and request.table is empty"
        given = places(as_ranges(table))
        if len(table) != slots:
            return f"you give {given}, which is {some(len(table), 'slot')}"
        if list(table) != list(range(table[0], table[0] + slots)):
            return f"you give {given}, which is not one piece"
        if not set(table) <= set(free):
            return f"you give {given}, which is not all free"
        if self.memory.holders.get(request.request_id) is not request:
            there = any(holder is request for holder in self.memory.holders.values())
            lack = "has the request under another key" if there else "does not have the request"
            return f"self.holders {lack}, so release() will not find it under its request_id"
        odd = [hole for hole in holes if not isinstance(hole, range)]
        if odd:
            return f"self.holes has {quote(odd[0])} in it, {a_type(odd[0])}, where a range is needed"
        if not all(holes):
            return f"you leave {quote(next(hole for hole in holes if not hole))}, a hole without a slot, in self.holes"
        if set(table) & set(slots_of(holes)):
            return f"you give {given}, and self.holes still has it"
        if list(holes) != as_ranges(sorted(set(free) - set(table))):
            return f"you give {given}, and then self.holes is {places(holes)}: is a part lost, or out of order?"
        return ""


def held(requests: dict[str, Request]) -> dict[str, tuple]:
    """The ranges of K/V slots of each request that holds some."""
    return {
        name: tuple((part.start, part.stop) for part in as_ranges(request.table))
        for name, request in requests.items()
        if request.table
    }


def slots_of(holes) -> list[int]:
    return [slot for hole in holes for slot in hole]


def places(holes) -> str:
    """0 to 2 and 8 to 19"""
    return " and ".join(f"{hole[0]} to {hole[-1]}" if hole else repr(hole) for hole in holes)


def draw(steps) -> None:
    """One row for each step: the arena after it, K/V slot 0 at the left."""
    played = Played(steps)
    free = f"{some(played.free, 'K/V slot')} free in all, the largest hole has {played.largest}"
    draw_rows(played.rows, list(played.requests), played.memory.n_slots, played.trouble or free)


def fill(slots_class, steps, n_slots: int = 20) -> None:
    """The same of a class of Slots that somebody writes; what breaks a rule stands above the picture."""
    filled = Filled(slots_class, (steps, n_slots))
    names = list(dict.fromkeys(name for _, name, *_ in steps))
    fault = next(iter(filled.faults.values()), f"holes at {places(filled.memory.holes)}")
    draw_rows(filled.rows, names, n_slots, fault)


def draw_rows(rows, names: list[str], n_slots: int, title: str) -> None:
    from tinyengine.course.picture import blank, put  # matplotlib, where it is drawn: a check draws nothing

    figure = blank(8, 0.9 + 0.4 * max(1, len(rows)))
    axes = figure.subplots()
    for y, (_, ranges_of) in enumerate(rows):
        axes.broken_barh([(0, n_slots)], (y - 0.4, 0.8), facecolor="none", edgecolor="#59636e")
        for name, ranges in ranges_of.items():
            for first, end in ranges:
                color = COLORS[names.index(name) % len(COLORS)]
                axes.broken_barh([(first, end - first)], (y - 0.4, 0.8), facecolor=color, edgecolor=EDGE)
                label = f"{name} ({end - first})"
                axes.text((first + end) / 2, y, label, ha="center", va="center", clip_on=True, color=EDGE)
    axes.set(xlim=(0, n_slots), ylim=(len(rows) - 0.5, -0.5), xlabel="K/V slot")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(title, fontsize=10)
    axes.spines[:].set_visible(False)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    put(figure, title)


def draw_capacity(capacity, setups: dict[str, tuple]) -> None:
    """One bar for each setup: the shares of a device's memory, by capacity(memory, utilisation, weights, ...)."""
    from tinyengine.course.picture import blank, put  # matplotlib, where it is drawn: a check draws nothing
    from visualizers.twins.common import GREY

    figure = blank(8, 0.9 + 0.5 * len(setups))
    axes = figure.subplots()
    for y, (memory, utilisation, weights, kv_bytes, n_max) in enumerate(setups.values()):
        n_slots, requests = capacity(memory, utilisation, weights, kv_bytes, n_max)
        reserved, left = requests * n_max * kv_bytes, (n_slots - requests * n_max) * kv_bytes
        begin = 0
        for size, color in ((weights, "#BBBBBB"), (reserved, COLORS[0]), (left, COLORS[1])):
            axes.broken_barh([(begin, size / memory)], (y - 0.2, 0.55), facecolor=color, edgecolor=EDGE)
            begin += size / memory
        axes.text(0, y - 0.25, f"{requests:,.0f} requests of {n_max:,} K/V slots", va="bottom", color=GREY)
        axes.plot([utilisation] * 2, [y - 0.25, y + 0.4], color="#D55E00", linewidth=2)
    axes.axvline(1, color=GREY)
    axes.set(ylim=(len(setups) - 0.5, -0.5), xlabel="share of the device's memory (red: utilisation, line at 1: all)")
    axes.set_title("grey: weights, blue: reserved, orange: K/V slots too few for one more request", fontsize=10)
    axes.set_yticks(range(len(setups)), setups)
    axes.spines[:].set_visible(False)
    put(figure, "; ".join(f"{name}: {capacity(*setup)}" for name, setup in setups.items()))
