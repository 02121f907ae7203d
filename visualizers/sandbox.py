"""The playground: controls for a workload and an engine, and the run that they give, drawn at once."""

import asyncio
import base64
from html import escape
from pathlib import Path

import anywidget
import traitlets
from ipywidgets import HTML, Box, Button, Dropdown, HBox, IntSlider, Label, Layout, ToggleButton, VBox

from visualizers import presets
from visualizers.captions import counted
from visualizers.dummy import STAGES
from visualizers.figures import composition
from visualizers.frames import to_json
from visualizers.player import STATIC, Player
from visualizers.widget import PlayerWidget

WAIT = 0.08  # seconds without a change, before it is run
LINE = Layout(width="330px")


class CopyCode(anywidget.AnyWidget):
    """A button that copies `code`, and shows it."""

    _esm = Path(STATIC / "copy.js").read_text(encoding="utf-8")
    code = traitlets.Unicode().tag(sync=True)


class Playground:
    """What `playground` returns: as the last line of a cell a widget and, in the same output, a PNG of the preset."""

    def __init__(self, preset: str | int = "02"):
        self.preset = presets.preset(preset)
        self.settings = presets.settings_of(self.preset)
        self.stages, self.seed, self._timer = list(self.preset.stages), 0, None
        self.traces = presets.traces(self.stages, self.settings, self.seed)
        self.columns = self.preset.columns
        self.player = Player(self.traces, self.preset.views)
        self._uncut()

    @property
    def widget(self) -> VBox:
        """Made when it is first displayed."""
        if "_widget" not in self.__dict__:
            self._drawn = PlayerWidget(data=self._data())
            self._error, self._scores, self._copy = HTML(), HTML(), CopyCode()
            self._result = VBox([self._drawn, self._scores, self._copy])
            self._widget = VBox([*self._controls(), self._error, self._result])
            self._widget.add_class("te-playground")
            self.run()
        return self._widget

    def run(self):
        """Serves the workload of the controls, and shows what came of it, or in a sentence why nothing did."""
        self._timer, said = None, ""
        try:
            if not self.stages:
                raise ValueError("no engine is switched on: choose one")
            self.traces = presets.traces(self.stages, self.settings, self.seed)
        except ValueError as error:
            said = str(error)
        (self._result.add_class if said else self._result.remove_class)("te-stale")
        self._error.value = f'<div class="te-error" role="alert">{escape(said)}</div>' if said else ""
        if said:
            return
        self.player.load(self.traces)
        self._uncut()
        self._drawn.data = self._data()
        self._scores.value = self._scoreboard()
        self._copy.code = self.code()

    def code(self) -> str:
        """The lines that make the same run."""
        return presets.code(self.stages, self.settings, self.seed, self.preset.views)

    def _data(self) -> str:
        """As the player is sent it: the whole run is there to be read."""
        longest = max(len(trace.iterations) for trace in self.traces.values())
        return to_json({**self.player.data, "iteration": longest - 1, "clock": self.preset.clock})

    def _uncut(self):
        """The axes of the batch end at its tallest bar: a stall is the subject, and not an accident."""
        engines = self.player.data["engines"]
        rows = max((sum(row) for engine in engines for row in composition(engine)), default=1)
        seconds = max((value for engine in engines for value in engine["duration"]), default=1)
        for engine in engines:
            engine["tops"] = [rows, seconds]

    def _change(self, name: str, value: int):
        self.settings[name] = value
        self._soon()

    def _switch(self, stage: str, is_on: bool):
        chosen = {*self.stages, stage} if is_on else {*self.stages} - {stage}
        self.stages = [stage for stage in STAGES if stage in chosen]
        self._soon()

    def _draw_again(self, button):
        self.seed += 1
        self._soon()

    def _soon(self):
        """Once, when no more changes come: a slider that is dragged sends many."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._timer = asyncio.get_running_loop().call_later(WAIT, self.run)
        except RuntimeError:  # no kernel around us
            self.run()

    def _controls(self) -> list:
        known, groups = self.preset.controls, (presets.WORKLOAD, presets.ENGINE)
        again = Button(description="other requests", tooltip="Draw the lengths anew", layout=Layout(width="130px"))
        again.on_click(self._draw_again)
        shown = [self._group(group, [name for name in group if name in known]) for group in groups]
        hidden = [self._group(group, [name for name in group if name not in known]) for group in groups]
        rare = [stage for stage in STAGES if stage not in self.preset.stages]
        self._extra = VBox([self._row(hidden), HBox([Label("more engines"), *map(self._toggle, rare)])])
        self._extra.layout.display = "none"
        more = ToggleButton(description="more", tooltip="All other controls", layout=Layout(width="80px"))
        more.observe(lambda change: self._show_more(change["new"]), "value")
        engines = [Label("engines"), *map(self._toggle, self.preset.stages)] if len(self.preset.stages) > 1 else []
        about = HTML(f"<b>{escape(self.preset.about)}</b>")
        return [
            about,
            self._row(shown),
            self._extra,
            HBox([*engines, again, more], layout=Layout(flex_flow="row wrap")),
        ]

    def _show_more(self, is_on: bool):
        self._extra.layout.display = "" if is_on else "none"
        self.columns = tuple(presets.COLUMNS) if is_on else self.preset.columns
        self.run()

    def _row(self, groups: list) -> Box:
        return Box(groups, layout=Layout(display="flex", flex_flow="row wrap", align_items="flex-start"))

    def _group(self, group: dict, names: list[str]) -> VBox:
        return VBox([self._control(name, group[name]) for name in names])

    def _control(self, name: str, control: presets.Control):
        style, value = {"description_width": "120px"}, self.settings[name]
        if control.choices:
            made = Dropdown(options=control.choices, value=value, description=control.label, style=style, layout=LINE)
        else:
            limits = {"min": control.low, "max": control.high, "step": control.step}
            made = IntSlider(value, **limits, description=control.label, style=style, layout=LINE)
        made.tooltip = control.what
        made.observe(lambda change: self._change(name, change["new"]), "value")
        return made

    def _toggle(self, stage: str) -> ToggleButton:
        made = ToggleButton(stage in self.stages, description=stage, layout=Layout(width="auto"))
        made.observe(lambda change: self._switch(stage, change["new"]), "value")
        return made

    def _scoreboard(self) -> str:
        rows = {name: presets.scores(trace) for name, trace in self.traces.items()}
        columns = self.columns
        best = {name: min(row[name] for row in rows.values()) for name in columns}
        differ = {name: len({row[name] for row in rows.values()}) > 1 for name in columns}
        head = "".join(f"<th>{escape(presets.COLUMNS[name])}</th>" for name in columns)
        body = ""
        for engine, row in rows.items():
            cells = ((_number(name, row[name]), differ[name] and row[name] == best[name]) for name in columns)
            told = "".join(f"<td>{f'<b>{text}</b>' if is_best else text}</td>" for text, is_best in cells)
            body += f"<tr><th>{escape(engine)}</th>{told}</tr>"
        ridge = self.settings["ridge"]
        unit = f"in seconds; {ridge} rows are computed in one" if ridge else "in iterations"
        times = f"<caption>TTFT and TBT {unit}</caption>" if {"ttft", "tbt"} & {*columns} else ""
        return f'<table class="te-scores">{times}<tr><th></th>{head}</tr>{body}</table>'

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {
            **self.widget._repr_mimebundle_(),
            "image/png": base64.b64encode(self.player.to_png()).decode("ascii"),
            "text/plain": repr(self),
        }

    def __repr__(self) -> str:
        counts = (f"{name}: {counted(len(trace.iterations), 'iteration')}" for name, trace in self.traces.items())
        return f"Playground({', '.join(counts)})"


def _number(name: str, value: float) -> str:
    return f"{100 * value:.0f} %" if name == "waste" else f"{value:,.1f}".removesuffix(".0")
