"""Batch composition: rows of each iteration by kind under the token budget, and its duration below."""

from visualizers.captions import counted
from visualizers.figures import KINDS, composition
from visualizers.twins.common import (
    ACCENT,
    CHARACTER,
    DIM,
    GRID,
    INK,
    SHARE,
    WIDTH,
    add_boxes,
    box,
    edge,
    fill,
    halo,
    hatching,
    phase_handles,
)  # fmt: skip

TIMED = True
FROM_BELOW = ("decode", "prefill", "chunk", "recompute", "guess", "padding")
GUESS = 2  # its place in the palette


def height(engine: dict) -> float:
    return 1.35 if engine["timed"] else 1.0


def draw(axes, engine: dict, data: dict, here: int, longest: int):
    rows = composition(engine)
    most, slowest = engine["tops"]
    floor = 0.4 * most if engine["timed"] else 0  # durations lie below 0
    axes.set(ylim=(-floor, most * 1.06))
    bottoms = [0] * len(rows)
    for kind in FROM_BELOW:
        sizes = [row[KINDS.index(kind)] for row in rows]
        boxes = [box(n, n + 1, low, low + size) for n, (low, size) in enumerate(zip(bottoms, sizes)) if size]
        bottoms = [low + size for low, size in zip(bottoms, sizes)]  # the axis cuts what is above `most`
        add_boxes(axes, boxes, **_style(data, kind))
        add_boxes(axes, boxes, facecolors="none", edgecolors=_edge(data, kind), linewidths=0.5)
    shares = [min(1, duration / slowest) for duration in engine["duration"]]
    bars = [box(n + 0.08, n + 0.92, -floor, -floor * (1 - 0.7 * share)) for n, share in enumerate(shares)]
    add_boxes(axes, bars, facecolors=DIM, linewidths=0)
    axes.set_yticks([-0.65 * floor, 0, most], [_seconds(slowest) if floor else "", "0", counted(most, "row")])
    for n, row in enumerate(rows):
        if sum(row) > 1.06 * most:
            number = str(sum(row))
            room = longest * len(number) * CHARACTER / WIDTH / SHARE / 2  # iterations that half of it takes
            place = min(max(n + 0.5, room), longest - room)  # within the picture, not on the axis' own numbers
            axes.annotate(
                number, (place, most), (0, 2), textcoords="offset points", ha="center", va="top", fontsize=6.5,
                color=INK, path_effects=halo("#ffffff"),
            )  # fmt: skip
    if _far(engine):
        note = f"budget {max(_budgets(engine)):,}, far above"
        axes.text(0.998, 0.93, note, va="top", ha="right", fontsize=7, color=ACCENT, transform=axes.transAxes)
        return
    for n, budget in enumerate(engine["budget"]):
        if budget is not None:
            axes.hlines(budget, n, n + 1, color=ACCENT, linewidth=1.2)


def legend(data: dict) -> list[tuple]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = {kind for engine in data["engines"] for row in composition(engine) for kind, n in zip(KINDS, row) if n}
    entries = phase_handles(data, {n for n, phase in enumerate(data["phases"]) if phase in used})
    for kind in ("guess", "padding"):
        if kind in used:
            shape = (Patch(**_single(_style(data, kind))), Patch(facecolor="none", edgecolor=_edge(data, kind), lw=0.6))
            entries.append((kind, shape))
    if any(_budgets(engine) and not _far(engine) for engine in data["engines"]):
        entries.append(("token budget", Line2D([], [], color=ACCENT, linewidth=1.2)))
    if data["engines"][0]["timed"]:
        entries.append(("duration", Patch(facecolor=DIM)))
    return entries


def _budgets(engine: dict) -> list[int]:
    return [budget for budget in engine["budget"] if budget is not None]


def _far(engine: dict) -> bool:
    """Its budget is above the axis."""
    return max(_budgets(engine), default=0) > engine["tops"][0]


def _style(data: dict, kind: str) -> dict:
    if kind == "padding":
        return {"facecolors": "white", "edgecolor": GRID, "linewidth": 0, "hatch": "xxxxxx"}
    if kind == "guess":
        return {"facecolors": data["palette"][GUESS], **hatching("chunk")}
    return {"facecolors": fill(data["palette"][0], kind), **hatching(kind)}


def _single(style: dict) -> dict:
    return {"facecolor": style["facecolors"], **{key: value for key, value in style.items() if key != "facecolors"}}


def _edge(data: dict, kind: str) -> str:
    return GRID if kind == "padding" else edge(data["palette"][GUESS if kind == "guess" else 0])


def _seconds(value: float) -> str:
    return f"{value * 1e6:.3g} µs" if value < 1e-3 else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
