"""A Trace in, a picture out. `show(trace)` draws one engine, `compare(static=a, orca=b)` up to six under one playhead.

Both return a `Player`: as the last line of a notebook cell it is a widget and, in the same output, a PNG for places
where no widget runs (GitHub, a notebook that is not trusted). `.to_html(path)` and `.to_png(path)` write files.
"""

from tinyengine.trace import Trace
from visualizers.player import Player

__all__ = ["Player", "compare", "show"]


def show(trace: Trace) -> Player:
    """One engine's slot timeline."""
    return Player({trace.stage or "engine": trace})


def compare(**traces: Trace) -> Player:
    """Up to six engines, named by keyword, one above the other under one playhead."""
    return Player(traces)
