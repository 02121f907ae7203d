"""One iteration's batch: the stream of tokens cut into spans, or the padded rectangle."""

from visualizers.figures import Flat, flat
from visualizers.twins.common import (
    DIM,
    GRID,
    INK,
    box,
    edge,
    fill,
    hatching,
    hue_of,
    pale,
    phase_handles,
    playhead,
)

TIMED = False
MOST_ROWS = 12


def height(engine: dict) -> float:
    return 0.7 if not any(engine["padding"]) else 0.3 + 0.16 * min(engine["slots"], MOST_ROWS)


def draw(axes, engine: dict, data: dict, here: int, longest: int):
    batch = flat(engine, here)
    axes.set(xlim=(0, 1), ylim=(1, 0))
    axes.set_xticks([])
    axes.set_yticks([])
    if not batch.spans:
        axes.text(0, 0.5, f"iteration {here + 1}: nothing ran", fontsize=8, color=DIM, va="center")
        return
    across = batch.width or batch.size
    rows = batch.size // across
    unit, row_height = 1 / max(across, 12), 0.62 / rows
    if batch.width:
        _patch(axes, 0, across * unit, 0.22, 0.84, facecolor="white", edgecolor=GRID, hatch="xxxxxx")
    for span in batch.spans:
        left, top = span.offset % across * unit, 0.22 + span.offset // across * row_height
        _draw_span(axes, data, span, left, top, unit, row_height)
    rectangle = f"{rows} x {across} rows, {batch.padding} of them padding"
    shape = rectangle if batch.width else f"cu_seqlens {_cu_seqlens(batch)}"
    axes.text(0, 0.08, f"iteration {here + 1}: {shape}", fontsize=7.5, color=DIM, va="center")


def legend(data: dict) -> list[tuple]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    batches = [flat(engine, playhead(data, engine)) for engine in data["engines"]]
    spans = [span for batch in batches for span in batch.spans]
    entries = phase_handles(data, {span.phase for span in spans})
    if any(batch.width for batch in batches):
        entries.append(("padding", Patch(facecolor="white", edgecolor=GRID, hatch="xxxxxx")))
    if any(span.due for span in spans):
        triangle = Line2D([], [], color=INK, marker="^", markersize=3, linestyle="")
        entries.append(("row whose logits are needed", triangle))
    return entries


def _draw_span(axes, data: dict, span, left: float, top: float, unit: float, height: float):
    hue, phase, right = hue_of(data, span.request), data["phases"][span.phase], left + span.size * unit
    _patch(axes, left, right, top, top + height * 0.94, facecolor=fill(hue, phase), **hatching(phase))
    _patch(axes, left, right, top, top + height * 0.94, facecolor="none", edgecolor=edge(hue), linewidth=0.7)
    name = data["requests"][span.request][1]
    if len(name) * 0.008 < right - left and height > 0.1:
        axes.annotate(
            name, (left, top + height / 2), (3, 0), textcoords="offset points", va="center", fontsize=7, color=INK,
            bbox={"facecolor": pale(hue), "linewidth": 0, "pad": 1.2}, parse_math=False,
        )  # fmt: skip
    for row in range(span.due):
        axes.plot(right - (row + 0.5) * unit, top + height * 0.82, "^", markersize=3, color=INK)


def _patch(axes, first: float, end: float, top: float, bottom: float, **style):
    from matplotlib.patches import Polygon

    axes.add_patch(Polygon(box(first, end, top, bottom), **style))


def _cu_seqlens(batch: Flat) -> str:
    edges = [*(span.offset for span in batch.spans), batch.size]
    return ", ".join(map(str, edges[:24])) + (" …" if len(edges) > 24 else "")
