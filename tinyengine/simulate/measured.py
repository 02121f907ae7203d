"""A cost model of one's own machine: the batches of a recorded run, and the line through some of them."""

from tinyengine.simulate.cost import Fitted, Load, chunk, together
from tinyengine.trace import Trace

WARM_UP = 3  # first iterations, which pay for what is set up once


def measured_batches(trace: Trace) -> list[tuple[Load, float]]:
    """Every iteration's load, and the seconds it took."""
    return [
        (together(*(chunk(span.start, span.n_tokens) for span in iteration.spans)), iteration.duration)
        for iteration in trace.iterations[WARM_UP:]
    ]


def fit_trace(trace: Trace, batches: int = 30) -> tuple[Fitted, float]:
    """As fit_batches, of a trace's iterations."""
    return fit_batches(measured_batches(trace), batches)


def fit_batches(measured: list[tuple[Load, float]], batches: int = 30) -> tuple[Fitted, float]:
    """A line through `batches` of what was measured, from the smallest to the largest, and the median relative error on
    all the others. Raises ValueError where there are fewer than twice as many."""
    measured = sorted(measured)
    if len(measured) < 2 * batches:
        raise ValueError(
            f"{len(measured)} iterations were measured, but {batches} to fit and as many to check are wanted: record a "
            "longer run"
        )
    chosen = {round(n * (len(measured) - 1) / (batches - 1)) for n in range(batches)}
    fitted = Fitted.fit([measured[place] for place in sorted(chosen)])
    return fitted, fitted.error([batch for place, batch in enumerate(measured) if place not in chosen])
