"""A Trace in, a picture out. `show(trace)` draws one engine, `compare(static=a, orca=b)` up to six under one playhead.

Both return a `Player`: as the last line of a notebook cell it is a widget and, in the same output, a PNG for places
where no widget runs (GitHub, a notebook that is not trusted). `.to_html(path)`, `.to_png(path)` and `.to_gif(path)`
write files. `live(engine)` runs an engine in a thread and draws it meanwhile. `playground("02")` has sliders for a
workload and an engine; `dry_run(stage, work)` is what it runs: a stage's real scheduler with dummy tokens. The plots
that papers have are in plots.

views, of both: what is shown at first, any of
    "slots"     which request has which batch slot "batch"     rows of each iteration by kind, and its duration
    "requests"  each request's wait and life      "memory"    which request holds which K/V slots
    "text"      the outputs as they grow          "flat"      one iteration's stream of tokens, and its masks
iteration, of both: where the playhead stands at first, counted from 1 as in the picture; None is 1, and the PNG then
shows the whole run. expected, of both: a Trace, or token ids by request id; the first token that differs from them is
marked.
"""

from tinyengine.trace import Trace
from visualizers.dummy import dry_run
from visualizers.live import LivePlayer, Steps
from visualizers.player import Player

__all__ = ["LivePlayer", "Player", "compare", "dry_run", "live", "playground", "show"]


def show(trace: Trace, **options) -> Player:
    """One engine. options: views, iteration, expected."""
    return Player({getattr(trace, "stage", "") or "engine": trace}, **options)


def compare(*unnamed, views=("slots",), iteration=None, expected=None, **traces: Trace) -> Player:
    """Up to six engines, named by keyword, one above the other under one playhead. Raises TypeError for one without a
    name."""
    if unnamed:
        raise TypeError(
            f"compare got a {type(unnamed[0]).__name__} without a name: write compare(static=a, orca=b), "
            "or show(trace) for one trace"
        )
    return Player(traces, views, iteration, expected)


def live(engine: Steps, interval: float = 0.25, pace: float = 0.0, **options) -> LivePlayer:
    """Runs `engine` in a thread until it has no unfinished requests. The widget's button pauses the engine.

    interval: seconds between two pictures, at least. pace: seconds that each iteration is made to last. options: views,
    iteration, expected.
    """
    return LivePlayer(engine, interval, pace, **options)


def playground(preset: str | int = "02"):
    """Sliders and menus for a workload and an engine, and the run that they give: the stages' real schedulers, with
    dummy tokens, drawn at once. preset: the number of a lesson, whose reader knows what is on the sliders.

    Raises ValueError for a lesson without a preset.
    """
    from visualizers.sandbox import Playground  # ipywidgets take a while to import

    return Playground(preset)
