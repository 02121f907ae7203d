"""The static twin: the same rows, colours and hatching as the widget, as one PNG of the whole run (matplotlib)."""

import io
import warnings
from itertools import groupby

from visualizers.figures import figures as _figures

WIDTH, DPI = 9.0, 150  # inches, dots per inch: about 900 px wide on GitHub, and sharp on dense screens
SHARE = 0.922  # of the width, for the cells
HATCH = {"prefill": "//////", "chunk": "\\\\\\\\\\\\", "decode": "", "recompute": "xxxxxx"}
GRID, EDGE, DIM, INK = "#c3cad2", "#39424d", "#59636e", "#1b1f24"
PALE, EDGED = 0.66, 0.3  # how far a hue is mixed with white in a decode, with ink at an edge (as in static/style.js)
TITLE, FOOT = 0.36, 0.75  # inches, above each engine and below the last (axis and legend)
MOST_GRID = 160  # iterations; beyond, a line between any two would be all that is seen
CHARACTER = 0.062  # inches that a character of a label takes, at most


def draw(data: dict) -> bytes:
    """PNG bytes of the dict that `frames.build` made."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    engines = data["engines"]
    heights = [_height(engine) for engine in engines]
    total = sum(heights) + TITLE * len(engines) + FOOT
    with rc_context({"hatch.linewidth": 0.6, "font.family": "DejaVu Sans", "text.parse_math": False}):
        figure = Figure(figsize=(WIDTH, total), dpi=DPI, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        longest = max(1, *(len(engine["time"]) for engine in engines))
        top = total
        for engine, height in zip(engines, heights, strict=True):
            top -= TITLE + height
            axes = figure.add_axes((0.07, top / total, SHARE, height / total))
            _draw_engine(axes, engine, data, longest, height)
        axes.set_xlabel("iteration", fontsize=8, color=DIM)
        axes.tick_params(labelbottom=True)
        _draw_legend(figure, data)
        out = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a name in a script that the font has not: a box, no more
            canvas.print_png(out, metadata={"Software": None})  # no version: the same trace gives the same bytes
    return out.getvalue()


def title(engine: dict) -> str:
    figures = _figures(engine)
    if not figures["iterations"]:
        return f"{engine['name']}: no iteration ran"
    return (
        f"{engine['name']}: {figures['iterations']} iterations, {100 * figures['occupancy']:.0f} % slot use, "
        f"{figures['idle_slot_steps']} idle slot-steps, {figures['padding']} padding rows"
    )


def _height(engine: dict) -> float:
    """Inches of its rows."""
    return engine["slots"] * max(0.05, min(0.24, 3.2 / engine["slots"]))


def _draw_engine(axes, engine: dict, data: dict, longest: int, height: float):
    slots, count = engine["slots"], len(engine["time"])
    axes.set(xlim=(0, longest * 1.001), ylim=(slots, 0))
    axes.set_title(title(engine), loc="left", fontsize=9, color=INK, pad=5)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=DIM, labelbottom=False)
    _draw_ticks(axes, longest, slots, height)
    axes.hlines(range(slots + 1), 0, count, color=GRID, linewidth=0.5, zorder=0)
    if longest <= MOST_GRID:
        axes.vlines(range(count + 1), 0, slots, color=GRID, linewidth=0.5, zorder=0)
    _draw_runs(axes, engine, data)
    _draw_stretches(axes, engine, data)
    if height / slots > 0.14:
        _draw_labels(axes, engine, data, longest)


def _draw_ticks(axes, longest: int, slots: int, height: float):
    """Iteration n is the cell from n to n + 1, so its number stands below the middle."""
    from matplotlib.ticker import MaxNLocator

    numbers = [int(n) for n in MaxNLocator(12, integer=True).tick_values(0, longest - 1) if 0 <= n < longest]
    axes.set_xticks([n + 0.5 for n in numbers], [str(n) for n in numbers])
    every = max(1, round(0.13 * slots / height + 0.49))
    rows = range(0, slots, every)
    axes.set_yticks([row + 0.5 for row in rows], [f"slot {row}" if row == 0 else str(row) for row in rows])


def _draw_runs(axes, engine: dict, data: dict):
    """One collection per phase, because a collection has one hatching; outlines apart, because a hatching has the
    colour of its outline (before matplotlib 3.11)."""
    from matplotlib.collections import PolyCollection

    for number, phase in enumerate(data["phases"]):
        runs = [run for run in engine["runs"] if run[2] == number]
        boxes, hues = [_box(run[0], run[3], run[3] + run[4]) for run in runs], [_hue(data, run[1]) for run in runs]
        axes.add_collection(PolyCollection(boxes, facecolors=[_fill(hue, phase) for hue in hues], **_hatching(phase)))
        edges = [mix(hue, INK, EDGED) for hue in hues]
        axes.add_collection(PolyCollection(boxes, facecolors="none", edgecolors=edges, linewidths=0.6))


def _fill(hue: str, phase: str) -> str:
    return mix(hue, "#ffffff", PALE) if phase == "decode" else hue


def _hatching(phase: str) -> dict:
    return {"edgecolor": "#ffffffbf", "linewidth": 0, "hatch": HATCH[phase] or None}


def _draw_stretches(axes, engine: dict, data: dict):
    from matplotlib.collections import PolyCollection

    for row, request, first, end in engine["held"]:
        axes.hlines(row + 0.5, first, end, color=mix(_hue(data, request), INK, EDGED), linestyle=":", linewidth=1)
    boxes = [_box(row, first, end) for row, _, first, end in engine["preempted"]]
    edges = [mix(_hue(data, request), INK, EDGED) for _, request, _, _ in engine["preempted"]]
    axes.add_collection(PolyCollection(boxes, facecolors="none", edgecolors=edges, linestyles="--", linewidths=1.1))


def _draw_labels(axes, engine: dict, data: dict, longest: int):
    """The request's name at the left of its stay in a row, where there is room for it."""
    from matplotlib.patheffects import withStroke

    inches = WIDTH * SHARE / longest  # of one iteration
    by_row = sorted(engine["runs"], key=lambda run: (run[0], run[3]))
    for (row, request), runs in groupby(by_row, key=lambda run: (run[0], run[1])):
        runs = list(runs)
        first, end = runs[0][3], runs[-1][3] + runs[-1][4]
        shift = min(1, end - first - 1) if inches < 0.2 else 0  # past a prefill's hatching
        text = data["requests"][request][1]
        if len(text) * CHARACTER > (end - first - shift) * inches:
            text = text.removeprefix("req ")
        if len(text) * CHARACTER > (end - first - shift) * inches:
            continue
        halo = withStroke(linewidth=2, foreground=mix(_hue(data, request), "#ffffff", PALE))
        axes.annotate(
            text, (first + shift, row + 0.5), (2.5, -0.5), textcoords="offset points", va="center", fontsize=7,
            color=INK, path_effects=[halo], parse_math=False,
        )  # fmt: skip


