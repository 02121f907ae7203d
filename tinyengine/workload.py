"""Lists of requests to replay through every stage. All seeded: the same name and seed give the same requests."""

import csv
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

from tinyengine.model.text import question
from tinyengine.params import SamplingParams, Slo

VOCABULARY = 1024  # of the embedded model; random prompts stay inside it, so that they suit any larger model as well
FIRST_WORD = 260  # token ids below are special tokens and single bytes


@dataclass(frozen=True)
class Item:
    """One request of a workload. arrival: seconds after the start."""

    prompt: str | tuple[int, ...]
    params: SamplingParams
    arrival: float = 0.0


NO_SLO = Slo()


class Job(NamedTuple):
    """One request in sizes alone, which is all that a simulator asks for. arrival: seconds after the start. output:
    tokens that it will get."""

    arrival: float
    prompt: int
    output: int
    priority: int = 0
    slo: Slo = NO_SLO


@dataclass(frozen=True)
class Workload:
    """Requests, and the engine's size that they are meant for."""

    name: str
    seed: int
    items: tuple[Item, ...]
    max_num_seqs: int
    num_slots: int

    def replay(self, engine) -> list:
        """Hands all requests to the engine, runs it until they have ended, and returns their outputs in order."""
        start = engine.clock.now()
        ids = [engine.add_request(item.prompt, item.params, arrival=start + item.arrival) for item in self.items]
        while engine.has_unfinished():
            engine.step()
        return [engine.outputs.pop(request_id) for request_id in ids]

    def jobs(self) -> list[Job]:
        """Its requests in sizes, each running to max_tokens. Raises ValueError where a prompt is text, whose size only
        a tokenizer knows."""
        if any(isinstance(item.prompt, str) for item in self.items):
            raise ValueError(f"workload {self.name!r} has prompts of text, but sizes are wanted: use one of token ids")
        return [Job(item.arrival, len(item.prompt), item.params.max_tokens) for item in self.items]


def workload(name: str, seed: int = 0) -> Workload:
    """The workload of that name. Raises ValueError for an unknown one."""
    if name not in WORKLOADS:
        raise ValueError(f"workload is {name!r}, but the workloads are {', '.join(WORKLOADS)}")
    return WORKLOADS[name](seed)


def chat(question: str) -> str:
    """A question in the embedded model's chat form, the same that its chat template makes."""
    return f"<|user|>{question}<|assistant|>"


def course(seed: int) -> Workload:
    """The eight requests of every lesson: real questions, whose answers are as long as they are."""
    questions = (
        "Count from 1 to 24.",
        "What is the capital of France?",
        "What is 23 + 45?",
        "Say hello to Mia.",
        "Mia: fox. Leo: owl. Ann: cat. Leo?",
        "Count from 7 to 31.",
        "What is the opposite of hot?",
        "Tell me a short story about a fox.",
    )
    params = SamplingParams(max_tokens=64)
    items = tuple(Item(chat(text), params) for text in questions)
    return Workload("course", seed, items, max_num_seqs=3, num_slots=320)


def equal_size(seed: int) -> Workload:
    """16 requests of (128, 128) tokens, 2 at a time, as tinyorca's benchmark has it: nothing to gain by scheduling."""
    return _sized("equal_size", seed, [(128, 128)] * 16, max_num_seqs=2)


def short_long_mix(seed: int) -> Workload:
    """16 requests, (32, 32) and (512, 128) tokens in turn, 2 at a time, as tinyorca's benchmark has it."""
    return _sized("short_long_mix", seed, [(32, 32), (512, 128)] * 8, max_num_seqs=2)


