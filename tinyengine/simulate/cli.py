"""`tinyengine simulate`: one run, a curve over loads, or the highest load under an SLO; and the paper's table."""

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tinyengine.request import SLO_CLASSES, Slo
from tinyengine.simulate.catalogue import GPUS, MODELS
from tinyengine.simulate.deployment import RESERVING, SCHEDULERS, Deployment
from tinyengine.simulate.report import Report
from tinyengine.simulate.search import capacity, curve
from tinyengine.workload import LENGTHS, WORKLOADS, Job, read_csv, stream, workload


def register(commands) -> None:
    """Adds `simulate` to the argparse of tinyengine/cli.py."""
    parser = commands.add_parser("simulate", help="the same schedulers without the model, at paper scale")
    add_arguments(parser)
    parser.set_defaults(func=run, outputs=("json", "plot", "trace"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paper", nargs="?", choices=["paper"], help="print published numbers beside ours, and end")
    parser.add_argument("--full", action="store_true", help="with paper: run its capacity searches anew (many minutes)")
    where = parser.add_argument_group("what is simulated")
    where.add_argument("--gpu", default="a100-pcie", help=f"one of {', '.join(GPUS)} (default: a100-pcie)")
    where.add_argument("--model", default="mistral-7b", help=f"one of {', '.join(MODELS)} (default: mistral-7b)")
    where.add_argument("--scheduler", default="chunked", help=f"one of {', '.join(SCHEDULERS)} (default: chunked)")
    where.add_argument("--tp", type=int, default=1, help="GPUs that share each layer")
    where.add_argument("--pp", type=int, default=1, help="pipeline stages")
    where.add_argument("--max-num-seqs", type=int, default=128)
    where.add_argument("--token-budget", type=int, default=512)
    where.add_argument("--max-model-len", type=int, help="longest request (default: the workload's, 8192 of a file)")
    where.add_argument("--num-slots", type=int, help="K/V slots (default: what the weights leave)")
    where.add_argument("--host", type=float, default=0.002, help="seconds an iteration takes beside the kernels")
    where.add_argument("--fit", type=Path, metavar="TRACE", help="times as in a trace recorded on your machine")
    load = parser.add_argument_group("what arrives")
    load.add_argument(
        "--workload",
        default="sharegpt",
        help=f"{', '.join(LENGTHS)} (Poisson arrivals), equal_size, short_long_mix, or a CSV file (default: sharegpt)",
    )
    load.add_argument("--rate", type=float, help="requests a second, of Poisson arrivals (default: 1)")
    load.add_argument("--requests", type=int, help="how many (default: 2048, or all of a file)")
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--slo", help=f"{', '.join(SLO_CLASSES)}, or the P99 TBT in seconds")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--rates", metavar="A,B,...", help="latency and throughput at each of these rates")
    what.add_argument("--capacity", action="store_true", help="the highest rate under --slo")
    parser.add_argument("--trace", type=Path, metavar="PATH", help="of one run: write every iteration there")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers there")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="with --rates or --capacity: a PNG of the curve")


def run(args) -> int:
    if args.paper:
        return _paper(args)
    check(args)
    slo = read_slo(args.slo)
    deployment = read_deployment(args)
    if args.capacity:
        result = _capacity(args, deployment, slo)
    elif args.rates is not None:
        result = _curve(args, deployment, slo)
    else:
        result = _once(args, deployment, slo)
    if args.json:
        settings = {**_settings(args), "max_model_len": deployment.longest}
        args.json.write_text(json.dumps({"settings": settings, **result}, indent=2) + "\n", encoding="utf-8")
    return 0


def check(args):
    """Raises ValueError for a number below 1, and for options that do not go together."""
    for name in ("requests", "max_model_len", "token_budget", "max_num_seqs", "num_slots", "tp", "pp"):
        number = getattr(args, name)
        if number is not None and number < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {number}, but must be at least 1")
    many = args.capacity or args.rates is not None
    if args.full:
        raise ValueError("--full belongs to the paper table: run `tinyengine simulate paper --full`")
    if args.trace and many:
        raise ValueError("--trace writes one run, but --rates and --capacity make many: leave one of them out")
    if args.plot and not many:
        raise ValueError("--plot draws a curve, but one load makes none: give --rates or --capacity")
    if args.rate is None:
        return
    if many:
        raise ValueError("--rate is of one run, but --rates and --capacity choose their own: leave one of them out")
    if args.workload in WORKLOADS or Path(args.workload).suffix == ".csv":
        raise ValueError(
            f"--rate makes Poisson arrivals, but {args.workload} says itself when its requests come: leave it out, or "
            f"use {' or '.join(LENGTHS)}"
        )


def read_slo(text: str | None) -> Slo:
    """Raises ValueError for what is neither a class nor a number."""
    if text is None:
        return Slo()
    if text in SLO_CLASSES:
        return SLO_CLASSES[text]
    try:
        return Slo(tbt=float(text))
    except ValueError:
        raise ValueError(f"slo is {text!r}, but must be {', '.join(SLO_CLASSES)}, or seconds above 0") from None


def read_deployment(args) -> Deployment:
    slots, cost = args.num_slots, None
    if args.fit:
        from tinyengine.simulate.measured import fit_trace
        from tinyengine.trace import Trace

        try:
            trace = Trace.load(args.fit)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ValueError(f"{args.fit} is no recorded trace: give --fit a file that Trace.save wrote") from None
        cost, error = fit_trace(trace)
        slots = slots or trace.num_slots
        print(f"fitted to {args.fit}: median error {error:.1%} on batches that were held out")
    return Deployment(
        args.gpu,
        args.model,
        args.scheduler,
        tp=args.tp,
        pp=args.pp,
        max_num_seqs=args.max_num_seqs,
        token_budget=args.token_budget,
        longest=args.max_model_len or (LENGTHS[args.workload].limit if args.workload in LENGTHS else 8192),
        slots=slots,
        host=args.host,
        cost=cost,
    )


def read_jobs(args, rate: float, slo: Slo, longest: int | None = None) -> Iterator[Job]:
    """Raises ValueError for an unknown workload, which lists the known ones, and, from the iterator, for a job of more
    than `longest` tokens."""
    jobs = _all_jobs(args, rate, slo)
    return jobs if longest is None else _not_longer(jobs, longest)


def _not_longer(jobs: Iterator[Job], longest: int) -> Iterator[Job]:
    for number, job in enumerate(jobs):
        if job.prompt + job.output > longest:
            raise ValueError(
                f"request 'r{number}' has a prompt of {job.prompt} tokens and {job.output} to come, but "
                f"--max-model-len is {longest}: raise it"
            )
        yield job


def _all_jobs(args, rate: float, slo: Slo) -> Iterator[Job]:
    name = args.workload
    if name in LENGTHS:
        return stream(name, rate, 2048 if args.requests is None else args.requests, args.seed, slo)
    if name in WORKLOADS:
        jobs = iter(workload(name, args.seed).jobs())
    elif Path(name).suffix == ".csv":
        jobs = read_csv(name)
    else:
        raise ValueError(
            f"workload is {name!r}, but the known ones are {', '.join(LENGTHS)}, equal_size, short_long_mix, and any "
            ".csv file"
        )
    return (job._replace(slo=slo) for job in islice(jobs, args.requests))


def _once(args, deployment: Deployment, slo: Slo) -> dict:
    from tqdm import tqdm

    trace = deployment.new_trace() if args.trace else None
    jobs = read_jobs(args, 1.0 if args.rate is None else args.rate, slo, _limit(args, deployment))
    with tqdm(desc="requests", total=args.requests, leave=False, disable=None) as bar:
        report = deployment.run(jobs, trace=trace, on_finish=lambda request: bar.update())
    if trace:
        trace.save(args.trace)
    _show([report.to_json()], args)
    return {"report": report.to_json()}


def _curve(args, deployment: Deployment, slo: Slo) -> dict:
    from tqdm import tqdm

    try:
        rates = [float(rate) for rate in args.rates.split(",")]
    except ValueError:
        raise ValueError(f"rates is {args.rates!r}, but must be numbers with commas between them") from None
    with tqdm(desc="rates", total=len(rates), leave=False, disable=None) as bar:
        points = curve(_trial(args, deployment, slo), rates, bar.update)
    _show(points, args)
    _plot(points, args, slo)
    return {"points": points}


def _plot(points: list[dict], args, slo: Slo):
    """Latency against load, where --plot says."""
    if not args.plot:
        return
    from visualizers import plots  # the numbers alone need no picture

    title = f"{args.model} on {args.tp * args.pp} x {args.gpu}, {args.scheduler}, {args.workload}"
    curves = {
        f"{time.upper()} {percentile}": [(point["rate"], point[time][percentile]) for point in points]
        for time in ("tbt", "ttft")
        for percentile in ("p50", "p99")
    }
    promise = {} if slo.tbt is None else {"TBT p99": slo.tbt}
    plots.latency_throughput(curves, promise, y="ms", title=title, logarithmic=True).to_png(args.plot)
    print(f"plot: {args.plot}")


def _capacity(args, deployment: Deployment, slo: Slo) -> dict:
    from tqdm import tqdm

    if slo.tbt is None:
        raise ValueError("capacity needs a promise to keep: give --slo, interactive or the P99 TBT in seconds")
    points: list[dict] = []
    run_at = _trial(args, deployment, slo)

    def trial(rate: float) -> Report:
        report = run_at(rate)
        points.append({"rate": rate, **report.to_json()})
        return report

    with tqdm(desc="trials", leave=False, disable=None) as bar:
        found = capacity(trial, slo.tbt, progress=bar.update)
    promise = f"P99 TBT <= {slo.tbt:g} s and median delay <= 2 s"
    if found.report is None:
        print(f"no rate keeps the promise ({promise}): even {min(found.trials)[0]:.2g} requests/s does not")
    elif found.is_bound:
        print(
            f"no limit found: {found.rate:g} requests/s, the highest rate tried, still keeps the promise ({promise}); "
            "so few requests never make a queue: raise --requests"
        )
    else:
        print(f"capacity: {found.rate:.3f} requests/s is the highest rate with {promise}")
    if slo.ttft is not None:
        print(f"a TTFT of {slo.ttft:g} s, which {args.slo} promises too, is not asked of it: goodput/s counts it")
    if found.report:
        _show([{"rate": found.rate, **found.report.to_json()}], args)
    _plot(sorted(points, key=lambda point: point["rate"]), args, slo)
    trials = [{"holds": held, **point} for (_, held), point in zip(found.trials, points, strict=True)]
    return {"capacity": None if found.is_bound else found.rate, "trials": trials}


def _trial(args, deployment: Deployment, slo: Slo) -> Callable[[float], Report]:
    if args.workload not in LENGTHS:
        raise ValueError(f"workload is {args.workload!r}, but rates are varied only for {', '.join(LENGTHS)}")
    return lambda rate: deployment.run(read_jobs(args, rate, slo, _limit(args, deployment)))


def _limit(args, deployment: Deployment) -> int | None:
    """Tokens of the longest request that may come: as was said, or as is set aside for each. None: no limit."""
    return deployment.longest if args.max_model_len or args.scheduler in RESERVING else None


def _settings(args) -> dict:
    names = ("gpu", "model", "scheduler", "tp", "pp", "max_num_seqs", "token_budget", "max_model_len", "num_slots")
    names += ("host", "workload", "rate", "requests", "seed", "slo")
    return {name: getattr(args, name) for name in names}


COLUMNS = {
    # heading: the number of it, from a report as JSON
    "requests/s": lambda point: point["requests_per_s"],
    "tokens/s": lambda point: point["tokens_per_s"],
    "goodput/s": lambda point: point["goodput"],
    "TTFT p50, s": lambda point: point["ttft"]["p50"],
    "TTFT p99": lambda point: point["ttft"]["p99"],
    "TBT p50, s": lambda point: point["tbt"]["p50"],
    "TBT p99": lambda point: point["tbt"]["p99"],
    "delay p50, s": lambda point: point["delay"]["p50"],
    "batch": lambda point: point["mean_batch"],
    "bubbles": lambda point: point["bubble_share"],
    "preemptions": lambda point: point["preemptions"],
}


def _show(points: list[dict], args) -> None:
    """One column for each point: more would not fit side by side."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"{args.scheduler}, {args.model} on {args.tp * args.pp} x {args.gpu}, {args.workload}"
    table = Table("", box=box.SIMPLE, show_header="rate" in points[0])
    for point in points:
        table.add_column(f"at {point.get('rate', 0):.4g}/s", justify="right")
    for heading, number in COLUMNS.items():
        numbers = [number(point) for point in points]
        table.add_row(heading, *("-" if number is None else f"{number:.4g}" for number in numbers))
    console = Console(highlight=False, markup=False)
    console.print(title)
    console.print(table)
    if "rate" in points[0]:
        print("at RATE: how fast requests arrive; requests/s: how many ended, over the whole run with its last answers")


def _paper(args) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    defaults = vars(parser.parse_args([]))
    for name in defaults.keys() - {"paper", "full", "json"}:
        if getattr(args, name) != defaults[name]:
            raise ValueError(f"the paper table has settings of its own: leave --{name.replace('_', '-')} out")
    return show_paper(args.full, args.json)


def show_paper(full: bool, path: Path | None) -> int:
    """Prints the paper table, reasons below it. full: makes the capacity searches anew and stores what they find."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tinyengine.simulate import paper

    if full:
        paper.store_capacities()
    rows = list(paper.rows())
    table = Table("source", "what", "class", box=box.SIMPLE)
    for heading in ("published", "ours", "limits", "within"):
        table.add_column(heading, justify="right")
    notes: list[str] = []
    for row in rows:
        if row.note and row.note not in notes:
            notes.append(row.note)
        mark = f" [{notes.index(row.note) + 1}]" if row.note else ""
        published = "-" if row.published is None else f"{row.published:.4g}"
        limits = f"{row.low:.4g} .. {row.high:.4g}" if row.low < row.high else f"{row.low:.4g}"
        within = "yes" if row.within else "NO"
        table.add_row(row.source, Text(row.what + mark), row.kind, published, f"{row.ours:.4g}", limits, within)
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, 132)  # cells that break over lines could not be read
    console.print(table)
    console.print("class: A exact, B a roofline by hand, C a ratio of simulated runs, D an order only")
    for number, note in enumerate(notes, start=1):
        console.print(f"[{number}] {note}")
    for what, why in paper.NOT_PROMISED.items():
        console.print(f"not promised: {what}: {why}")
    if path:
        records = [{**row.__dict__, "within": row.within} for row in rows]
        path.write_text(json.dumps({"rows": records}, indent=2) + "\n", encoding="utf-8")
    return 0
