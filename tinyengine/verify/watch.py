"""An engine that keeps the bits of everything it computes, and the comparison with a request alone."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from tinyengine.attention import KVCache
from tinyengine.batch import Batch
from tinyengine.clock import IterationClock
from tinyengine.engine import Engine
from tinyengine.invariant.envelope import bits
from tinyengine.invariant.sabotage import Fault
from tinyengine.qwen3 import Qwen3
from tinyengine.request import SamplingParams


@dataclass
class Count:
    """Floats that were compared, those whose bits differ, and the cases that they came from."""

    cases: int = 0
    compared: int = 0
    differing: int = 0

    def compare(self, got: torch.Tensor, wanted: torch.Tensor):
        self.compared += got.numel()
        self.differing += int((bits(got) != bits(wanted)).sum())

    def __add__(self, other: "Count") -> "Count":
        return Count(self.cases + other.cases, self.compared + other.compared, self.differing + other.differing)

    @property
    def holds(self) -> bool:
        return self.differing == 0


@dataclass(frozen=True)
class Case:
    """A request of a scenario: its prompt, its parameters, and the iteration in which it arrives."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrival: float = 0.0


@dataclass
class Scenario:
    """Cases and the engine that serves them. prepare: called with the engine before it starts; each_step: after each of
    its iterations. shows: whether what the scenario is for has happened: one in which nothing was preempted proves
    nothing about preemption."""

    cases: list[Case]
    options: dict = field(default_factory=dict)
    dummy_rows: int = 0
    prepare: Callable[[Engine], None] = lambda engine: None
    each_step: Callable[[Engine], None] = lambda engine: None
    shows: Callable[[Engine], bool] = lambda engine: True


@dataclass
class Seen:
    """What one request computed: its tokens; logits as (text, row); keys and values as (text, first position, entries
    [2, layers, n, kv_heads, head_dim]). A text is what the request had at that time, with its guesses."""

    tokens: list[int] = field(default_factory=list)
    logits: list[tuple[list[int], torch.Tensor]] = field(default_factory=list)
    kv: list[tuple[list[int], int, torch.Tensor]] = field(default_factory=list)


class Watched(Engine):
    """An engine that remembers every logits row and K/V entry. fault: planted in it before it starts. dummy_rows: so
    many rows of token 0 go through the model behind the real ones, as in a batch that is padded to a fixed size."""

    def __init__(self, model: Qwen3, stage: str, fault: Fault | None = None, dummy_rows: int = 0, **options):
        super().__init__(model, stage, clock=IterationClock(), **options)
        if fault:
            fault.plant(self)
        self.dummy_rows = dummy_rows
        self.seen: dict[str, Seen] = {}

    def logits(self, batch: Batch) -> torch.Tensor:
        logits = self._padded_logits(batch) if self.dummy_rows else super().logits(batch)
        for row, (request, length) in zip(logits, batch.wanted, strict=True):
            self._of(request).logits.append((request.tokens[:length], row.clone()))
        keys, values = (arena.flatten(1, 2) for arena in (self.attention.cache.keys, self.attention.cache.values))
        new = torch.stack((keys[:, batch.slot_mapping], values[:, batch.slot_mapping]))
        for index, (request, count) in enumerate(batch.plan):
            text, seen = list(request.tokens), self._of(request)
            if not seen.kv and request.computed:  # it begins behind a cached prefix, which must be right as well
                slots = batch.slots(index)[: request.computed]
                seen.kv.append((text, 0, torch.stack((keys[:, slots], values[:, slots]))))
            start = batch.starts[index]
            seen.kv.append((text, request.computed, new[:, :, start : start + count]))
        return logits

    def _padded_logits(self, batch: Batch) -> torch.Tensor:
        rows, extra = len(batch.tokens), self.dummy_rows
        attend = self.attention(batch)

        def attend_real(layer, q, k, v):
            return F.pad(attend(layer, q[:rows], k[:rows], v[:rows]), (0, 0, 0, 0, 0, extra))

        tokens, positions = F.pad(batch.tokens, (0, extra)), F.pad(batch.positions, (0, extra))
        hidden = self.model(tokens, positions, attend_real, self.operators)
        return self.model.logits(hidden[batch.last], self.operators)

    def _of(self, request) -> Seen:
        return self.seen.setdefault(request.request_id, Seen(request.tokens))


class Subject:
    """An engine under test: a stage on a model, perhaps with a fault planted; it remembers requests that ran alone.
    fast: as Engine's."""

    def __init__(self, model: Qwen3, stage: str, fault: Fault | None = None, fast: bool = True):
        self.model, self.stage, self.fault, self.fast = model, stage, fault, fast
        self._alone: dict[tuple, Seen] = {}

    def engine(self, dummy_rows: int = 0, **options) -> Watched:
        defaults = {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "num_slots": 8192, "fast": self.fast}
        return Watched(self.model, self.stage, self.fault, dummy_rows, **(defaults | options))

    def make_attention(self, cache: KVCache):
        """The attention of its engines, around another arena."""
        right = type(Engine(self.model, self.stage, num_slots=256, fast=self.fast).attention)(cache)
        return self.fault.attention(right) if self.fault and self.fault.attention else right

    def run(self, scenario: Scenario) -> Watched:
        engine = self.engine(scenario.dummy_rows, **scenario.options)
        scenario.prepare(engine)
        for number, case in enumerate(scenario.cases):
            engine.add_request(list(case.prompt), case.params, f"r{number}", arrival=case.arrival)
        while engine.has_unfinished():
            engine.step()
            scenario.each_step(engine)
        return engine

    def alone(self, case: Case) -> Seen:
        """The case by itself: cold, unchunked, in blocks of 16."""
        key = case.prompt, case.params
        if key not in self._alone:
            self._alone[key] = self.run(Scenario([Case(case.prompt, case.params)])).seen["r0"]
        return self._alone[key]

    def against_alone(self, scenario: Scenario) -> Count:
        """Runs the scenario and compares everything that its requests computed with each of them alone.

        Where a request's tokens have parted from those alone, nothing behind can be compared. Raises RuntimeError if
        the scenario did not show what it is for."""
        engine = self.run(scenario)
        if not scenario.shows(engine):
            raise RuntimeError(f"a scenario of {len(scenario.cases)} requests never came to what it is meant to show")
        count = Count(cases=len(scenario.cases))
        for number, case in enumerate(scenario.cases):
            compare(engine.seen[f"r{number}"], self.alone(case), count)
        return count


def compare(seen: Seen, alone: Seen, count: Count):
    """Adds to the count what the request computed while its text was that of the request alone."""
    rows = {len(text): row for text, row in alone.logits}
    entries = torch.cat([kv for _, _, kv in alone.kv], dim=2)  # in order of positions: it ran unchunked
    for text, row in seen.logits:
        if text == alone.tokens[: len(text)] and len(text) in rows:
            count.compare(row, rows[len(text)])
    for text, first, kv in seen.kv:
        same = next((i for i, (a, b) in enumerate(zip(text, alone.tokens)) if a != b), len(text))
        n = min(same, entries.shape[2], first + kv.shape[2]) - first
        if n > 0:
            count.compare(kv[:, :, :n], entries[:, :, first : first + n])
