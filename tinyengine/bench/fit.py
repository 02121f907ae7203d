"""Whether a line through 30 batches of this machine predicts all others: the simulator's cost model `Fitted`."""

from statistics import median

from tinyengine.bench.table import Table, number, percent
from tinyengine.engine import Engine
from tinyengine.model.load import load_model
from tinyengine.simulate.cost import Fitted
from tinyengine.simulate.measured import fit_batches, measured_batches
from tinyengine.trace import Trace
from tinyengine.workload import poisson

WORKLOADS = {"sharegpt": 1 / 8, "arxiv": 1 / 16}  # lengths, and what they are scaled by, to fit the embedded model


def run(device: str = "cpu", batches: int = 30, requests: int = 32, repeats: int = 5) -> dict:
    """Records `repeats` runs of each workload, whose iterations are the same, fits a line to `batches` of them, and
    predicts all the others. An iteration's time is its median over the runs."""
    model = load_model("tiny", device=device)
    record_run(model, "sharegpt", 4)  # what is set up once is set up now
    fits = {name: _fit([record_run(model, name, requests) for _ in range(repeats)], batches) for name in WORKLOADS}
    return {"batches": batches, "repeats": repeats, "workloads": fits}


def record_run(model, name: str, requests: int) -> Trace:
    """The trace of a chunked engine with room for 16 requests and 256 tokens in a batch, all of whose requests come at
    once, so that batches are full at first and few at the end."""
    load = poisson(0, name, requests, rate=1e6, scale=WORKLOADS[name])
    engine = Engine(model, "chunked", max_num_seqs=16, max_num_batched_tokens=256, num_slots=16384)
    load.replay(engine)
    return engine.trace


def _fit(traces: list[Trace], batches: int) -> dict:
    runs = zip(*(measured_batches(trace) for trace in traces), strict=True)
    measured = [(run[0][0], median(seconds for _, seconds in run)) for run in runs]
    fitted, error = fit_batches(measured, batches)
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
        f"median relative error on all the others; an iteration's time is its median over {result['repeats']} runs. ms:"
        " the median of these. whole run: the error of the predicted length of the run. The rest is what a batch of "
        "the embedded model costs in microseconds: fixed, for each token, for each request, for each position that a "
        "decode reads, and for each pair of tokens in a prompt."
    )
    features = ("fixed", "token", "request", "read", "pair")
    return Table(("lengths", "batches", "ms", "error", "whole run", *features), rows, note)


def _microseconds(seconds: float) -> str:
    return number(1e6 * seconds, 0 if seconds >= 1e-4 else 1 if seconds >= 1e-6 else 3)
