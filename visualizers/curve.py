"""Latency against load, as a PNG: one line for each percentile, from the points of tinyengine.simulate.search.curve."""

LINES = (("tbt", "p50", "-"), ("tbt", "p99", "--"), ("ttft", "p50", "-"), ("ttft", "p99", "--"))


def draw(points: list[dict], title: str, tbt: float | None = None) -> bytes:
    """points: reports as JSON, each with its "rate". tbt: the promise, as a line."""
    from io import BytesIO

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    rates = [point["rate"] for point in points]
    for axes, time in zip(figure.subplots(1, 2), ("tbt", "ttft"), strict=True):
        for name, percentile, style in LINES:
            if name == time:
                axes.plot(rates, [point[name][percentile] for point in points], f"o{style}", label=percentile)
        if time == "tbt" and tbt is not None:
            axes.axhline(tbt, color="black", linewidth=0.8, label="SLO")
        axes.set(xlabel="requests/s", ylabel=f"{time.upper()}, s", yscale="log")
        axes.legend()
    png = BytesIO()
    canvas.print_png(png)
    return png.getvalue()
