"""One workload through every stage: the scoreboard, the answers, and the timeline as a page."""

from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinyengine.engine import Engine, Output
from tinyengine.metrics import Metrics, measure
from tinyengine.model.load import load_model
from tinyengine.oracle import Oracle
from tinyengine.stages import STAGES
from tinyengine.trace import Trace
from tinyengine.workload import Workload, workload


@dataclass
class StageRun:
    """One stage's run of the workload; exact: how many outputs equal those of the request alone."""

    stage: str
    trace: Trace
    metrics: Metrics
    outputs: list[Output]
    exact: int

    def row(self) -> dict:
        """The numbers of the scoreboard, under the names of its JSON. Times in milliseconds."""
        m = self.metrics
        return {
            "stage": self.stage,
            "iterations": m.iterations,
            "slot_occupancy": m.slot_occupancy,
            "idle_slot_steps": m.idle_slot_steps,
            "padded_rows": m.padded_rows,
            "kv_waste": m.kv_waste,
            "ttft_p50_ms": None if m.ttft.p50 is None else 1000 * m.ttft.p50,
            "tbt_p99_ms": None if m.tbt.p99 is None else 1000 * m.tbt.p99,
            "tokens_per_s": m.tokens_per_s,
            "exact": self.exact == len(self.outputs),
        }


@dataclass
class Scoreboard:
    workload: Workload
    device: str
    runs: list[StageRun] = field(default_factory=list)

    @property
    def all_exact(self) -> bool:
        return all(run.row()["exact"] for run in self.runs)

    def to_json(self) -> dict:
        return {
            "workload": self.workload.name,
            "seed": self.workload.seed,
            "device": self.device,
            "stages": [run.row() for run in self.runs],
        }

    def write_html(self, path: Path):
        from visualizers import compare  # imported here: the numbers alone need no picture

        compare(**{run.stage: run.trace for run in self.runs}).to_html(path)


def run(name: str, stages: list[str] | None = None, seed: int = 0, model_name: str = "tiny") -> Scoreboard:
    """Replays the workload through the stages (all of them if None), each output checked against transformers.

    Raises ValueError for an unknown workload or stage.
    """
    load = workload(name, seed)
    unknown = [stage for stage in stages or [] if stage not in STAGES]
    if unknown:
        raise ValueError(f"stage is {unknown[0]!r}, but the stages are {', '.join(STAGES)}")
    model = load_model(model_name)
    oracle = Oracle(model.folder, model.device, model.dtype)
    board = Scoreboard(load, str(model.device))
    alone: list[list[int]] = []
    for stage in stages or STAGES:
        engine = _engine(model, stage, load)
        engine.generate([[1]])  # the first iteration of a process sets up thread pools, which is nobody's latency
        engine = _engine(model, stage, load)
        outputs = load.replay(engine)
        if not alone:
            alone = [oracle.generate(out.prompt_token_ids, item.params) for out, item in zip(outputs, load.items)]
        exact = sum(output.token_ids == tokens for output, tokens in zip(outputs, alone))
        board.runs.append(StageRun(stage, engine.trace, measure(engine.trace), outputs, exact))
    return board


def show(board: Scoreboard, console: Console | None = None):
    """Prints the answers and the scoreboard."""
    console = console or Console()
    load = board.workload
    console.print(_answers(board.runs[-1].outputs))
    console.print(_table(board))
    console.print(
        f"{load.name}, seed {load.seed}: {len(load.items)} requests, {load.max_num_seqs} batch slots, "
        f"{load.num_slots} K/V slots, on {board.device}. exact: outputs equal, token for token, to transformers "
        "decoding each request alone."
    )


def _engine(model, stage: str, load: Workload) -> Engine:
    return Engine(model, stage, max_num_seqs=load.max_num_seqs, num_slots=load.num_slots)


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
    columns = ("iter-\nations", "idle\nsteps", "padded\nrows", "K/V held\n/used", "TTFT p50\nms", "TBT p99\nms")
    for column in ("\nstage", *columns, "\ntok/s", "\nexact"):
        table.add_column(column, justify="left" if column == "\nstage" else "right", no_wrap=True)
    for run in board.runs:
        m, row = run.metrics, run.row()
        table.add_row(
            run.stage,
            f"{m.iterations:,}",
            f"{m.idle_slot_steps:,}",
            f"{m.padded_rows:,}",
            f"{m.kv_reserved:.0%}/{m.kv_used:.0%}",
            _milliseconds(row["ttft_p50_ms"]),
            _milliseconds(row["tbt_p99_ms"]),
            "-" if m.tokens_per_s is None else f"{m.tokens_per_s:,.0f}",
            f"{run.exact}/{len(run.outputs)}",
        )
    return table


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
