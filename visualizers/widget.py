"""The Jupyter form of a Player: anywidget around the ES module in static/."""

import anywidget
import traitlets

from visualizers.player import SCRIPT, STYLE


class PlayerWidget(anywidget.AnyWidget):
    """data: the text of `frames.to_json`, the same that stands in the one-file page."""

    _esm = SCRIPT
    _css = STYLE
    data = traitlets.Unicode().tag(sync=True)
