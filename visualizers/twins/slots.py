"""The slot timeline: rows are batch slots."""

from itertools import groupby

from visualizers.figures import figures
from visualizers.twins.common import (
    CHARACTER,
    GRID,
    INK,
    MOST_CELLS,
    SHARE,
    WIDTH,
    add_boxes,
    add_runs,
    box,
    edge,
    hue_of,
    lines_of,
    pale,
    phase_handles,
    plate,
    prompt_of,
)  # fmt: skip

TIMED = True


def height(engine: dict) -> float:
    return engine["slots"] * max(0.05, min(0.24, 3.2 / engine["slots"]))


def draw(axes, engine: dict, data: dict, here: int, longest: int):
    slots, count = engine["slots"], len(engine["time"])
    axes.set(ylim=(slots, 0))
    every = max(1, round(0.13 * slots / height(engine) + 0.49))
    rows = range(0, slots, every)
    axes.set_yticks([row + 0.5 for row in rows], [f"batch slot {row}" if row == 0 else str(row) for row in rows])
    axes.hlines(range(slots + 1), 0, count, color=GRID, linewidth=0.5, zorder=0)
    if longest <= MOST_CELLS:
        axes.vlines(range(count + 1), 0, slots, color=GRID, linewidth=0.5, zorder=0)
    add_runs(axes, data, engine["runs"], [run[0] + 0.06 for run in engine["runs"]], 0.88)
    _draw_stretches(axes, engine, data)
    if height(engine) / slots > 0.14:
        _draw_labels(axes, engine, data, longest)


def legend(data: dict) -> list[tuple]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    outline = edge(data["palette"][0])
    entries = phase_handles(data, {run[2] for engine in data["engines"] for run in engine["runs"]})
    if any(lines_of(data, run[1]) for engine in data["engines"] for run in engine["runs"]):
        under = Line2D([], [], color=outline, linewidth=1.5)
        entries.append(("same colour, underlined: another request", under))
    if any(figures(engine)["idle_slot_steps"] for engine in data["engines"]):
        entries.append(("idle", Patch(facecolor="none", edgecolor=GRID)))
    if any(engine["preempted"] for engine in data["engines"]):
        entries.append(("preempted", Patch(facecolor="none", edgecolor=outline, linestyle="--")))
    if any(engine["held"] for engine in data["engines"]):
        entries.append(("in the batch, not computed", Line2D([], [], color=outline, linestyle=":", linewidth=1)))
    return entries


def _draw_stretches(axes, engine: dict, data: dict):
    for row, request, first, end in engine["held"]:
        axes.hlines(row + 0.5, first, end, color=edge(hue_of(data, request)), linestyle=":", linewidth=1)
    boxes = [box(first, end, row + 0.06, row + 0.94) for row, _, first, end in engine["preempted"]]
    edges = [edge(hue_of(data, request)) for _, request, _, _ in engine["preempted"]]
    add_boxes(axes, boxes, facecolors="none", edgecolors=edges, linestyles="--", linewidths=1.1)


def _draw_labels(axes, engine: dict, data: dict, longest: int):
    """The request's name, and its prompt where there is room: in its stay in a row, or beside that where the batch slot
    is idle."""
    inches = WIDTH * SHARE / longest  # of one iteration
    by_row = sorted(engine["runs"], key=lambda run: (run[0], run[3]))
    stays = [list(runs) for _, runs in groupby(by_row, key=lambda run: (run[0], run[1]))]
    for runs, after in zip(stays, [*stays[1:], []]):
        row, request, first, end = runs[0][0], runs[0][1], runs[0][3], runs[-1][3] + runs[-1][4]
        until = after[0][3] if after and after[0][0] == row else longest
        name, prompt = data["requests"][request][1], prompt_of(engine, request)
        if len(name) * CHARACTER > (end - first) * inches:
            name = name.removeprefix("req ")
        wide, room = len(name) * CHARACTER, (end - first) * inches - 0.04
        is_inside, where = wide <= room, first
        if not is_inside:
            if wide + 0.06 > (until - end) * inches:
                continue
            where = end
        told = int((room - wide - 0.15) / CHARACTER)
        if prompt and is_inside and told > 5:
            name += "  " + (prompt if len(prompt) <= told else prompt[: told - 1] + "…")
        hue = pale(hue_of(data, request)) if is_inside else "#ffffff"
        axes.annotate(
            name, (where, row + 0.5), (2.5, -0.5), textcoords="offset points", va="center", fontsize=7, color=INK,
            bbox=plate(hue), parse_math=False,
        )  # fmt: skip