def lookups(seed: int) -> Workload:
    """Long prompts among short ones: every third request is a look-up in a list of 300 to 1,000 tokens, with a short
    answer; the others count, with a short prompt and a long answer."""
    rng = random.Random(seed)
    items = []
    for index in range(12):
        if index % 3 == 2:
            text, _ = question("lookup", rng, n=rng.randint(75, 250))
        else:
            text, _ = question("count", rng, longest=30)
        items.append(Item(chat(text), SamplingParams(max_tokens=80)))
    return Workload("lookups", seed, tuple(items), max_num_seqs=4, num_slots=4096)


def poisson(
    seed: int,
    name: str = "sharegpt",
    requests: int = 24,
    rate: float = 20.0,
    scale: float = 1 / 16,
    max_num_seqs: int = 8,
    num_slots: int = 4096,
) -> Workload:
    """Poisson arrivals (`rate` a second) of requests with a published distribution of lengths.

    name: a key of LENGTHS. scale: shrinks the lengths; 1 is the published size, 1/16 suits the embedded model.
    """
    rng = random.Random(seed)
    arrival, items = 0.0, []
    for _ in range(requests):
        arrival += rng.expovariate(rate)
        prompt, output = (max(1, round(length * scale)) for length in draw_lengths(name, rng))
        items.append(_random_item(rng, prompt, output, arrival))
    return Workload("poisson", seed, tuple(items), max_num_seqs, num_slots)


def stream(
    name: str = "sharegpt", rate: float = 1.0, requests: int | None = None, seed: int = 0, slo: Slo = NO_SLO
) -> Iterator[Job]:
    """Poisson arrivals (`rate` a second) of requests with the published lengths of `name`, drawn one by one: a million
    take no more memory than one. None: without end.

    The same seed gives the same requests at every rate, only closer together, so that two rates can be compared.
    Raises ValueError for a rate that is not above 0 and for an unknown name.
    """
    if not rate > 0:
        raise ValueError(f"rate is {rate}, but must be above 0 requests a second")
    _lengths(name)
    return _stream(name, rate, requests, random.Random(seed), slo)


def _stream(name: str, rate: float, requests: int | None, rng: random.Random, slo: Slo) -> Iterator[Job]:
    moment, number = 0.0, 0  # at a rate of 1
    while requests is None or number < requests:
        moment += rng.expovariate(1.0)
        yield Job(moment / rate, *draw_lengths(name, rng), slo=slo)
        number += 1


TRACE_COLUMNS = (("arrival", "prompt", "output"), ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))


