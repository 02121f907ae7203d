"""The Jupyter form of a Player: anywidget around the ES module in static/."""

import anywidget
import traitlets

from visualizers.player import SCRIPT, STYLE


class PlayerWidget(anywidget.AnyWidget):
    """data: the text of `frames.to_json`, the same that stands in the one-file page. running: an engine is at work, and
    can be paused. paused: it is; written from both sides."""

    _esm = SCRIPT
    _css = STYLE
    data = traitlets.Unicode().tag(sync=True)
    running = traitlets.Bool(False).tag(sync=True)
    paused = traitlets.Bool(False).tag(sync=True)
