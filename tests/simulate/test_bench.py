"""The simulator's benchmarks in a tiny configuration, and a fit to a recorded trace."""

import io
import json

import pytest
from rich.console import Console

from tinyengine.bench import benchmark, fit, simulate
from tinyengine.cli import main
from tinyengine.memory import Blocks
from tinyengine.scheduler import Chunked
from tinyengine.simulate import GPUS, MODELS, Load, Roofline, Simulator
from tinyengine.simulate.executor import new_trace
from tinyengine.simulate.measured import WARM_UP, fit_batches, fit_trace, measured_batches
from tinyengine.workload import stream

COST = Roofline(GPUS["rtx-4090"], MODELS["qwen3-0.6b"])


@pytest.fixture(scope="module")
def recorded():
    scheduler = Chunked(Blocks.for_arena(100_000, 16), 32, 512)
    trace = new_trace("chunked", scheduler)
    Simulator(scheduler, COST, trace=trace).run(stream("sharegpt", 2.0, 12))
    return trace


def test_a_recorded_trace_has_the_loads_that_were_priced(recorded):
    batches = measured_batches(recorded)
    assert len(batches) == len(recorded.iterations) - WARM_UP
    assert all(seconds == pytest.approx(COST.seconds(load), rel=1e-6) for load, seconds in batches)


def test_30_batches_predict_the_others(recorded):
    fitted, error = fit_trace(recorded)
    assert error < 0.15
    assert fitted.coefficients["fixed"] > 0


def test_the_error_is_that_of_batches_the_line_has_not_seen():
    """Every third of 88 takes what a line says, and is fitted; the others take twice as long."""
    measured = [(Load(1 + n, 1), (1.0 if n % 3 == 0 else 2.0) * (1e-3 + 1e-5 * n)) for n in range(88)]
    fitted, error = fit_batches(measured, batches=30)
    assert fitted.seconds(Load(1, 1)) == pytest.approx(1e-3) and error == pytest.approx(0.5)


def test_a_trace_too_short_to_check_the_fit_is_refused(recorded):
    with pytest.raises(ValueError, match=f"^{len(recorded.iterations) - WARM_UP} iterations"):
        fit_trace(recorded, batches=10**6)


def test_the_command_simulates_with_fitted_times(recorded, tmp_path, capsys):
    path, result = tmp_path / "trace.json", tmp_path / "run.json"
    recorded.save(path)
    assert main(["simulate", "--fit", str(path), "--requests", "12", "--rate", "2", "--json", str(result)]) == 0
    assert "on batches that were held out" in capsys.readouterr().out
    report = json.loads(result.read_text())["report"]
    elapsed = recorded.iterations[-1].end - next(iter(recorded.requests.values())).arrival
    assert report["elapsed"] == pytest.approx(elapsed, rel=0.1)


def told(name: str, result: dict) -> str:
    out = io.StringIO()
    benchmark(name).table(result).show(name, Console(file=out, width=80))
    text = out.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines()) and "…" not in text
    return text


def test_the_benchmark_of_speed_and_scale():
    result = simulate.run(requests=50, repeats=1, scales=(20, 40))
    assert [run["requests"] for run in result["scale"]] == [20, 40]
    assert all(5 < run["peak_mib"] < 100 for run in result["scale"])  # this process, with torch, has more
    assert all(0 < trial["jumped"] < trial["iterations"] for trial in result["trials"])
    assert "1,000,000" not in told("simulate", result)


def test_the_benchmark_of_the_fit():
    result = fit.run(batches=10, requests=6, repeats=2)
    assert all(row["iterations"] >= 20 and row["error"] > 0 for row in result["workloads"].values())
    assert "10 iterations" in told("fit", result)