def _draw_legend(figure, data: dict):
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    hue = data["palette"][0]
    edge = mix(hue, INK, EDGED)
    used = {run[2] for engine in data["engines"] for run in engine["runs"]}
    # A tuple of handles is drawn one over the other.
    entries = [
        (name, (Patch(facecolor=_fill(hue, name), **_hatching(name)), Patch(facecolor="none", edgecolor=edge, lw=0.6)))
        for number, name in enumerate(data["phases"])
        if number in used
    ]
    entries.append(("idle", Patch(facecolor="none", edgecolor=GRID)))
    if any(engine["preempted"] for engine in data["engines"]):
        entries.append(("preempted", Patch(facecolor="none", edgecolor=edge, linestyle="--")))
    if any(engine["held"] for engine in data["engines"]):
        entries.append(("in the batch, no budget left", Line2D([], [], color=edge, linestyle=":", linewidth=1)))
    labels, handles = zip(*entries)
    figure.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0.063, 0), ncols=len(handles), frameon=False, fontsize=8,
        labelcolor=DIM, handlelength=1.8, columnspacing=1.6,
    )  # fmt: skip


def _box(row: int, first: int, end: int) -> list[tuple[float, float]]:
    return [(first, row + 0.06), (end, row + 0.06), (end, row + 0.94), (first, row + 0.94)]


def _hue(data: dict, request: int) -> str:
    return data["palette"][request % len(data["palette"])]


def mix(colour: str, other: str, share: float) -> str:
    """`share` of `other` in `colour`; both "#rrggbb"."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a * (1 - share) + b * share):02x}" for a, b in pairs)
