"""Whether a line through 30 batches of this machine predicts all others: the simulator's cost model `Fitted`."""

from statistics import median

from tinyengine.bench.table import Table, number, percent
from tinyengine.engine import Engine
from tinyengine.model.load import load_model
from tinyengine.simulate.cost import Fitted
from tinyengine.simulate.measured import fit_trace, measured_batches
from tinyengine.trace import Trace
from tinyengine.workload import poisson

WORKLOADS = {"sharegpt": 1 / 8, "arxiv": 1 / 16}  # lengths, and what they are scaled by, to fit the embedded model


def run(device: str = "cpu", batches: int = 30, requests: int = 32) -> dict:
    """Records a run of each workload, fits a line to `batches` of its iterations, and predicts all the others."""
    model = load_model("tiny", device=device)
    record_run(model, "sharegpt", 4)  # what is set up once is set up now
    fits = {name: _fit(record_run(model, name, requests), batches) for name in WORKLOADS}
    return {"batches": batches, "workloads": fits}


def record_run(model, name: str, requests: int) -> Trace:
    """The trace of a chunked engine with room for 16 requests and 256 tokens in a batch, all of whose requests come at
    once, so that batches are full at first and few at the end."""
    load = poisson(0, name, requests, rate=1e6, scale=WORKLOADS[name])
    engine = Engine(model, "chunked", max_num_seqs=16, max_num_batched_tokens=256, num_slots=16384)
    load.replay(engine)
    return engine.trace


def _fit(trace: Trace, batches: int) -> dict:
    fitted, error = fit_trace(trace, batches)
    measured = measured_batches(trace)
    whole = sum(seconds for _, seconds in measured)
    return {
        "iterations": len(measured),
        "median_seconds": median(seconds for _, seconds in measured),
        "error": error,
        "whole_error": sum(fitted.seconds(load) for load, _ in measured) / whole - 1,
        "coefficients": fitted.coefficients,
    }


def table(result: dict) -> Table:
    rows = [
        (
            name,
            number(row["iterations"]),
            number(1e3 * row["median_seconds"], 2),
            percent(row["error"]),
            percent(row["whole_error"]),
            *(_microseconds(row["coefficients"][feature]) for feature in Fitted.FEATURES),
        )
        for name, row in result["workloads"].items()
    ]
    note = (
        f"Least squares through {result['batches']} iterations of a run, from the smallest to the largest, and the "
        "median relative error on all the others; ms: their median; the error of the whole run's length; then "
        "what a batch of the embedded model costs in microseconds: fixed, for each token, request, position that a "
        "decode reads, and pair that a prompt's tokens make."
    )
    features = ("fixed", "token", "request", "read", "pair")
    return Table(("lengths", "batches", "ms", "error", "whole run", *features), rows, note)


def _microseconds(seconds: float) -> str:
    return number(1e6 * seconds, 0 if seconds >= 1e-4 else 1 if seconds >= 1e-6 else 3)
