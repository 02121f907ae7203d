"""The plots that papers on serving have: data in, figure out. A figure shows itself in a notebook;
`.to_png(path)` writes it.

    from visualizers import plots
    plots.tbt_over_time({"static": a, "chunked": b})

Series differ in colour, line and marker, so that they can be told apart without the colour.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tinyengine.trace import Trace
from visualizers.frames import PALETTE, STALL
from visualizers.twins.common import ACCENT, DPI, GREY, edge, on_any_page, pale

Points = Sequence[tuple[float, float]]
SIZE = (6.4, 3.2)  # inches
MARKERS, LINES, HATCHES = "osD^vP*", ("-", "--", "-.", ":"), ("", "//", "xx", "..", "\\\\", "++", "oo")


class Chart(Figure):
    """A matplotlib figure with one pair of axes, `axes[0]`."""

    def __init__(self, x: str, y: str, title: str = "", size: tuple[float, float] = SIZE):
        super().__init__(figsize=size, dpi=DPI, layout="constrained")
        self.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
        axes = self.add_subplot(xlabel=x, ylabel=y)
        axes.set_title(title, loc="left", fontsize=10, color=GREY)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, length=3)
        axes.xaxis.label.set_size(9)
        axes.yaxis.label.set_size(9)
        axes.grid(color=GREY, linewidth=0.5, alpha=0.3)
        axes.set_axisbelow(True)

    def to_png(self, path: str | Path | None = None) -> bytes:
        """PNG bytes, the same for the same data; written to `path` too, if there is one."""
        on_any_page(self)
        out = io.BytesIO()
        self.savefig(out, format="png", metadata={"Software": None})
        if path is not None:
            Path(path).write_bytes(out.getvalue())
        return out.getvalue()

    def _repr_png_(self) -> bytes:
        return self.to_png()


def throughput_vs_batch_size(series: Mapping[str, Points]) -> Chart:
    """series: by name, (batch size, tokens a second). Both axes are logarithmic: doubling is one step."""
    chart = Chart("batch size (requests)", "tokens / s")
    axes = chart.axes[0]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    _lines(axes, series)
    return chart


def iteration_time_vs_tokens(
    points: Points, fit: tuple[float, float] | None = None, ridge: float | None = None
) -> Chart:
    """points: (tokens of an iteration, its seconds). fit: (seconds of an empty iteration, seconds a token), drawn as a
    line. ridge: tokens at which computing takes as long as reading the weights; below it a token is nearly free."""
    chart = Chart("tokens in the iteration", "ms")
    axes = chart.axes[0]
    axes.plot(
        [n for n, _ in points], [1e3 * seconds for _, seconds in points],
        MARKERS[0], markersize=4, color=pale(PALETTE[0]), markeredgecolor=edge(PALETTE[0]), label="iterations",
    )  # fmt: skip
    most = max((n for n, _ in points), default=1)
    if fit is not None:
        fixed, each = fit
        name = f"{fixed * 1e3:.3g} ms + {each * 1e6:.3g} µs a token"
        axes.plot([0, most], [1e3 * fixed, 1e3 * (fixed + each * most)], color=ACCENT, linewidth=1.5, label=name)
    if ridge is not None:
        axes.axvline(ridge, color=GREY, linestyle=":", linewidth=1.2, label=f"ridge: {ridge:g} tokens")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return chart


def rows_per_iteration(trace: Trace) -> Chart:
    """The rows that the model computes in each iteration: those that hold a token, and on top of them the padding."""
    chart = Chart("iteration", "rows")
    axes, numbers = chart.axes[0], range(1, len(trace.iterations) + 1)
    real = [sum(span.n_tokens for span in iteration.spans) for iteration in trace.iterations]
    padding = [iteration.padding for iteration in trace.iterations]
    words = [f"{sum(rows):,} rows of {kind}" for rows, kind in ((real, "tokens"), (padding, "padding"))]
    axes.bar(numbers, real, 0.9, color=_hue(0), label=words[0])
    axes.bar(numbers, padding, 0.9, bottom=real, color=GREY, alpha=0.5, label=words[1])
    axes.grid(axis="x", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8)
    return chart


def tbt_over_time(traces: Mapping[str, Trace], target: float | None = None) -> Chart:
    """Every gap between two tokens of a request, where its second token came; stalls (above `target` seconds, or above
    STALL times the median of the run, if there is none) are filled and counted."""
    chart = Chart("seconds since the first iteration", "time between tokens, ms", size=(6.4, 1.4 + 0.9 * len(traces)))
    axes = chart.axes[0]
    for number, (name, trace) in enumerate(traces.items()):
        gaps = _gaps(trace)
        limit = STALL * median([gap for _, gap in gaps] or [0]) if target is None else target
        late = [(at, gap) for at, gap in gaps if gap > limit]
        for some, colour, size, words in (
            (gaps, pale(_hue(number)), 2.5, None),
            (late, edge(_hue(number)), 4, f"{name}: {len(late)} stalls in {len(gaps)} gaps"),
        ):
            x, y = [at for at, _ in some], [1e3 * gap for _, gap in some]
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(x, y, marker, markersize=size, color=colour, markeredgewidth=0, label=words)
    if target is not None:
        axes.axhline(1e3 * target, color=ACCENT, linewidth=1.2, label=f"target: {1e3 * target:g} ms")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return chart


def cdf(values: Mapping[str, Sequence[float]], x: str = "seconds", logarithmic: bool = False) -> Chart:
    """The share of each series that is at most x, with p50 and p99 as lines across."""
    chart = Chart(x, "share of all")
    axes = chart.axes[0]
    for number, (name, own) in enumerate(values.items()):
        ordered = sorted(own)
        shares = [n / len(ordered) for n in range(len(ordered) + 1)] if ordered else []
        axes.step([*ordered[:1], *ordered], shares, where="post", label=name, **_line(number))
    for share in (0.5, 0.99):
        axes.axhline(share, color=GREY, linewidth=0.7, linestyle=":")
        axes.annotate(f"p{100 * share:g}", (1, share), (3, 0), xycoords=("axes fraction", "data"),
                      textcoords="offset points", va="center", fontsize=7, color=GREY)  # fmt: skip
    if logarithmic:
        axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(frameon=False, fontsize=8)
    return chart


def capacity_bars(
    groups: Mapping[str, Mapping[str, float]], y: str = "requests / s", baseline: str | None = None
) -> Chart:
    """groups: by setting, the capacity of each system. baseline: the system whose multiple stands over the others."""
    chart = Chart("", y)
    axes = chart.axes[0]
    systems = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / max(1, len(systems))
    for number, system in enumerate(systems):
        places = [n - 0.4 + width * (number + 0.5) for n, group in enumerate(groups.values()) if system in group]
        heights = [group[system] for group in groups.values() if system in group]
        axes.bar(
            places, heights, 0.92 * width, label=system, color=pale(_hue(number)), edgecolor=edge(_hue(number)),
            hatch=HATCHES[number % len(HATCHES)],
        )  # fmt: skip
        for place, group in zip(places, (group for group in groups.values() if system in group), strict=True):
            times = f" ({group[system] / group[baseline]:.2g}x)" if group.get(baseline) and system != baseline else ""
            axes.annotate(f"{group[system]:.3g}{times}", (place, group[system]), (0, 2), textcoords="offset points",
                          ha="center", fontsize=7, color=GREY)  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups))
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.14)
    axes.legend(frameon=False, fontsize=8)
    return chart


def latency_throughput(
    curves: Mapping[str, Points],
    slo: float | Mapping[str, float] | None = None,
    x: str = "requests / s",
    y: str = "p99 TBT, ms",
    title: str = "",
    logarithmic: bool = False,
) -> Chart:
    """curves: by system, (load, latency in seconds). slo: seconds, promised of all curves or of those that it names;
    where a curve crosses it is the capacity. logarithmic: for latencies that differ by orders of magnitude."""
    chart = Chart(x, y, title)
    axes = chart.axes[0]
    _lines(axes, {name: [(load, 1e3 * latency) for load, latency in points] for name, points in curves.items()})
    promises = slo if isinstance(slo, Mapping) else {} if slo is None else dict.fromkeys(curves, slo)
    for promise in dict.fromkeys(promises.values()):
        axes.axhline(1e3 * promise, color=ACCENT, linewidth=1.2, label=f"SLO: {1e3 * promise:g} ms")
    for number, (name, points) in enumerate(curves.items()):
        if name in promises and (load := capacity(points, promises[name])) is not None:
            mark = {"markersize": 14, "markeredgewidth": 2, "color": edge(_hue(number))}
            axes.plot(load, 1e3 * promises[name], "|", **mark)
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.legend(frameon=False, fontsize=8)
    return chart


def capacity(points: Points, slo: float) -> float | None:
    """The load at which a latency curve first crosses `slo`, on a line between two points; None: it does not."""
    for (load, latency), (more, worse) in pairwise(sorted(points)):
        if latency <= slo < worse:
            return load + (more - load) * (slo - latency) / (worse - latency)
    return None


def _gaps(trace: Trace) -> list[tuple[float, float]]:
    """(seconds since the first iteration, seconds since the token before) of every later token of every request."""
    last, gaps = {}, []
    for iteration in trace.iterations:
        for span in iteration.spans:
            for _ in span.tokens:
                if span.request_id in last:
                    gaps.append((iteration.end - trace.iterations[0].time, iteration.end - last[span.request_id]))
                last[span.request_id] = iteration.end
    return gaps


def _lines(axes, series: Mapping[str, Points]):
    for number, (name, points) in enumerate(series.items()):
        marker = MARKERS[number % len(MARKERS)]
        axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, label=name, **_line(number))
    axes.legend(frameon=False, fontsize=8)


def _line(number: int) -> dict:
    return {"color": _hue(number), "linestyle": LINES[number % len(LINES)], "linewidth": 1.5, "markersize": 5}


def _hue(number: int) -> str:
    return PALETTE[number % len(PALETTE)]
