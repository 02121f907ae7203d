"""The Jupyter form of a Player: anywidget around static/player.js."""

import anywidget
import traitlets

from visualizers.player import STATIC


class PlayerWidget(anywidget.AnyWidget):
    """data: the text of `frames.to_json`, the same that stands in the one-file page."""

    _esm = STATIC / "player.js"
    _css = STATIC / "player.css"
    data = traitlets.Unicode().tag(sync=True)
