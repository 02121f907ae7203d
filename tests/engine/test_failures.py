"""Whatever is thrown, and wherever: memory stays whole, the others get their own tokens, the failed one is reported."""

import itertools
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.serve import Alone, Job, assert_nothing_left, iteration_engine, serve

from tinyengine import SLO_CLASSES, STAGES, SamplingParams
from tinyengine.memory import Blocks
from tinyengine.metrics import measure
from tinyengine.qwen3 import Attention, Qwen3
from tinyengine.workload import chat

PAGED = [stage for stage, (_, memory, _) in STAGES.items() if memory is Blocks]


class Boom(Exception):
    """What the tests throw."""


# ---- A fake model, whose next token is a hash of the text that it finds in memory ------------------------------------

VOCABULARY, POSITIONS, EOS = 24, 96, 23
# small whole numbers: their sums are exact also where a stage computes its mean in float32
FEATURES = torch.randint(2**10, (VOCABULARY, POSITIONS), generator=torch.Generator().manual_seed(0)).tolist()


def following(total: int, newest: int) -> int:
    """The next token, from the sum of the text's features and its newest token. Mostly it counts on, so that texts
    repeat themselves and guesses come true."""
    return (newest + 1) % VOCABULARY if total % 4 else total // 4 % VOCABULARY


class FakeModel:
    """A token's K is 0 and its V is a number that says which token it is, and where. Attention is then the mean of the
    V that a request finds through its table: one foreign, stale or misplaced slot gives another token."""

    config = SimpleNamespace(
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=1,
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
    )
    device, dtype = torch.device("cpu"), torch.float64
    eos_token_ids = (EOS,)
    tokenizer = None

    def __init__(self):
        self.features = torch.tensor(FEATURES, dtype=self.dtype)
        self.fault = lambda place: None  # called before attention, behind it, and before the logits

    def __call__(self, tokens, positions, attend, operators):
        self.fault("before")
        v = self.features[tokens, positions].view(-1, 1, 1)
        mean = attend(0, torch.zeros_like(v), torch.zeros_like(v), v).view(-1)
        self.fault("behind")
        return torch.stack([mean * (positions + 1), tokens], dim=1)

    def logits(self, hidden, operators):
        self.fault("logits")
        chosen = [following(round(total), int(newest)) for total, newest in hidden.tolist()]
        return torch.nn.functional.one_hot(torch.tensor(chosen, dtype=torch.long), VOCABULARY).float()


def expected(prompt: list[int], params: SamplingParams) -> list[int]:
    """The output of the fake model, in five lines and without an engine."""
    text = list(prompt)
    total = sum(FEATURES[token][place] for place, token in enumerate(text))
    while len(text) < len(prompt) + params.max_tokens:
        text.append(following(total, text[-1]))
        if text[-1] in params.stop_token_ids or (text[-1] == EOS and not params.ignore_eos):
            break
        total += FEATURES[text[-1]][len(text) - 1]
    return text[len(prompt) :]


@pytest.fixture
def fakes(monkeypatch):
    """Engines take the fake model: it has no weights that a stage could bring operators for."""
    for _, _, make_attention in STAGES.values():
        monkeypatch.setattr(make_attention, "operators", staticmethod(lambda model: None))


def test_the_fake_model_is_what_it_is_expected_to_be(fakes):
    rng = random.Random(2)
    jobs = [Job([rng.randrange(VOCABULARY) for _ in range(n)], SamplingParams(max_tokens=30)) for n in (1, 5, 20, 60)]
    for stage in STAGES:
        outputs = serve(iteration_engine(FakeModel(), stage, num_slots=128), jobs)
        assert [output.token_ids for output in outputs] == [expected(job.prompt, job.params) for job in jobs]


# ---- 10,000 random steps ---------------------------------------------------------------------------------------------


class Chaos:
    """An engine over the fake model, and somebody who does everything to it that can be done."""

    def __init__(self, seed: int, stage: str):
        self.rng = random.Random(seed)
        self.model = FakeModel()
        self.model.fault = self.fault
        self.engine = iteration_engine(self.model, stage, **self.options(stage))
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
        if draw < 0.2 and len(self.engine._requests) < 10:
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


