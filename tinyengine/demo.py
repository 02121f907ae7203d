"""One workload through every stage: the scoreboard, the answers, and the timeline as a page."""

from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinyengine.bench.stages import Ladder, StageRun, check_stages
from tinyengine.bench.table import number
from tinyengine.engine import Output
from tinyengine.model.load import load_model
from tinyengine.stages import STAGES
from tinyengine.workload import Workload, workload

# What a stage changes shows in one of them: which requests run, the padding and the budget, the K/V memory.
VIEWS = ("slots", "batch", "memory")
COLUMNS = (
    *("\nstage", "iter-\nations", "idle\nsteps", "padded\nrows", "K/V held\n/used"),
    *("TTFT p50\nms", "TBT p99\nms", "\ntok/s", "\nexact"),
)


@dataclass
class Scoreboard:
    workload: Workload
    device: str
    model: str = "tiny"
    runs: list[StageRun] = field(default_factory=list)

    @property
    def all_exact(self) -> bool:
        return all(run.exact == len(run.outputs) for run in self.runs)

    @property
    def about(self) -> str:
        load = self.workload
        return (
            f"{load.name}, seed {load.seed}: {len(load.items)} requests, {load.max_num_seqs} batch slots, "
            f"{load.num_slots} K/V slots, on {self.device}. exact: outputs equal, token for token, to transformers "
            "decoding each request alone."
        )

    def to_json(self) -> dict:
        return {
            "workload": self.workload.name,
            "seed": self.workload.seed,
            "device": self.device,
            "stages": [run.row() for run in self.runs],
        }

    def write_html(self, path: Path):
        from visualizers import compare  # the numbers alone need no picture

        player = compare(views=VIEWS, **{run.stage: run.trace for run in self.runs})
        title = f'tinyengine demo: workload "{self.workload.name}" on the model "{self.model}"'
        table = [dict(zip(map(_heading, COLUMNS), _cells(run), strict=True)) for run in self.runs]
        player.to_html(path, title, f"{self.about}\n{_alike(self.runs)}", table)


def run(name: str, stages: list[str] | None = None, seed: int = 0, model_name: str = "tiny") -> Scoreboard:
    """Replays the workload through the stages (all of them if None), each output checked against transformers.

    Raises ValueError for an unknown workload or stage.
    """
    load = workload(name, seed)
    check_stages(stages or [])
    model = load_model(model_name)
    ladder = Ladder(load, model)
    return Scoreboard(load, str(model.device), model_name, [ladder.run(stage) for stage in stages or STAGES])


def show(board: Scoreboard, console: Console | None = None):
    """Prints the answers and the scoreboard."""
    console = console or Console()
    console.print(_answers(board.runs[-1].outputs))
    console.print(_table(board))
    console.print(board.about)


def _answers(outputs: list[Output]) -> Table:
    table = Table("request", "prompt", "output", "ended", box=None)
    for output in outputs:
        prompt = f"{len(output.prompt_token_ids)} random tokens"
        if output.prompt is not None:
            prompt = output.prompt.replace("<|user|>", "").replace("<|assistant|>", "")
        table.add_row(output.request_id, _short(prompt), _short(output.text), output.finish_reason)
    return table


def _short(text: str, most: int = 48) -> Text:
    text = " ".join(text.split())
    return Text(text if len(text) <= most else f"{text[: most - 16]} ... {text[-11:]}")


def _table(board: Scoreboard) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # narrow: it fits a terminal of 80 columns
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "\nstage" else "right", no_wrap=True)
    for run in board.runs:
        table.add_row(*_cells(run))
    return table


def _cells(run: StageRun) -> tuple[str, ...]:
    """A row of the scoreboard, as in COLUMNS."""
    m, row = run.metrics, run.row()
    return (
        run.stage,
        number(m.iterations),
        number(m.idle_slot_steps),
        number(m.padded_rows),
        f"{m.kv_reserved:.0%}/{m.kv_used:.0%}",
        number(row["ttft_p50_ms"], 1),
        number(row["tbt_p99_ms"], 1),
        number(m.tokens_per_s),
        f"{run.exact}/{len(run.outputs)}",
    )


def _alike(runs: list[StageRun]) -> str:
    """Which stages did the same on this workload: their pictures do differ, but elsewhere."""
    same = {}
    for run in runs:
        spans = [[(span.request_id, span.start, span.n_tokens) for span in step.spans] for step in run.trace.iterations]
        same.setdefault(str(spans), []).append(run.stage)
    said = [
        f"{_and(stages)} ran the same batches here: they differ in padding, in K/V memory and in time."
        for stages in same.values()
        if len(stages) > 1
    ]
    steps = [step for run in runs for step in run.trace.iterations if step.budget is not None]
    if steps and all(step.num_tokens < step.budget for step in steps):
        said.append("No iteration reached its token budget, so no prompt was cut into chunks.")
    return " ".join(said)


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _heading(column: str) -> str:
    """A column's name on one line."""
    return column.replace("-\n", "").replace("\n/", " / ").replace("\n", " ").strip()
