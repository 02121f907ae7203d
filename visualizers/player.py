"""What `show` and `compare` return: one picture in three forms (widget, one HTML file, PNG), all from one dict."""

import base64
from functools import cached_property
from html import escape
from pathlib import Path

from tinyengine.trace import Trace
from visualizers import frames

MOST_ENGINES = 6  # one for each stage of the course
STATIC = Path(__file__).parent / "static"
STYLE = (STATIC / "player.css").read_text(encoding="utf-8")
# Four files to be read one at a time, joined into the one ES module that anywidget and a page without a server need.
SCRIPT = "\n".join((STATIC / f"{part}.js").read_text(encoding="utf-8") for part in ("data", "style", "views", "player"))

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
<main id="player"></main>
<script type="application/json" id="data">{data}</script>
<script type="module">
{script}
mount(document.getElementById("player"), document.getElementById("data").textContent);
</script>
</body>
</html>
"""


class Player:
    """A picture of one to six traces. Raises ValueError for any other number, TypeError for what is no Trace."""

    def __init__(self, traces: dict[str, Trace]):
        if not 1 <= len(traces) <= MOST_ENGINES:
            raise ValueError(f"a picture shows 1 to {MOST_ENGINES} traces, but {len(traces)} were given")
        for name, trace in traces.items():
            if not isinstance(trace, Trace):
                raise TypeError(f"{name} is a {type(trace).__name__}, but a Trace is needed (engine.trace)")
        self.data = frames.build(traces)

    def to_html(self, path: str | Path) -> Path:
        """Write the interactive picture as one file that needs no kernel and no network."""
        page = PAGE.format(
            title=escape(f"tinyengine: {self._names}"),
            css=STYLE,
            data=frames.to_json(self.data),
            script=SCRIPT,
        )
        path = Path(path)
        path.write_text(page, encoding="utf-8")
        return path

    def to_png(self, path: str | Path | None = None) -> bytes:
        """The picture of the whole run as PNG bytes; written to `path` too, if there is one."""
        from visualizers.picture import draw  # matplotlib takes half a second to import

        png = draw(self.data)
        if path is not None:
            Path(path).write_bytes(png)
        return png

    @cached_property
    def widget(self):
        """The anywidget; made when it is first displayed, so that files can be written without Jupyter."""
        from visualizers.widget import PlayerWidget

        return PlayerWidget(data=frames.to_json(self.data))

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        """Widget and PNG side by side: a front end shows the best that it can. The text has no address in it
        (anywidget's has), so that a stored output stays the same from run to run."""
        return {
            **self.widget._repr_mimebundle_()[0],
            "image/png": base64.b64encode(self.to_png()).decode("ascii"),
            "text/plain": repr(self),
        }

    def __repr__(self) -> str:
        counts = (f"{engine['name']}: {len(engine['time'])} iterations" for engine in self.data["engines"])
        return f"Player({', '.join(counts)})"

    @property
    def _names(self) -> str:
        return ", ".join(engine["name"] for engine in self.data["engines"])
