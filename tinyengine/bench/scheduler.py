"""What the scheduler costs: an iteration's bookkeeping while many requests decode, without a model."""

from statistics import median
from time import perf_counter

from tinyengine.bench.table import Table, number
from tinyengine.memory import Blocks
from tinyengine.params import SamplingParams
from tinyengine.request import Request
from tinyengine.scheduler import Chunked, Paged, Scheduler

SCHEDULERS = (Paged, Chunked)


def run(device: str = "cpu", running: int = 256, steps: int = 1000) -> dict:
    """Seconds of schedule() and of commit(), as medians of `steps` steps in which `running` requests get a token each;
    the schedulers take turns. No model runs, so `device` makes no difference."""
    schedulers = {kind.__name__: decoding(kind, running, steps) for kind in SCHEDULERS}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in schedulers}
    tokens = [1] * running
    for _ in range(steps):
        for name, scheduler in schedulers.items():
            started = perf_counter()
            plan = scheduler.schedule()
            scheduled = perf_counter()
            scheduler.commit(plan, tokens)
            times[name].append((scheduled - started, perf_counter() - scheduled))
    return {"running": running, "steps": steps, "schedulers": {name: _medians(each) for name, each in times.items()}}


def decoding(kind: type[Scheduler], running: int, steps: int) -> Scheduler:
    """A scheduler all of whose requests are past their prompts, and will decode for `steps` steps more."""
    prompts = [16 + index % 16 for index in range(running)]  # they need their next block at different moments
    blocks = sum(-(-(prompt + steps + 1) // 16) for prompt in prompts)
    budget = {"max_num_batched_tokens": sum(prompts)} if issubclass(kind, Chunked) else {}
    scheduler = kind(Blocks(blocks, 16), max_num_seqs=running, **budget)
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=steps + 2, ignore_eos=True)
        scheduler.add(Request(f"r{index}", [1] * prompt, params))
    scheduler.commit(scheduler.schedule(), [1] * running)
    return scheduler


def _medians(times: list[tuple[float, float]]) -> dict:
    schedule, commit = zip(*times, strict=True)
    return {"schedule": median(schedule), "commit": median(commit), "both": median(map(sum, times))}


def table(result: dict) -> Table:
    rows = [
        (name, *(number(1e6 * row[column]) for column in ("schedule", "commit", "both")))
        for name, row in result["schedulers"].items()
    ]
    note = (
        f"{result['running']} requests decode; medians of {result['steps']:,} steps. schedule() chooses the batch and "
        "gives out blocks; commit() checks the plan, appends a token to every request and looks whether it has ended."
    )
    return Table(("scheduler", "schedule(), microseconds", "commit(), microseconds", "both"), rows, note)
