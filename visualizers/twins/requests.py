"""Queue and lifecycles: one row per request, in order of arrival."""

from visualizers.figures import Life, lives
from visualizers.twins.common import ACCENT, DIM, INK, LEFT, WIDTH, add_runs, fit, phase_handles

TIMED = True
NAME = WIDTH * LEFT - 0.16  # inches of a name, left of the cells


def height(engine: dict) -> float:
    count = max(1, len(lives(engine)))
    return count * max(0.01, min(0.17, 3.0 / count))


def draw(axes, engine: dict, data: dict, here: int, longest: int):
    rows = {life.request: (number, life) for number, life in enumerate(lives(engine))}
    count, end = max(1, len(rows)), len(engine["time"])
    axes.set(ylim=(count, 0))
    every = max(1, round(0.13 * count / height(engine) + 0.49))
    named = list(rows)[::every]
    names = [fit(data["requests"][request][1], NAME, 8) for request in named]
    axes.set_yticks([rows[request][0] + 0.5 for request in named], names)
    waits = [(row + 0.5, *wait) for row, life in rows.values() for wait in _waits(life, end)]
    if waits:
        axes.hlines(*zip(*waits, strict=True), color=DIM, linewidth=0.7, zorder=0)
    runs = [run for _, life in rows.values() for run in life.runs]
    add_runs(axes, data, runs, [rows[run[1]][0] + 0.1 for run in runs], 0.8)
    if _hair_lines(engine):
        return
    for row, life in rows.values():
        if life.worst:
            axes.hlines(row + 0.93, life.worst[0] + 1, life.worst[1] + 1, color=ACCENT, linewidth=1.6)
        if life.first is not None:
            axes.plot(life.first + 1, row + 0.5, "D", markersize=3.4, color=INK, markeredgecolor="white", mew=0.5)


def _hair_lines(engine: dict) -> bool:
    """So many requests that their rows have no room for marks."""
    return height(engine) / max(1, len(lives(engine))) < 0.06


def _waits(life: Life, end: int) -> list[tuple[int, int]]:
    """The iterations [first, end) in which it has arrived and does not run."""
    starts = [life.arrive, *(run[3] + run[4] for run in life.runs)]
    stops = [*(run[3] for run in life.runs), end if life.end is None else life.end + 1]
    return [(since, stop) for since, stop in zip(starts, stops, strict=True) if since < stop]


def legend(data: dict) -> list[tuple]:
    from matplotlib.lines import Line2D

    entries = phase_handles(data, {run[2] for engine in data["engines"] for run in engine["runs"]})
    if any(_waits(life, len(engine["time"])) for engine in data["engines"] for life in lives(engine)):
        entries.append(("waiting", Line2D([], [], color=DIM, linewidth=0.7)))
    marked = [life for engine in data["engines"] if not _hair_lines(engine) for life in lives(engine)]
    if any(life.first is not None for life in marked):
        entries.append(("first token", Line2D([], [], color=INK, marker="D", markersize=3.4, linestyle="")))
    if any(life.worst for life in marked):
        entries.append(("longest gap between two tokens", Line2D([], [], color=ACCENT, linewidth=1.6)))
    return entries
