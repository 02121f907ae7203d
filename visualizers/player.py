"""What `show` and `compare` return: one picture in three forms (widget, one HTML file, PNG), all from one dict."""

import base64
import gzip
from collections.abc import Mapping, Sequence
from html import escape
from math import inf
from numbers import Integral, Real
from pathlib import Path

from tinyengine.trace import Trace
from visualizers import frames
from visualizers.captions import counted

VIEWS = ("slots", "batch", "requests", "memory", "text", "flat")
MOST_ENGINES = 6  # one for each stage of the course
STATIC = Path(__file__).parent / "static"
STYLE = (STATIC / "player.css").read_text(encoding="utf-8")
# Files to be read one at a time, joined into the one ES module that anywidget and a page without a server need.
PARTS = "data memory style strip why slots batch lifecycles arena stream flat controls page player".split()
SCRIPT = "\n".join((STATIC / f"{part}.js").read_text(encoding="utf-8") for part in PARTS)

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{css}
</style>
</head>
<body class="te-page">
{head}<main id="player"></main>
<script type="text/plain" id="data">{data}</script>
<script type="module">
{script}
mount(document.getElementById("player"), await unpacked(document.getElementById("data").textContent));
</script>
</body>
</html>
"""


def writable(path: str | Path) -> Path:
    """The path of a file that can be made. Raises ValueError where it is a folder, or in a folder that is not there."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path is {str(path)!r}, but that is a folder: give the path of a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"path is {str(path)!r}, but there is no folder {str(path.parent)!r}: make it first")
    return path


def _head(title: str, about: str, table: Sequence[Mapping[str, str]]) -> str:
    parts = [f"<h1>{escape(title)}</h1>"] if title else []
    parts += [f"<p>{escape(line)}</p>" for line in about.splitlines()]
    if table:
        columns = "".join(f"<th>{escape(name)}</th>" for name in table[0])
        rows = ("".join(f"<td>{escape(text)}</td>" for text in row.values()) for row in table)
        parts.append(f"<table><tr>{columns}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>")
    return f"<header>{''.join(parts)}</header>\n" if parts else ""


class Player:
    """A picture of one to six traces.

    views: what is shown at first, of VIEWS; each has a button. iteration: where the playhead is at first, counted from
    1 as in the picture (None: at 1, and the PNG has none). expected: what each request's tokens should be, to mark the
    first wrong one.
    Raises ValueError for another number of traces, an unknown view, an iteration that is not there or an expected
    request that no trace has, TypeError for what is no Trace.
    """

    def __init__(
        self,
        traces: dict[str, Trace],
        views: Sequence[str] = ("slots",),
        iteration: int | None = None,
        expected: frames.Expected | None = None,
    ):
        if not 1 <= len(traces) <= MOST_ENGINES:
            raise ValueError(f"a picture shows 1 to {MOST_ENGINES} traces, but {len(traces)} were given")
        for name, trace in traces.items():
            if not isinstance(trace, Trace):
                raise TypeError(f"{name} is of type {type(trace).__name__}, but a Trace is needed (engine.trace)")
        views = [views] if isinstance(views, str) else list(views)
        unknown = [view for view in views if view not in VIEWS]
        if unknown or not views:
            raise ValueError(f"views is {views!r}, but the views are {', '.join(VIEWS)}")
        longest = max(len(trace.iterations) for trace in traces.values())
        frames.check(traces, expected)
        if iteration is not None and not isinstance(iteration, Integral):
            raise ValueError(f"iteration is {iteration!r}, but the number of an iteration, an int, is needed")
        if iteration is not None and not 1 <= iteration <= longest:
            raise ValueError(f"iteration is {iteration!r}, but the traces have iterations 1 to {longest}")
        self._start = {"views": views, "iteration": iteration if iteration is None else int(iteration) - 1}
        self.load(traces, expected)

    def load(self, traces: dict[str, Trace], expected: frames.Expected | None = None):
        """Draws these from now on."""
        self.data = {**frames.build(traces, expected), **self._start}

    def text(self) -> str:
        """The data as the widget and the page get it."""
        return frames.to_json(self.data)

    def to_html(
        self, path: str | Path, title: str = "", about: str = "", table: Sequence[Mapping[str, str]] = ()
    ) -> Path:
        """Write the interactive picture as one file that needs no kernel and no network.

        title, about, table: what stands above it: a heading, lines of text, and rows of {column: text}.
        """
        page = PAGE.format(
            title=escape(title or f"tinyengine: {self._names}"),
            head=_head(title, about, table),
            css=STYLE,
            data=base64.b64encode(gzip.compress(self.text().encode("ascii"), mtime=0)).decode("ascii"),
            script=SCRIPT,
        )
        path = writable(path)
        path.write_text(page, encoding="utf-8")
        return path

    def to_png(self, path: str | Path | None = None) -> bytes:
        """The picture of the whole run as PNG bytes; written to `path` too, if there is one."""
        from visualizers.picture import draw  # matplotlib takes half a second to import

        png = draw(self.data)
        if path is not None:
            writable(path).write_bytes(png)
        return png

    def to_gif(self, path: str | Path, fps: float = 6, most_frames: int = 120) -> Path:
        """Write the picture as a film: a frame per iteration, or `most_frames` of them, spread evenly."""
        from visualizers.film import write_gif

        if not (isinstance(fps, Real) and isinstance(most_frames, Integral) and 0 < fps < inf and most_frames > 0):
            raise ValueError(f"fps is {fps!r} and most_frames {most_frames!r}, but both must be numbers above 0")
        return write_gif(writable(path), self.data, fps, most_frames)

    @property
    def widget(self):
        """The anywidget; made when it is first displayed, so that files can be written without Jupyter."""
        from visualizers.widget import PlayerWidget

        if "_widget" not in self.__dict__:
            self._widget = PlayerWidget(data=self.text())
        return self._widget

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        """Widget and PNG side by side: a front end shows the best that it can. The text has no address in it
        (anywidget's has), so that a stored output stays the same from run to run."""
        return {
            **self.widget._repr_mimebundle_()[0],
            "image/png": base64.b64encode(self.to_png()).decode("ascii"),
            "text/plain": repr(self),
        }

    def __repr__(self) -> str:
        counts = (f"{engine['name']}: {counted(len(engine['time']), 'iteration')}" for engine in self.data["engines"])
        return f"Player({', '.join(counts)})"

    @property
    def _names(self) -> str:
        return ", ".join(engine["name"] for engine in self.data["engines"])
