"""The ledger: every check on the invariant engine and on the plain one, and what invariance costs."""

import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from tinyengine.engine import Engine
from tinyengine.invariant.sabotage import FAULTS
from tinyengine.qwen3 import Qwen3
from tinyengine.request import SamplingParams
from tinyengine.verify.checks import CHECKS
from tinyengine.verify.watch import Count, Subject

PLAIN, INVARIANT = "chunked", "invariant"


@dataclass
class Ledger:
    """What was found: {check: {stage: Count}}, and the cost, {requests at a time: times the plain engine's seconds}."""

    envelope: str
    rows: dict[str, dict[str, Count]] = field(default_factory=dict)
    cost: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        return all(row[INVARIANT].holds for row in self.rows.values())

    def to_json(self) -> dict:
        return {
            "envelope": self.envelope,
            "holds": self.holds,
            "checks": {
                check: {stage: vars(count) for stage, count in row.items()} for check, row in self.rows.items()
            },
            "cost": self.cost,
            "seconds": self.seconds,
        }


def verify(model: Qwen3, checks: Iterable[str] = CHECKS, cost: bool = True, fast: bool = True) -> Ledger:
    """Runs the checks on the invariant stage and on the plain one. Raises RuntimeError where the self-test refuses."""
    ledger = Ledger(describe(model))
    started = time.perf_counter()
    subjects = [Subject(model, stage, fast=fast) for stage in (INVARIANT, PLAIN)]
    for check in checks:
        ledger.rows[check] = {subject.stage: CHECKS[check](subject) for subject in subjects}
    if cost:
        ledger.cost = {n: measure_cost(model, n, fast=fast) for n in (1, 8)}
    ledger.seconds = time.perf_counter() - started
    return ledger


def describe(model: Qwen3) -> str:
    """The envelope, for a reader."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "CPU"
    dtype = str(model.dtype).removeprefix("torch.")
    return f"{dtype}, {device}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def measure_cost(model: Qwen3, requests: int, rounds: int = 3, fast: bool = True) -> float:
    """Seconds of the invariant stage over those of the plain one: decoding, interleaved, the median of the ratios. A
    first look; `tinyengine bench` measures it properly."""
    ratios = []
    for _ in range(rounds):
        seconds = {stage: _decode_seconds(model, stage, requests, fast) for stage in (PLAIN, INVARIANT)}
        ratios.append(seconds[INVARIANT] / seconds[PLAIN])
    return statistics.median(ratios)


def _decode_seconds(model: Qwen3, stage: str, requests: int, fast: bool) -> float:
    engine = Engine(model, stage, max_num_seqs=requests, max_num_batched_tokens=4096, num_slots=4096, fast=fast)
    for number in range(requests):
        engine.add_request([number + 1] * 100, SamplingParams(max_tokens=25, ignore_eos=True))
    engine.step()
    started = time.perf_counter()
    while engine.has_unfinished():
        engine.step()
    return time.perf_counter() - started


def show(ledger: Ledger, console: Console | None = None):
    """Prints it: a check per line, the plain engine's column beside the invariant one's."""
    console = console or Console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("\n", "\ninvariance", "\ncases", "floats\ncompared", "differ:\ninvariant", "differ:\nplain"):
        table.add_column(column, justify="left" if "invariance" in column else "right", no_wrap=True)
    for number, (check, row) in enumerate(ledger.rows.items(), 1):
        mine, plain = row[INVARIANT], row[PLAIN]
        table.add_row(
            str(number), check, f"{mine.cases:,}", f"{mine.compared:,}", f"{mine.differing:,}", f"{plain.differing:,}"
        )
    console.print(ledger.envelope)
    console.print(table)
    if ledger.cost:
        alone, batch = ledger.cost[1], ledger.cost[8]
        console.print(f"cost, x of plain: {alone:.2f} alone, {batch:.2f} at 8 requests (decoding; a first look)")
    broken = [check for check, row in ledger.rows.items() if not row[INVARIANT].holds]
    if broken:
        console.print(f"NOT invariant: {', '.join(broken)}.")
    else:
        console.print(f"Every bit is the same in all {len(ledger.rows)} checks ({ledger.seconds:.0f} s).")
    console.print("Not covered: another GPU model, thread count or library version, and tensor parallelism.")


def fault_table(model: Qwen3, faults: Iterable[str] = FAULTS, fast: bool = True) -> dict[str, dict[str, int]]:
    """{fault: {check: floats that differ}}, each fault planted in the invariant engine."""
    return {name: dict(_caught(Subject(model, INVARIANT, FAULTS[name], fast))) for name in faults}


def fault_markdown(table: dict[str, dict[str, int]], envelope: str) -> str:
    """The table faults x checks: a dot where the fault moves no bit, else how many floats of the check it changes."""
    lines = [f"Measured: {envelope}.", ""]
    lines.append(f"| planted fault | {' | '.join(str(n) for n in range(1, len(CHECKS) + 1))} |")
    lines.append("|---|" + "---:|" * len(CHECKS))
    for name, row in table.items():
        cells = (f"{differing:,}" if differing else "·" for differing in row.values())
        lines.append(f"| `{name}`: {FAULTS[name].title} | {' | '.join(cells)} |")
    names = ", ".join(f"{number} {check}" for number, check in enumerate(CHECKS, 1))
    return "\n".join([*lines, "", f"Checks: {names}."])


def _caught(subject: Subject) -> Iterator[tuple[str, int]]:
    for check, function in CHECKS.items():
        yield check, function(subject).differing
