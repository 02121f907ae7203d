"""What a picture says in numbers, from the very dict that it is drawn from. Pure Python."""

from dataclasses import dataclass, field
from itertools import pairwise

CUT = 4
KINDS = ("prefill", "chunk", "decode", "recompute", "guess", "padding")  # of rows of a batch


def running(engine: dict) -> list[int]:
    """Requests that ran, per iteration."""
    counts = [0] * len(engine["time"])
    for _, _, _, first, length, *_ in engine["runs"]:
        for number in range(first, first + length):
            counts[number] += 1
    return counts


def lists(changes: list[list], count: int) -> list[list[int]]:
    """The batch or the queue of each iteration, from its changes."""
    found, now = [], []
    by_iteration = {number: (gone, come) for number, gone, come in changes}
    for number in range(count):
        gone, come = by_iteration.get(number, ([], []))
        if gone:
            left = set(gone)
            now = [request for request in now if request not in left]
        if come:
            now = list(now)
        for place, request in come:
            now.insert(place, request)
        found.append(now)
    return found


def waiting(engine: dict) -> list[list[int]]:
    """The queue, per iteration."""
    return lists(engine["waiting"], len(engine["time"]))


def queue_length(engine: dict, iteration: int) -> int:
    """How many wait in it."""
    return sum(len(come) - len(gone) for number, gone, come in engine["waiting"] if number <= iteration)


def tokens_out(engine: dict) -> list[int]:
    """Tokens emitted, per iteration."""
    counts = [0] * len(engine["time"])
    for _, _, _, first, _, _, _, tokens, *_ in engine["runs"]:
        for number, emitted in enumerate(tokens, first):
            counts[number] += 0 if emitted is None else len(emitted) if isinstance(emitted, list) else 1
    return counts


def composition(engine: dict) -> list[list[int]]:
    """Rows of each iteration's batch, by kind (KINDS). A guess is a token that speculation tried."""
    counts = [[0] * len(KINDS) for _ in engine["time"]]
    for _, _, phase, first, length, _, n_tokens, _, draft, _ in engine["runs"]:
        for number in range(first, first + length):
            counts[number][phase] += n_tokens - draft
            counts[number][KINDS.index("guess")] += draft
    for row, padding in zip(counts, engine["padding"], strict=True):
        row[-1] = padding
    return counts


def axis_top(values: list[float]) -> float:
    """Where an axis ends: at the largest value, but a few that are more than CUT times those below are cut off, or
    nothing else would be seen."""
    ordered = sorted(values)
    usual = CUT * ordered[int(0.95 * (len(ordered) - 1))] if ordered else 0
    return max((value for value in ordered if value <= usual), default=0) or 1


def figures(engine: dict, iteration: int | None = None) -> dict:
    """The readout at the playhead: iterations 0 to `iteration`, that one included (None: all of them).

    occupancy: busy slot-steps / slot-steps, 0 to 1, or None where no iteration ran.
    """
    stop = len(engine["time"]) if iteration is None else iteration + 1
    busy, slot_steps = sum(running(engine)[:stop]), engine["slots"] * min(stop, len(engine["time"]))
    return {
        "iterations": min(stop, len(engine["time"])),
        "running": running(engine)[:stop][-1] if slot_steps else 0,
        "waiting": queue_length(engine, stop - 1) if slot_steps else 0,
        "idle_slot_steps": slot_steps - busy,
        "padding": sum(engine["padding"][:stop]),
        "tokens_out": sum(tokens_out(engine)[:stop]),
        "occupancy": busy / slot_steps if slot_steps else None,
    }


@dataclass
class Life:
    """What became of a request. arrive, first (its first token) and end: iterations; came: those of its tokens, with
    repeats, and -1 for each that came before all of them; worst: the iterations of two tokens with the longest gap
    between them; kind: "finish" or "abort"."""

    request: int
    arrive: int = 0
    runs: list[list] = field(default_factory=list)
    came: list[int] = field(default_factory=list)
    end: int | None = None
    kind: str | None = None
    worst: tuple[int, int] | None = None

    @property
    def first(self) -> int | None:
        return self.came[0] if self.came and self.came[0] >= 0 else None


def lives(engine: dict) -> list[Life]:
    """All requests that arrived, in order of arrival."""
    found: dict[int, Life] = {}
    for number, kind, request, *_ in engine["events"]:
        life = found.setdefault(request, Life(request))
        if kind == "arrive":
            life.arrive = number
        elif kind in ("finish", "abort"):
            life.end, life.kind = number, kind
    for request in engine["records"]:
        found.setdefault(request, Life(request)).came = [-1] * engine["earlier"].get(request, [0])[0]
    for run in engine["runs"]:
        life = found[run[1]]
        life.runs.append(run)
        for number, emitted in enumerate(run[7], run[3]):
            life.came.extend([number] * (len(emitted) if isinstance(emitted, list) else emitted is not None))
    done = [time + duration for time, duration in zip(engine["time"], engine["duration"], strict=True)]
    for life in found.values():
        came = [number for number in life.came if number >= 0]
        gaps = [(done[later] - done[sooner], (sooner, later)) for sooner, later in pairwise(came)]
        longest = max(gaps, key=lambda gap: gap[0], default=(0, None))
        life.worst = longest[1] if longest[0] > 0 else None
    return list(found.values())


@dataclass(frozen=True)
class FlatSpan:
    """A request's rows of one iteration. offset: the first one. due: how many, from its last one back, are sampled."""

    request: int
    phase: int
    start: int
    size: int
    offset: int
    due: int


@dataclass(frozen=True)
class Flat:
    """One iteration's batch, of `size` rows in all. width: that of a rectangle, padded on the right, where there is
    padding (a batch with padding has no other form); None for a stream."""

    spans: list[FlatSpan]
    size: int
    padding: int
    width: int | None


def flat(engine: dict, iteration: int) -> Flat:
    """The batch of an iteration, in batch order."""
    here = {}
    for _, request, phase, first, length, start, n_tokens, tokens, draft, _ in engine["runs"]:
        if not first <= iteration < first + length:
            continue
        for emitted in tokens[: iteration - first]:
            start += n_tokens - (draft - (len(emitted) - 1 if isinstance(emitted, list) else 0))
        here[request] = (phase, start, n_tokens, draft + 1 if tokens[iteration - first] is not None else 0)
    order = lists(engine["batch"], iteration + 1)[-1] if iteration >= 0 else []
    padding, computed = (engine["padding"][iteration], sum(part[2] for part in here.values())) if order else (0, 0)
    widest = max((part[2] for part in here.values()), default=0)
    width = widest if padding and (computed + padding) % widest == 0 else None
    spans, offset = [], 0
    for number, request in enumerate(order):
        phase, start, size, due = here[request]
        spans.append(FlatSpan(request, phase, start, size, number * width if width else offset, due))
        offset += size
    return Flat(spans, computed + padding, padding, width)