def read_csv(path: str | Path) -> Iterator[Job]:
    """The requests of a trace file, row by row: when each came, its prompt and its output tokens. The columns are
    arrival, prompt and output, or those of the public Azure LLM inference traces; a time is seconds, or a date
    ("2023-11-16 18:15:46.6805900"), and counts from the first row. Rows without output (the traces have some) are
    passed over.

    Raises ValueError, which names the row, for a missing column, a cell that cannot be read, and a time that runs back.
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        needed = " or ".join(", ".join(columns) for columns in TRACE_COLUMNS)
        if rows.fieldnames is None:
            raise ValueError(f"{path} is empty: it needs the columns {needed}")
        found = [columns for columns in TRACE_COLUMNS if set(columns) <= set(rows.fieldnames)]
        if not found:
            raise ValueError(f"{path} has the columns {', '.join(rows.fieldnames)}: it needs {needed}")
        when, context, generated = found[0]
        start = newest = None
        for row in rows:
            try:
                moment = _seconds(row[when])
                prompt, output = int(row[context]), int(row[generated])
            except (TypeError, ValueError):
                raise ValueError(
                    f"{path}, line {rows.line_num}: {row} has no time and two whole numbers in it"
                ) from None
            start = moment if start is None else start
            if newest is not None and moment < newest:
                raise ValueError(f"{path}, line {rows.line_num}: {row[when]} is before the row above: sort it")
            newest = moment
            if prompt > 0 and output > 0:
                yield Job(moment - start, prompt, output)


def _seconds(text: str) -> float:
    """Of a number, or of a date with a fraction of any length (the traces have 7 digits, of which 6 are kept)."""
    try:
        return float(text)
    except ValueError:
        pass
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        return (moment - datetime(1970, 1, 1)).total_seconds()
    return moment.timestamp()


WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "course": course,
    "equal_size": equal_size,
    "short_long_mix": short_long_mix,
    "lookups": lookups,
    "poisson": poisson,
}


@dataclass(frozen=True)
class Lengths:
    """Median and 90th percentile of prompt and output lengths in tokens, of requests of at most `limit` in all."""

    prompt: tuple[int, int]
    output: tuple[int, int]
    limit: int


# Sarathi-Serve (OSDI 2024), table 2
LENGTHS = {
    "sharegpt": Lengths(prompt=(1730, 5696), output=(415, 834), limit=8192),
    "arxiv": Lengths(prompt=(7059, 12985), output=(208, 371), limit=16384),
}


def draw_lengths(name: str, rng: random.Random) -> tuple[int, int]:
    """(prompt, output) tokens, drawn apart from each other, since they are nearly uncorrelated in the published traces.

    Raises ValueError for an unknown name.
    """
    lengths = _lengths(name)
    prompt = _draw_truncated(lengths.prompt, lengths.limit, lengths.limit - 1, rng)
    return prompt, _draw_truncated(lengths.output, lengths.limit, lengths.limit - prompt, rng)


def _lengths(name: str) -> Lengths:
    if name not in LENGTHS:
        raise ValueError(f"lengths are {name!r}, but the known ones are {', '.join(LENGTHS)}")
    return LENGTHS[name]


def _draw_truncated(median_and_p90: tuple[int, int], limit: int, most: int, rng: random.Random) -> int:
    """A length of 1 to `most`, from the distribution fitted to requests of up to `limit`."""
    normal = fit_truncated_lognormal(*median_and_p90, limit)
    share = rng.uniform(1e-9, normal.cdf(log(most)) if most > 1 else 1e-9)
    return min(most, max(1, round(exp(normal.inv_cdf(share)))))


@cache
def fit_truncated_lognormal(median: float, p90: float, limit: float) -> NormalDist:
    """The normal distribution of log(length) which, cut off at `limit`, has this median and 90th percentile.

    A plain lognormal through the same two points, cut off afterwards, would lose its tail: the cut lowers both.
    """

    def share(normal: NormalDist, length: float) -> float:
        return normal.cdf(log(length)) / normal.cdf(log(limit))

    def with_median(sigma: float) -> NormalDist:
        """The one of this sigma whose median fits: the larger mu, the smaller the share below the median."""
        mu = bisect(lambda mu: share(NormalDist(mu, sigma), median) > 0.5, log(median) - 1, log(limit) + 4 * sigma)
        return NormalDist(mu, sigma)

    # the wider it is, the smaller the share below the 90th percentile
    return with_median(bisect(lambda sigma: share(with_median(sigma), p90) > 0.9, 0.05, 4.0))


def bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """The border between the numbers for which `is_below` holds, which are the lower ones, and the others."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


def _sized(name: str, seed: int, sizes: list[tuple[int, int]], max_num_seqs: int) -> Workload:
    """Requests of these sizes, and an arena of twice what a batch can need: the scheduler is the subject, and in a
    tighter arena fragmentation holds requests back (short_long_mix in 1,280 slots: Orca takes 736 iterations, not 672).
    """
    rng = random.Random(seed)
    items = tuple(_random_item(rng, prompt, output) for prompt, output in sizes)
    largest = max(prompt + output for prompt, output in sizes)
    return Workload(name, seed, items, max_num_seqs, num_slots=2 * max_num_seqs * largest)


def _random_item(rng: random.Random, prompt: int, output: int, arrival: float = 0.0) -> Item:
    """Random words, and exactly `output` tokens whatever the model says."""
    tokens = tuple(rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(prompt))
    return Item(tokens, SamplingParams(max_tokens=output, ignore_eos=True), arrival)