RUNS = {"paged": 8, "chunked": 12}  # of 350 steps each; 4 of the other stages


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_thousands_of_random_steps(fakes, stage):
    """More than 10,000 in all stages together, with faults at every place where somebody else's code runs."""
    engines, seen = [], Counter()
    for seed in range(RUNS.get(stage, 4)):
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
    assert 350 * sum(RUNS.get(stage, 4) for stage in STAGES) > 10_000


# ---- The real model --------------------------------------------------------------------------------------------------

PROMPTS = [
    [(7 * place + 13 * row) % 300 for place in range(length)] for row, length in enumerate((9, 1, 23, 4, 40, 12))
]
LIMITS = [SamplingParams(max_tokens=most, ignore_eos=True) for most in (6, 12, 3, 9, 5, 16)]
TIGHT = {
    "max_num_seqs": 4,
    "num_slots": 64,
    "block_size": 4,
    "enable_prefix_caching": True,
}  # they drive each other out


def tight(model, stage: str, **options):
    """An engine of a stage with blocks, in which some request is preempted."""
    return iteration_engine(model, stage, **{**TIGHT, "num_speculative_tokens": 2, **options})


@pytest.fixture(scope="module")
def alone(random_oracle, random_model):
    right = Alone(random_oracle, random_model.eos_token_ids)
    return [right(prompt, params) for prompt, params in zip(PROMPTS, LIMITS)]


def add_all(engine, **fields) -> list[str]:
    return [
        engine.add_request(prompt, params, arrival=i, **fields)
        for i, (prompt, params) in enumerate(zip(PROMPTS, LIMITS))
    ]


def drain(engine):
    while engine.has_unfinished():
        engine.step()
        engine.memory.check()


@pytest.mark.parametrize("stage", PAGED)
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
@pytest.mark.parametrize("layer", range(3))
def test_a_forward_that_raises_in_any_step_and_layer_is_repeated(random_model, alone, monkeypatch, stage, error, layer):
    """Every second try fails, in this layer, before its K/V are written or behind that."""
    real, calls = Attention.forward, itertools.count()

    def forward(self, *args):
        call, index = divmod(next(calls), 3)
        if index < layer or call % 2:
            return real(self, *args)
        for _ in range(2 - index):  # the layers that this forward pass will not come to
            next(calls)
        if call % 4:
            real(self, *args)
        raise error

    monkeypatch.setattr(Attention, "forward", forward)
    engine = tight(random_model, stage, compiled_decode=False)
    names, failures = add_all(engine), 0
    while engine.has_unfinished():
        try:
            engine.step()
        except error:
            failures += 1
        engine.memory.check()
    assert [engine.outputs[name].token_ids for name in names] == alone
    assert_nothing_left(engine)
    assert failures in (len(engine.trace.iterations), len(engine.trace.iterations) + 1)
    assert measure(engine.trace).preemptions > 0


