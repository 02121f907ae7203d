"""Requests alone, and an engine run under watch."""

from collections import deque
from dataclasses import dataclass, field, fields, replace

from helpers.drive import requests_in
from tinyengine import STAGES, Engine, SamplingParams
from tinyengine.clock import IterationClock
from tinyengine.memory import Blocks

PAGED = [stage for stage, (_, memory, _) in STAGES.items() if memory is Blocks]  # K/V in blocks


@dataclass
class Ask:
    """A request of a test. arrival: in iterations."""

    prompt: list[int] | str
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival: float = 0.0
    priority: int = 0
    slo: str | None = None


class Alone:
    """Outputs of requests alone: greedy ones by transformers, drawn ones by `model` in a static engine with one batch
    slot. It remembers the longest output of each prompt: whatever ends an output sooner (max_tokens, an end-of-sequence
    token) only cuts it, since a token depends on nothing but the text before it."""

    def __init__(self, oracle, eos_token_ids, longest: int = 24, model=None):
        self.oracle, self.eos_token_ids, self.longest, self.model = oracle, eos_token_ids, longest, model
        self._outputs: dict[tuple[tuple[int, ...], SamplingParams], list[int]] = {}

    def __call__(self, prompt: list[int], params: SamplingParams) -> list[int]:
        assert params.max_tokens <= self.longest
        whole = replace(params, max_tokens=self.longest, ignore_eos=True, stop_token_ids=())
        key = tuple(prompt), whole
        if key not in self._outputs:
            self._outputs[key] = self._draw(prompt, whole) if whole.temperature else self.oracle.generate(prompt, whole)
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else self.eos_token_ids)}
        tokens = self._outputs[key][: params.max_tokens]
        return next((tokens[: place + 1] for place, token in enumerate(tokens) if token in ends), tokens)

    def _draw(self, prompt: list[int], params: SamplingParams) -> list[int]:
        sizes = dict(max_num_seqs=1, num_slots=len(prompt) + params.max_tokens)
        engine = iteration_engine(self.model, "static", **sizes, fast=False)
        return engine.generate(prompt, params)[0].token_ids


def serve(engine: Engine, asks: list[Ask]):
    """Runs the requests to their end and returns their outputs; the memory is looked at after every step."""
    ids = [
        engine.add_request(ask.prompt, ask.params, arrival=ask.arrival, priority=ask.priority, slo=ask.slo)
        for ask in asks
    ]
    while engine.has_unfinished():
        engine.step()
        engine.memory.check()
    assert_nothing_left(engine)
    return [engine.outputs.pop(request_id) for request_id in ids]


def iteration_engine(model, stage: str, **options) -> Engine:
    return Engine(model, stage, clock=IterationClock(), **options)


def assert_nothing_left(engine: Engine):
    """No request, no memory, no detokenizer, no queue entry outlives its end."""
    engine.memory.check()
    assert not requests_in(engine.memory)
    assert not engine.has_unfinished() and not engine.scheduler.has_unfinished()
    recorded = {field.name for field in fields(engine.trace)}
    state = vars(engine.outputs) | {name: kept for name, kept in vars(engine.trace).items() if name not in recorded}
    assert not [name for name, kept in state.items() if isinstance(kept, dict | list | set | deque) and kept]
    assert not (len(engine.arrivals) or engine.scheduler.waiting or engine.scheduler.running)
    if isinstance(engine.memory, Blocks):
        assert len(engine.memory.free) == engine.memory.n_blocks
