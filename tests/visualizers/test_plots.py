"""The papers' plots: what is drawn is what was given."""

import io

import numpy as np
import pytest
from helpers.traces import CHUNKS, busy, requests, run
from matplotlib.image import imread

from tinyengine.metrics import measure
from tinyengine.scheduler import Orca, Static
from tinyengine.trace import Trace
from visualizers import plots

CURVES = {"a": [(1, 0.05), (2, 0.1), (3, 0.3)], "b": [(1, 0.1), (2, 0.5)]}


def lines(chart) -> dict:
    """The (x, y) of each line that has a name."""
    return {
        line.get_label(): list(zip(map(float, line.get_xdata()), map(float, line.get_ydata())))
        for line in chart.axes[0].lines
        if not line.get_label().startswith("_")
    }


def test_throughput_and_latency_curves_have_the_points_that_were_given():
    assert lines(plots.throughput_vs_batch_size({"x": [(1, 10), (2, 20), (64, 90)]})) == {
        "x": [(1, 10), (2, 20), (64, 90)]
    }
    drawn = lines(plots.latency_throughput(CURVES, slo=0.2))
    assert drawn["a"] == [(1, 50), (2, 100), (3, 300)] and drawn["b"] == [(1, 100), (2, 500)]
    assert "SLO: 200 ms" in drawn


def marks(chart) -> list[float]:
    return [pytest.approx(line.get_xdata()[0]) for line in chart.axes[0].lines if line.get_marker() == "|"]


def test_a_promise_is_of_all_curves_or_of_those_it_names():
    assert marks(plots.latency_throughput(CURVES, slo=0.2)) == [2.5, 1.25]
    assert marks(plots.latency_throughput(CURVES, slo={"b": 0.2})) == [1.25]
    assert marks(plots.latency_throughput(CURVES)) == []
    assert plots.latency_throughput(CURVES, logarithmic=True).axes[0].get_yscale() == "log"


def test_capacity_is_where_a_curve_crosses_the_slo():
    assert plots.capacity(CURVES["a"], 0.2) == pytest.approx(2.5)
    assert plots.capacity(CURVES["b"], 0.3) == pytest.approx(1.5)
    assert plots.capacity(CURVES["a"], 0.01) is None and plots.capacity(CURVES["a"], 1) is None
    assert plots.capacity([], 1) is None


def test_iteration_time_is_a_line_with_a_ridge():
    drawn = lines(plots.iteration_time_vs_tokens([(1, 0.002), (100, 0.003)], fit=(0.002, 0.00001), ridge=64))
    assert drawn["iterations"] == [(1, 2), (100, 3)]
    assert drawn["2 ms + 10 µs a token"] == [(0, 2), (100, pytest.approx(3))]
    assert drawn["ridge: 64 tokens"][0][0] == 64


@pytest.mark.parametrize("trace", [CHUNKS, busy(1), run(Static, requests())], ids=["chunks", "busy", "static"])
def test_tbt_over_time_has_every_gap(trace):
    chart = plots.tbt_over_time({"it": trace}, target=measure(trace).tbt.p50 / 1)
    every = chart.axes[0].lines[0]
    assert sum(every.get_ydata()) / len(every.get_ydata()) / 1e3 == pytest.approx(measure(trace).tbt.mean)
    late = [gap for gap in every.get_ydata() if gap > 1e3 * measure(trace).tbt.p50]
    (words,) = (name for name in lines(chart) if name.startswith("it: "))
    assert words == f"it: {len(late)} stalls in {len(every.get_ydata())} gaps"


def test_rows_of_tokens_and_of_padding_stand_on_each_other_at_true_scale():
    trace = run(Static, requests())
    tokens, padding = plots.rows_per_iteration(trace).axes[0].containers
    assert [bar.get_height() for bar in padding] == [step.padding for step in trace.iterations]
    assert [bar.get_y() for bar in padding] == [bar.get_height() for bar in tokens]
    assert sum(bar.get_height() for bar in tokens) == sum(span.n_tokens for it in trace.iterations for span in it.spans)


def test_a_cdf_reaches_one_at_the_largest_value():
    drawn = lines(plots.cdf({"x": [3.0, 1.0, 2.0, 2.0], "none": []}))
    assert drawn["x"] == [(1, 0), (1, 0.25), (2, 0.5), (2, 0.75), (3, 1)]
    assert drawn["none"] == []


def test_capacity_bars_are_as_high_as_the_capacities_and_say_the_multiple():
    chart = plots.capacity_bars({"8B": {"orca": 1.0, "chunked": 2.5}, "70B": {"chunked": 0.5}}, baseline="orca")
    bars = {c.get_label(): [patch.get_height() for patch in c.patches] for c in chart.axes[0].containers}
    assert bars == {"orca": [1.0], "chunked": [2.5, 0.5]}
    assert [text.get_text() for text in chart.axes[0].texts] == ["1", "2.5 (2.5x)", "0.5"]


CHARTS = {
    "throughput": lambda: plots.throughput_vs_batch_size({f"stage {n}": [(1, 10 + n), (8, 70)] for n in range(7)}),
    "iteration": lambda: plots.iteration_time_vs_tokens([(1, 0.002)]),
    "tbt": lambda: plots.tbt_over_time({"static": run(Static, requests()), "orca": run(Orca, requests()), "": Trace()}),
    "cdf": lambda: plots.cdf({"a": [1, 2, 3], "b": [2]}, logarithmic=True),
    "bars": lambda: plots.capacity_bars({"x": {"a": 1, "b": 2}}),
    "rows": lambda: plots.rows_per_iteration(run(Static, requests())),
    "latency": lambda: plots.latency_throughput(CURVES),
}


@pytest.mark.parametrize("make", CHARTS.values(), ids=CHARTS)
def test_each_shows_itself_in_a_notebook_and_is_the_same_every_time(make, tmp_path):
    png = make()._repr_png_()
    assert png == make().to_png(tmp_path / "chart.png") == (tmp_path / "chart.png").read_bytes()
    image = imread(io.BytesIO(png))
    assert image.shape[1] == 960 and (np.ptp(image[..., :3], axis=-1) > 0.1).sum() > 100
