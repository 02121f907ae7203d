"""Colours, hatching and boxes of all twins; the same as in static/style.js."""

import re
import warnings

MARGIN, ROUND = 0.02, 0.1  # inches: around the card that a picture stands on, and of its corners
WIDTH, DPI = 9.0, 150  # inches, dots per inch: about 900 px wide on GitHub, and sharp on dense screens
LEFT, SHARE = 0.088, 0.897  # of the width: where the cells begin, and how wide they are
HATCH = {"prefill": "//////", "chunk": "\\\\\\\\\\\\", "decode": "", "recompute": "xxxxxx"}
GRID, EDGE, DIM, INK, ACCENT = "#c3cad2", "#39424d", "#59636e", "#1b1f24", "#b3261e"
GREY = "#7b8087"  # reads on a white page and on a dark one
PALE, MID, WASH, EDGED = 0.66, 0.4, 0.9, 0.3  # how far a hue is mixed with white, and with ink at an edge
MOST_CELLS = 160  # iterations; beyond, a line between any two would be all that is seen
LINES = 3  # most of them
CHARACTER = 0.062  # inches that a character of a label takes, at most


def card(figure):
    """A white card with round corners below all else, since the page around a picture may be dark."""
    from matplotlib.patches import FancyBboxPatch

    width, height = figure.get_size_inches()
    style = f"round,pad=0,rounding_size={ROUND}"
    inside = FancyBboxPatch(
        (MARGIN, MARGIN), width - 2 * MARGIN, height - 2 * MARGIN, boxstyle=style, facecolor="white", edgecolor=GRID,
        linewidth=0.7, transform=figure.dpi_scale_trans, zorder=-1,
    )  # fmt: skip
    inside.set_in_layout(False)
    figure.set_facecolor("none")
    figure.add_artist(inside)


def on_any_page(figure):
    """No ground, and all words around the data in grey, since the page around a chart may be white or dark."""
    figure.set_facecolor("none")
    legends = list(figure.legends)
    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.tick_params(colors=GREY)
        axes.spines[:].set_color(GREY)
        for words in (axes.title, axes.xaxis.label, axes.yaxis.label):
            words.set_color(GREY)
        legends += [axes.get_legend()] if axes.get_legend() else []
    for legend in legends:
        for words in (legend.get_title(), *legend.get_texts()):
            words.set_color(GREY)


def playhead(data: dict, engine: dict) -> int:
    """The iteration that is drawn where a view shows one; -1 where there is none."""
    last = len(engine["time"]) - 1
    return last if data["iteration"] is None else min(data["iteration"], last)


def hue_of(data: dict, request: int) -> str:
    return data["palette"][request % len(data["palette"])]


def lines_of(data: dict, request: int) -> int:
    """A hue comes again after seven requests: the next seven have a line along the bottom, the seven after them two."""
    return min(LINES, request // len(data["palette"]))


def mix(colour: str, other: str, share: float) -> str:
    """`share` of `other` in `colour`; both "#rrggbb"."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a * (1 - share) + b * share):02x}" for a, b in pairs)


def pale(hue: str) -> str:
    return mix(hue, "#ffffff", PALE)


def mid(hue: str) -> str:
    return mix(hue, "#ffffff", MID)


def edge(hue: str) -> str:
    return mix(hue, INK, EDGED)


def fill(hue: str, phase: str) -> str:
    return pale(hue) if phase == "decode" else hue


def hatching(phase: str) -> dict:
    return {"edgecolor": "#ffffffbf", "linewidth": 0, "hatch": HATCH[phase] or None}


def box(first: float, end: float, top: float, bottom: float) -> list[tuple[float, float]]:
    return [(first, top), (end, top), (end, bottom), (first, bottom)]


def add_boxes(axes, boxes: list, **style):
    """Many rectangles at once; colours one for all, or one for each."""
    from matplotlib.collections import PolyCollection

    if boxes:
        axes.add_collection(PolyCollection(boxes, **style))


def add_runs(axes, data: dict, runs: list[list], tops: list[float], height: float):
    """Runs as boxes: one collection per phase, because a collection has one hatching; outlines apart, because a
    hatching has the colour of its outline (before matplotlib 3.11). Chunks of one size are a run, and still stand
    apart: each is a part of the prompt."""
    longest = max(len(engine["time"]) for engine in data["engines"])
    for number, phase in enumerate(data["phases"]):
        own = [(run, top) for run, top in zip(runs, tops, strict=True) if run[2] == number]
        boxes = [box(run[3], run[3] + run[4], top, top + height) for run, top in own]
        hues = [hue_of(data, run[1]) for run, _ in own]
        add_boxes(axes, boxes, facecolors=[fill(hue, phase) for hue in hues], **hatching(phase))
        if phase == "chunk" and longest <= MOST_CELLS:
            line = min(1.4, 60 / max(1, longest))
            for run, top in own:
                axes.vlines(range(run[3] + 1, run[3] + run[4]), top, top + height, color="white", linewidth=line)
        add_boxes(axes, boxes, facecolors="none", edgecolors=[edge(hue) for hue in hues], linewidths=0.6)
    _underline(axes, data, zip(runs, tops, strict=True), height)


def _underline(axes, data: dict, runs, height: float):
    for run, top in runs:
        for n in range(lines_of(data, run[1])):
            line = top + height * (0.82 - 0.2 * n)
            axes.hlines(line, run[3], run[3] + run[4], color=edge(hue_of(data, run[1])), linewidth=1.4)


def phase_handles(data: dict, used: set[int]) -> list[tuple]:
    from matplotlib.patches import Patch

    hue = data["palette"][0]
    # A tuple of handles is drawn one over the other.
    outline = Patch(facecolor="none", edgecolor=edge(hue), lw=0.6)
    return [
        (name, (Patch(facecolor=fill(hue, name), **hatching(name)), outline))
        for number, name in enumerate(data["phases"])
        if number in used
    ]


def fit(name: str, inches: float, size: float) -> str:
    """The name, or as much of it as has room in letters of `size` points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(size=size)

    def wide(text: str) -> float:
        return TextToPath().get_text_width_height_descent(text, font, ismath=False)[0] / 72

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # see picture.render
        shown = name
        while shown and wide(shown) > inches:
            shown = shown.removesuffix("…")[:-1] + "…"
        return shown


def iteration_ticks(axes, longest: int):
    """Iteration n, counted from 1, is the cell from n - 1 to n, and its number stands below the middle."""
    from matplotlib.ticker import MaxNLocator

    numbers = {1, *(int(n) for n in MaxNLocator(12, integer=True).tick_values(1, longest) if 1 <= n <= longest)}
    axes.set_xticks([n - 0.5 for n in sorted(numbers)], [str(n) for n in sorted(numbers)])


def halo(colour: str):
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2, foreground=colour)]


def plate(colour: str) -> dict:
    """What stands behind a label, since hatching runs through letters."""
    return {"boxstyle": "square,pad=0.04", "facecolor": colour, "edgecolor": "none"}


def prompt_of(engine: dict, request: int) -> str:
    """The text of its prompt in one line, without what no font has, or ""."""
    text = re.sub(r"<\|\w+\|>", " ", engine["records"].get(request, [None])[-1] or "")
    return printable(text).strip()


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else "↵" if char == "\n" else " " for char in text)
