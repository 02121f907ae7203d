"""Thousands of steps: a user does everything that can be done to an engine, and every outside call may raise."""

import random
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
import torch
from helpers.fakes import EOS, VOCABULARY, FakeModel, expected
from helpers.serve import PAGED, Ask, assert_nothing_left, iteration_engine, serve

from tinyengine import SLO_CLASSES, STAGES, SamplingParams
from tinyengine.metrics import measure


class Boom(Exception):
    """What the tests throw."""


@pytest.fixture
def fakes(monkeypatch):
    """Engines take the fake model: it has no weights that a stage could bring operators for."""
    for _, _, make_attention in STAGES.values():
        monkeypatch.setattr(make_attention, "operators", staticmethod(lambda model: None))


def test_the_fake_model_is_what_it_is_expected_to_be(fakes):
    rng = random.Random(2)
    jobs = [Ask([rng.randrange(VOCABULARY) for _ in range(n)], SamplingParams(max_tokens=30)) for n in (1, 5, 20, 60)]
    for stage in STAGES:
        outputs = serve(iteration_engine(FakeModel(), stage, num_slots=128, fast=False), jobs)
        assert [output.token_ids for output in outputs] == [expected(job.prompt, job.params) for job in jobs]


class Chaos:
    """An engine over the fake model, and a user who does everything to it that can be done."""

    def __init__(self, seed: int, stage: str):
        self.rng = random.Random(seed)
        self.model = FakeModel()
        self.model.fault = self.fault
        self.engine = iteration_engine(self.model, stage, fast=False, **self.options(stage))
        self.engine.attention.cache.values.fill_(torch.nan)  # what was never written must not be read
        self.jobs: dict[str, tuple[list[int], SamplingParams]] = {}
        self.stops: dict[str, int] = {}  # where a request's stop_when ended it, or failed
        self.aborted: set[str] = set()
        self.streams: list = []
        self.streamed: dict[str, list[int]] = {}
        self.calm = False
        self.seen: Counter[str] = Counter()

    def options(self, stage: str) -> dict:
        rng = self.rng
        if stage not in PAGED:
            return {"max_num_seqs": rng.randint(1, 5), "num_slots": rng.randint(64, 200)}
        block_size = 2 ** rng.randint(0, 5)
        options = {
            "max_num_seqs": rng.randint(2, 6),
            "block_size": block_size,
            "num_slots": -(-64 // block_size) * block_size + rng.choice([0, 0, 32, 96]),
            "enable_prefix_caching": rng.random() < 0.6,
            "num_speculative_tokens": rng.choice([0, 3, 5]),
        }
        if stage != "paged":
            options["max_num_batched_tokens"] = rng.choice([1, 5, 16, 64])
            options["policy"] = rng.choice(["fcfs", "priority"])
            options["chunking"] = rng.random() < 0.8
            options["mixing"] = rng.random() < 0.8
            options["admit_first_chunk"] = rng.random() < 0.3
        return options

    def fault(self, place: str):
        if not self.calm and self.rng.random() < 0.02:
            self.seen[place] += 1
            raise self.rng.choice([Boom, KeyboardInterrupt])

    def prompt(self) -> list[int]:
        start, length = self.rng.choice([0, 0, 7]), self.rng.randint(1, 40)
        tail = [self.rng.randrange(VOCABULARY) for _ in range(self.rng.randint(0, 3))]
        return [(start + place) % (VOCABULARY - 1) for place in range(length)] + tail

    def params(self, request_id: str | None = None) -> SamplingParams:
        rng = self.rng
        return SamplingParams(
            max_tokens=rng.randint(1, 21),
            ignore_eos=rng.random() < 0.6,
            stop_token_ids=rng.choice([(), (), (3, 5)]),
            stop_when=self.stop_when(request_id) if request_id and rng.random() < 0.3 else None,
        )

    def stop_when(self, request_id: str):
        """A user's function that does what no user should, once, at one of its tokens."""
        at, what = self.rng.randint(1, 8), self.rng.choice("stop raise interrupt self other add step".split())
        interrupts = []

        def ask(token_ids: list[int]):
            if len(token_ids) != at or self.calm:
                return 0
            self.seen[what] += 1
            if what == "stop":
                self.stops[request_id] = at
                return self.rng.choice([1, "yes", np.True_])
            if what == "raise":
                self.stops[request_id] = at
                raise Boom
            if what == "interrupt":
                interrupts.append(at)
                if len(interrupts) == 1:  # it is asked again
                    raise KeyboardInterrupt
            if what == "self":
                self.abort(request_id)
                return self.rng.random() < 0.5
            if what == "other":
                self.abort(self.rng.choice(list(self.jobs)))
            if what == "add":
                self.add()
            if what == "step":
                with suppress(Boom):
                    self.engine.step()
            return token_ids.clear()  # a copy: nobody else's

        return ask

    def add(self):
        request_id = f"q{len(self.jobs)}"
        prompt, params = self.prompt(), self.params(request_id)
        arrival = self.engine.clock.now() + self.rng.choice([0, 0, 0, 2, 9.5])
        self.jobs[request_id] = prompt, params
        slo = self.rng.choice([None, *SLO_CLASSES])
        self.engine.add_request(prompt, params, request_id, arrival, self.rng.randint(-2, 2), slo)

    def abort(self, request_id: str):
        if self.engine.outputs[request_id].finish_reason is None:
            self.aborted.add(request_id)
        self.engine.abort_request(request_id)

    def open_stream(self):
        prompts = [self.prompt() for _ in range(self.rng.randint(1, 3))]
        params = [self.params() for _ in prompts]
        self.streams.append((self.engine.stream(prompts, params), prompts, params, {}))

    def read_stream(self):
        """The consumer of a stream: it reads some tokens, and then perhaps raises, closes it, or aborts a request."""
        stream, prompts, params, got = entry = self.rng.choice(self.streams)
        over = False
        try:
            for _ in range(self.rng.randint(1, 6)):
                token = next(stream)
                got.setdefault(token.request_id, []).append(token.token_id)
                if self.jobs and self.rng.random() < 0.05:
                    self.abort(self.rng.choice(list(self.jobs)))
                if self.rng.random() < 0.05:
                    raise Boom
        except StopIteration:
            over = True
            self.seen["stream read to its end"] += 1
            right = [expected(*one) for one in zip(prompts, params)]
            assert [got[name] for name in sorted(got, key=lambda name: int(name[1:]))] == right
        except (Boom, KeyboardInterrupt):
            over = True
            self.seen["stream broken off"] += 1
        finally:
            if over:
                stream.close()
                self.streams.remove(entry)
        right = [expected(*one) for one in zip(prompts, params)]
        assert all(any(tokens == one[: len(tokens)] for one in right) for tokens in got.values())

    def act(self):
        """One thing that a user does."""
        draw = self.rng.random()
        if draw < 0.2 and len(self.engine.outputs.open) < 10:
            self.add()
        elif draw < 0.25 and self.jobs:
            self.abort(self.rng.choice(list(self.jobs)))
        elif draw < 0.28 and len(self.streams) < 3:
            self.open_stream()
        elif draw < 0.35 and self.streams:
            self.read_stream()
        else:
            with suppress(Boom, KeyboardInterrupt):
                self.engine.step()
        self.engine.memory.check()

    def end(self):
        """Peace: everything that is left runs to its end, and is what it must be."""
        self.calm = True
        for stream, *_ in self.streams:
            stream.close()
        for _ in range(5000):
            if not self.engine.has_unfinished():
                break
            self.engine.step()
            self.engine.memory.check()
        for name, (prompt, params) in self.jobs.items():
            output, right = self.engine.outputs[name], expected(prompt, params)
            assert output.token_ids == right[: len(output.token_ids)]
            if name in self.aborted:
                assert output.finish_reason == "abort"
            elif name in self.stops:
                assert len(output.token_ids) == self.stops[name]
                assert output.finish_reason == ("stop" if output.error is None else "error")
                assert isinstance(output.error, Boom | None)
            else:
                assert output.token_ids == right and output.error is None
                assert output.finish_reason == ("stop" if ends(right, params) else "length")
        self.assert_trace_is_true()
        assert_nothing_left(self.engine)
        assert set(self.engine.outputs) == set(self.jobs)

    def assert_trace_is_true(self):
        emitted: dict[str, list[int]] = {}
        for iteration in self.engine.trace.iterations:
            for span in iteration.spans:
                emitted.setdefault(span.request_id, []).extend(span.tokens)
        for name in self.jobs:
            assert emitted.get(name, []) == self.engine.outputs[name].token_ids, name
        ends = [event.request_id for event in self.engine.trace.events if event.kind in ("finish", "abort")]
        assert sorted(ends) == sorted(self.engine.trace.requests)


def ends(tokens: list[int], params: SamplingParams) -> bool:
    return tokens[-1] in params.stop_token_ids or (tokens[-1] == EOS and not params.ignore_eos)


RUNS = {"paged": 8, "chunked": 12}  # of 350 steps each; 6 of the other stages


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_thousands_of_random_steps(fakes, stage):
    """More than 10,000 in all stages together, with faults at every place where code runs that is not the engine's."""
    engines, seen = [], Counter()
    for seed in range(RUNS.get(stage, 6)):
        chaos = Chaos(seed, stage)
        for _ in range(20_000):
            chaos.act()
            if len(chaos.engine.trace.iterations) >= 350:
                break
        assert len(chaos.engine.trace.iterations) >= 350, "it is stuck"
        chaos.end()
        engines.append(chaos.engine)
        seen += chaos.seen
    kinds = {"before", "behind", "logits", "stop", "raise", "interrupt", "self", "other", "add", "step"}
    assert seen.keys() >= kinds | {"stream read to its end", "stream broken off"}
    if stage in PAGED:
        metrics = [measure(engine.trace) for engine in engines]
        assert sum(one.preemptions for one in metrics) > 50 and sum(one.cached_tokens for one in metrics) > 1000
        assert max(one.tokens_per_step for one in metrics) > 1.1


def test_the_random_steps_are_ten_thousand():
    assert 350 * sum(RUNS.get(stage, 6) for stage in STAGES) > 10_000