@pytest.mark.parametrize("stage", PAGED)
def test_a_request_can_be_aborted_between_a_failed_step_and_the_next(random_model, alone, monkeypatch, stage):
    for victim in range(len(PROMPTS)):
        engine = tight(random_model, stage)
        names = add_all(engine)
        for _ in range(7):
            engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(Qwen3, "logits", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.step()
        engine.abort_request(names[victim])
        engine.memory.check()
        drain(engine)
        for index, name in enumerate(names):
            tokens = engine.outputs[name].token_ids
            assert tokens == (alone[index][: len(tokens)] if index == victim else alone[index])
        assert_nothing_left(engine)


@pytest.mark.parametrize("stage", STAGES)
def test_generate_that_fails_ends_its_own_requests_only(random_model, alone, monkeypatch, stage):
    engine = iteration_engine(random_model, stage, num_slots=256)
    stream = engine.stream(PROMPTS[:2], LIMITS[:2])
    first, other = next(stream), engine.add_request(PROMPTS[5], LIMITS[5])
    with monkeypatch.context() as patch:
        patch.setattr(Qwen3, "forward", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(PROMPTS[2:5], LIMITS[2:5])
    assert set(engine._requests) >= {other, first.request_id} and len(engine._requests) <= 3
    got = {}
    for token in (first, *stream):
        got.setdefault(token.request_id, []).append(token.token_id)
    assert list(got.values()) == alone[:2]
    drain(engine)
    assert engine.outputs[other].token_ids == alone[5] and set(engine.outputs) == {other}
    assert_nothing_left(engine)


@pytest.mark.parametrize("stage", PAGED)
@pytest.mark.parametrize("state", ["waiting", "running", "preempted", "future", "ended"])
def test_abort_in_any_state(random_model, alone, stage, state):
    engine = tight(random_model, stage)
    names = add_all(engine)

    def is_in_state(name: str) -> bool:
        request, output = engine._requests.get(name), engine.outputs[name]
        waits = request is not None and request in engine.scheduler.waiting
        return {
            "waiting": waits and not output.token_ids,
            "running": request in engine.scheduler.running,
            "preempted": waits and bool(output.token_ids),
            "future": name not in engine.trace.requests,
            "ended": request is None,
        }[state]

    while not (victims := [name for name in names if is_in_state(name)]):
        engine.step()
    ended = engine.outputs[victims[0]].finish_reason
    engine.abort_request(victims[0])
    assert engine.outputs[victims[0]].finish_reason == (ended or "abort")
    drain(engine)
    for name, right in zip(names, alone):
        tokens = engine.outputs[name].token_ids
        assert tokens == (right if name != victims[0] or ended else right[: len(tokens)])
    assert_nothing_left(engine)


@pytest.mark.parametrize("answer", [1, "yes", [0], np.True_, True])
@pytest.mark.parametrize("stage", STAGES)
def test_whatever_is_true_stops(random_model, alone, stage, answer):
    params = replace(LIMITS[5], stop_when=lambda token_ids: answer if len(token_ids) == 4 else type(answer)())
    (output,) = iteration_engine(random_model, stage, num_slots=64).generate([PROMPTS[5]], params)
    assert output.token_ids == alone[5][:4] and output.finish_reason == "stop" and output.error is None


@pytest.mark.parametrize("stage", STAGES)
def test_a_stop_when_that_fails_is_reported_and_harms_nobody(random_model, alone, stage):
    """It raises, or its answer is neither true nor false."""

    def explode(token_ids):
        raise Boom(len(token_ids))

    engine = iteration_engine(random_model, stage, num_slots=256)
    first = engine.add_request(PROMPTS[0], replace(LIMITS[0], stop_when=explode))
    second = engine.add_request(PROMPTS[1], replace(LIMITS[1], stop_when=lambda token_ids: np.array([1, 2])))
    names = add_all(engine)
    drain(engine)
    for name, error in ((first, Boom), (second, ValueError)):
        output = engine.outputs[name]
        assert output.finish_reason == "error" and isinstance(output.error, error) and len(output.token_ids) == 1
    assert [engine.outputs[name].token_ids for name in names] == alone
    assert_nothing_left(engine)


@pytest.mark.parametrize("at", [1, 5, 12])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", ["abort", "abort and stop", "step", "generate", "interrupt"])
def test_a_stop_when_that_uses_the_engine_costs_nobody_a_token(random_model, alone, stage, what, at):
    """Behind it in the batch are requests whose tokens are committed and not yet delivered. 12 is its last token."""

    def meddle(token_ids):
        if len(token_ids) != at:
            return False
        if what.startswith("abort"):
            engine.abort_request("meddler")
        elif what == "step":
            engine.step()
        elif what == "generate":
            assert engine.generate(PROMPTS[2], LIMITS[2])[0].token_ids == alone[2]
        elif what == "interrupt":
            raise KeyboardInterrupt
        return what == "abort and stop"

    engine = iteration_engine(random_model, stage, max_num_seqs=8, num_slots=400)
    before = engine.add_request(PROMPTS[5], LIMITS[5])
    engine.add_request(PROMPTS[1], replace(LIMITS[1], stop_when=meddle), request_id="meddler")
    names, interrupts = [before, *add_all(engine)], 0
    while engine.has_unfinished():
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == (what == "interrupt")
    assert [engine.outputs[name].token_ids for name in names] == [alone[5], *alone]
    output = engine.outputs["meddler"]
    aborts = what.startswith("abort")
    assert output.finish_reason == ("abort" if aborts else "length") and output.error is None
    assert output.token_ids == (alone[1][:at] if aborts else alone[1])
    for name, own in engine.outputs.items():
        spans = [span for i in engine.trace.iterations for span in i.spans if span.request_id == name]
        assert [token for span in spans for token in span.tokens] == own.token_ids
    assert_nothing_left(engine)


@pytest.mark.parametrize("stage", STAGES)
def test_tokens_that_an_interrupt_left_behind_come_with_the_next_step(random_model, alone, stage):
    """Also where nothing is left to run, and they are all that the step has to give."""

    def interrupt(token_ids):
        if len(token_ids) == LIMITS[0].max_tokens:
            raise KeyboardInterrupt

    engine = iteration_engine(random_model, stage, num_slots=64)
    engine.add_request(PROMPTS[0], replace(LIMITS[0], stop_when=interrupt), request_id="first")
    engine.add_request(PROMPTS[0], LIMITS[0], request_id="second")
    engine.add_request(PROMPTS[1], LIMITS[1], request_id="late", arrival=50)
    for _ in range(LIMITS[0].max_tokens - 1):
        engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.outputs["first"].finish_reason == "length" and engine.outputs["second"].finish_reason is None
    (token,) = engine.step()
    assert token.request_id == "second" and token.finish_reason == "length"
    drain(engine)
    assert [engine.outputs[name].token_ids for name in ("first", "second", "late")] == [alone[0], alone[0], alone[1]]
    assert_nothing_left(engine)


# ---- A stop in the middle of several tokens --------------------------------------------------------------------------

COUNTED = chat("Count from 5 to 35.") + " ".join(map(str, range(5, 36)))


@pytest.mark.parametrize("stage", PAGED)
@pytest.mark.parametrize("stop", ["14", "1 1", " 20 2", "9", "3"])
@pytest.mark.parametrize("how", ["stop", "stop_when", "stop_token_ids"])
def test_a_stop_amid_accepted_guesses_cuts_the_output_and_the_trace(tiny, stage, stop, how):
    """The output is that of an engine without guesses, and the trace knows no token that nobody got."""
    params = SamplingParams(max_tokens=60)
    if how == "stop":
        params = replace(params, stop=stop)
    elif how == "stop_when":
        params = replace(params, stop_when=lambda token_ids: tiny.tokenizer.decode(token_ids).endswith(stop))
    else:
        params = replace(params, stop_token_ids=tiny.tokenizer(stop).input_ids[-1:])
    prompts = [COUNTED + chat(f"Count from {first} to 31.") for first in (7, 8, 6)]
    runs = []
    for num_speculative_tokens in (0, 5):
        engine = iteration_engine(tiny, stage, num_slots=1024, num_speculative_tokens=num_speculative_tokens)
        names = [engine.add_request(prompt, params) for prompt in prompts]
        drain(engine)
        assert_nothing_left(engine)
        outputs = [engine.outputs[name] for name in names]
        runs.append([(output.token_ids, output.text, output.pieces, output.finish_reason) for output in outputs])
        for name, output in zip(names, outputs):
            spans = [(i, span) for i in engine.trace.iterations for span in i.spans if span.request_id == name]
            assert [token for _, span in spans for token in span.tokens] == output.token_ids
            assert all(0 <= span.rejected <= span.draft for _, span in spans)
            assert all(i.memory[name].used == span.end for i, span in spans)
            last = [event for event in engine.trace.events if event.kind == "finish" and event.request_id == name]
            assert [event.iteration for event in last] == [engine.trace.iterations.index(spans[-1][0])]
        metrics = measure(engine.trace)
        assert metrics.output_tokens == sum(len(output.token_ids) for output in outputs)
    assert runs[0] == runs[1]
    assert all(reason == "stop" for *_, reason in runs[0])
    assert metrics.tokens_per_step > 1.2 or len(runs[0][0][0]) < 4
