"""A small picture of a lesson's own: a matplotlib figure that reads on a white page and on a dark one."""

import io
from base64 import b64encode

from matplotlib.figure import Figure

from tinyengine.course.display import publish
from visualizers.twins.common import DPI, on_any_page


def blank(width: float, height: float) -> Figure:
    """width, height: inches."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.06)
    return figure


def put(figure: Figure, words: str) -> None:
    """Shows a figure; in a terminal its words."""
    on_any_page(figure)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    publish(words, **{"image/png": b64encode(out.getvalue()).decode()})
