"""The ladder: the same requests through every stage, each output checked against transformers.

Counts are the same in every run; times are medians of runs that take turns.
"""

from dataclasses import dataclass
from statistics import median

from tinyengine.bench.table import Table, number, percent
from tinyengine.engine import Engine, Output
from tinyengine.metrics import Metrics, measure
from tinyengine.model.load import load_model
from tinyengine.oracle import Oracle
from tinyengine.stages import STAGES
from tinyengine.trace import Trace
from tinyengine.workload import Workload, workload

TIMES = ("ttft_p50_ms", "tbt_p99_ms", "tokens_per_s")  # of a row; all else in it is the same in every run


@dataclass
class StageRun:
    """One stage's run of a workload; exact: how many outputs equal those of the request alone."""

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


class Ladder:
    """A workload, a model, and what transformers answers to each request alone."""

    def __init__(self, load: Workload, model):
        self.load = load
        self.model = model
        self._oracle = Oracle(model.folder, model.device, model.dtype)
        self._alone: list[list[int]] = []

    def run(self, stage: str) -> StageRun:
        self._engine(stage).generate([[1]])  # a process's first iteration sets up thread pools
        engine = self._engine(stage)
        outputs = self.load.replay(engine)
        exact = sum(output.token_ids == tokens for output, tokens in zip(outputs, self._answers(outputs), strict=True))
        return StageRun(stage, engine.trace, measure(engine.trace), outputs, exact)

    def _engine(self, stage: str) -> Engine:
        return Engine(self.model, stage, max_num_seqs=self.load.max_num_seqs, num_slots=self.load.num_slots)

    def _answers(self, outputs: list[Output]) -> list[list[int]]:
        if not self._alone:
            pairs = zip(outputs, self.load.items, strict=True)
            self._alone = [self._oracle.generate(output.prompt_token_ids, item.params) for output, item in pairs]
        return self._alone


def check_stages(stages: list[str]):
    """Raises ValueError for a name that is not in STAGES."""
    for stage in stages:
        if stage not in STAGES:
            raise ValueError(f"stage is {stage!r}, but the stages are {', '.join(STAGES)}")


def run(
    device: str = "cpu",
    workloads: tuple[str, ...] = ("short_long_mix", "lookups"),
    stages: tuple[str, ...] = tuple(STAGES),
    repeats: int = 3,
) -> dict:
    """{"repeats", "workloads": {name: [one row of the scoreboard for each stage, and kv_waste_past_last_block]}}"""
    check_stages(stages)
    model = load_model("tiny", device=device)
    return {"repeats": repeats, "workloads": {name: _climb(name, model, stages, repeats) for name in workloads}}


def _climb(name: str, model, stages: tuple[str, ...], repeats: int) -> list[dict]:
    ladder = Ladder(workload(name), model)
    runs: dict[str, list[StageRun]] = {stage: [] for stage in stages}
    for _ in range(repeats):
        for stage in stages:
            runs[stage].append(ladder.run(stage))
    return [_row(each) for each in runs.values()]


def _row(runs: list[StageRun]) -> dict:
    rows = [run.row() for run in runs]
    return {
        **rows[0],
        **{name: median(row[name] for row in rows) for name in TIMES},
        "kv_waste_past_last_block": runs[0].metrics.kv_waste_past_last_block,
        "exact": all(row["exact"] for row in rows),
    }


def table(result: dict) -> Table:
    columns = ("iterations", "padded rows", "K/V waste", "past last block", "TTFT p50 ms", "TBT p99 ms", "tok/s")
    rows = []
    for name, stages in result["workloads"].items():
        rows.append((name, *[""] * (len(columns) + 1)))
        for row in stages:
            counts = (number(row["iterations"]), number(row["padded_rows"]))
            waste = (percent(row["kv_waste"]), percent(row["kv_waste_past_last_block"]))
            times = (number(row["ttft_p50_ms"], 1), number(row["tbt_p99_ms"], 1), number(row["tokens_per_s"]))
            rows.append((f"- {row['stage']}", *counts, *waste, *times, "yes" if row["exact"] else "NO"))
    note = (
        "K/V waste: the share of the slots that requests hold with nothing in it; past last block: the same without "
        "the rest of each request's last block. TTFT: from arrival to the first token; TBT: between two tokens of a "
        "request. exact: every output equals, token for token, that of transformers for the request alone. Times are "
        f"medians of {result['repeats']} runs that took turns."
    )
    return Table(("stage", *columns, "exact"), rows, note)
