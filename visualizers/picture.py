"""The static twin: what the widget shows, as one PNG of the whole run (matplotlib)."""

import io
import warnings
from dataclasses import dataclass

from visualizers.captions import counted
from visualizers.figures import figures as figures_of
from visualizers.twins import batch, flat, memory, requests, slots, text
from visualizers.twins.common import ACCENT, DIM, DPI, INK, LEFT, SHARE, WIDTH, card, iteration_ticks, playhead

TWINS = {"slots": slots, "batch": batch, "requests": requests, "memory": memory, "text": text, "flat": flat}
TITLE, BETWEEN, AXIS, FOOT = 0.36, 0.1, 0.34, 0.2  # inches: above each engine, between views, below, at the bottom
LEGEND_LINE, LEGEND_WIDTH = 0.21, 118  # inches, and characters that a line of the legend has room for


@dataclass
class Place:
    """Where one view of one engine lies: `top` inches from the top of the picture, of the width that SHARE gives."""

    engine: dict
    view: str
    top: float
    height: float
    numbered: bool  # the iterations' numbers stand below it


def draw(data: dict) -> bytes:
    """PNG bytes of the dict that Player sends."""
    return render(data)[0]


def render(data: dict, on_card: bool = True) -> tuple[bytes, list[Place], float]:
    """The PNG, where its views lie, and its height in inches."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places, total = layout(data)
    with rc_context({"hatch.linewidth": 0.6, "font.family": "DejaVu Sans", "text.parse_math": False}):
        legend = legend_lines(data)
        total += LEGEND_LINE * len(legend) + FOOT
        figure = Figure(figsize=(WIDTH, total), dpi=DPI, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        if on_card:
            card(figure)
        longest = max(1, *(len(engine["time"]) for engine in data["engines"]))
        for number, place in enumerate(places):
            bottom = 1 - (place.top + place.height) / total
            axes = figure.add_axes((LEFT, bottom, SHARE, place.height / total))
            first = number == 0 or places[number - 1].engine is not place.engine
            _draw_view(axes, place, data, longest, first)
            if place.numbered:
                axes.set_xlabel("iteration", fontsize=8, color=DIM)
                axes.tick_params(labelbottom=True)
        for number, entries in enumerate(legend):
            _draw_legend(figure, entries, (FOOT / 2 + LEGEND_LINE * (len(legend) - 1 - number)) / total)
        out = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a name in a script that the font has not: a box, no more
            canvas.print_png(out, metadata={"Software": None})  # no version: the same trace gives the same bytes
    return out.getvalue(), places, total


def layout(data: dict) -> tuple[list[Place], float]:
    """The views of all engines from top to bottom, and where the last one ends."""
    places, top = [], 0.0
    last = ([view for view in data["views"] if TWINS[view].TIMED] or [None])[-1]
    for engine in data["engines"]:
        top += TITLE
        for view in data["views"]:
            height = TWINS[view].height(engine)
            numbered = view == last and (len(data["views"]) > 1 or engine is data["engines"][-1])
            places.append(Place(engine, view, top, height, numbered))
            top += height + BETWEEN + AXIS * numbered
        top -= BETWEEN
    return places, top + BETWEEN


def title(engine: dict) -> str:
    figures = figures_of(engine)
    if not figures["iterations"]:
        return f"{engine['name']}: no iteration ran"
    iterations = counted(figures["iterations"], "iteration")
    padding = f", {counted(figures['padding'], 'padding row')}" if engine["padding_known"] else ""
    return (
        f"{engine['name']}: {iterations}, {100 * figures['occupancy']:.0f} % of batch slots busy, "
        f"{counted(figures['idle_slot_steps'], 'idle slot-step')}{padding}"
    )


def legend_lines(data: dict) -> list[list[tuple]]:
    """The legends of all views, each entry once, in lines that are not too long."""
    entries = {words: handle for view in data["views"] for words, handle in TWINS[view].legend(data)}
    lines: list[list[tuple]] = []
    room = 0
    for words, handle in entries.items():
        if len(words) + 9 > room:
            lines.append([])
            room = LEGEND_WIDTH
        lines[-1].append((words, handle))
        room -= len(words) + 9
    return lines


def _timed(place: Place) -> bool:
    return TWINS[place.view].TIMED


def _draw_view(axes, place: Place, data: dict, longest: int, first: bool):
    here = playhead(data, place.engine)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=DIM, labelbottom=False)
    if _timed(place):
        axes.set(xlim=(0, longest * 1.001))
        iteration_ticks(axes, longest)
    TWINS[place.view].draw(axes, place.engine, data, here, longest)
    if first:
        axes.set_title(title(place.engine), loc="left", fontsize=9, color=INK, pad=5)
    if _timed(place) and data["iteration"] is not None and here >= 0:
        low, high = axes.get_ylim()
        around = [here, here + 1, here + 1, here, here], [low, low, high, high, low]
        axes.plot(*around, color=ACCENT, linewidth=1.3, clip_on=False)


def _draw_legend(figure, entries: list[tuple], bottom: float):
    labels, handles = zip(*entries, strict=True)
    figure.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(LEFT - 0.007, bottom), ncols=len(handles), frameon=False,
        fontsize=8, labelcolor=DIM, handlelength=1.8, columnspacing=1.6, borderaxespad=0, borderpad=0,
    )  # fmt: skip
