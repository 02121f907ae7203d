"""Blocks, budgets, preemption, prefix cache and speculation change when a token comes, and never which one."""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from helpers.serve import Alone, Ask, iteration_engine, serve
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tinyengine import SLO_CLASSES, STAGES, SamplingParams, load_model, sampler
from tinyengine.batch import Batch
from tinyengine.memory import Blocks
from tinyengine.metrics import measure
from tinyengine.oracle import Oracle
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.scheduler import Chunked, Paged, Scheduler
from tinyengine.speculate import Speculative
from tinyengine.workload import chat, workload

EOS = tuple(range(20, 44))  # of 300 tokens: an output of the random model meets one after about a dozen
RNG = random.Random(7)


def words(length: int) -> list[int]:
    return [RNG.randrange(300) for _ in range(length)]


ROOTS = [words(64), words(33), words(20) * 3]  # beginnings to share; the last repeats itself, so that guesses are made
PROMPTS = [
    *(words(length) for length in (1, 2, 5, 17, 40)),
    *(root + words(tail) for root in ROOTS for tail in (0, 1, 7)),
    *(root[:cut] + words(3) for root in ROOTS for cut in (15, 32)),
    ROOTS[0][:16] + ROOTS[1][16:32] + words(2),  # a block of one text behind a block of another
    ROOTS[1][:16] + ROOTS[0][16:32] + words(2),
]
PARAMS = [
    SamplingParams(),
    SamplingParams(),
    SamplingParams(),
    SamplingParams(repetition_penalty=1.4),
    SamplingParams(temperature=0.7, seed=1),
    SamplingParams(temperature=1.3, seed=2, top_k=20, top_p=0.9),
    SamplingParams(temperature=0.5, seed=3, top_p=0.8, repetition_penalty=0.8),
]
LONGEST = 24


@dataclass
class Setup:
    """An engine and what it serves."""

    stage: str
    options: dict
    asks: list[Ask]


def draw_setup(rng: random.Random, stage: str) -> Setup:
    """Anything goes. Half of the setups are a crowd in an arena that holds little more than its largest request."""
    crowd = rng.random() < 0.5
    asks = [
        Ask(
            rng.choice(PROMPTS),
            replace(
                rng.choice(PARAMS),
                max_tokens=LONGEST if crowd else rng.choice([1, 2, 9, 16, LONGEST]),
                ignore_eos=crowd or rng.random() < 0.6,
                stop_token_ids=() if crowd else tuple(range(rng.choice([0, 8]))),
            ),
            rng.choice([0, 0, 0, 1, 3]) if crowd else rng.choice([0, 0, 1, 3, 10.5, 60]),
            rng.choice([0, 0, -1, 2]),
            rng.choice([None, *SLO_CLASSES]),
        )
        for _ in range(rng.randint(4, 8) if crowd else rng.randint(1, 8))
    ]
    needed = max(len(ask.prompt) + ask.params.max_tokens for ask in asks)
    options: dict = {"max_num_seqs": rng.randint(3, 6) if crowd else rng.randint(1, 6)}
    options["fast"] = fast = rng.random() < 0.6  # else the very code that lessons show
    if fast:
        options["compiled_decode"] = rng.random() < 0.7
    if STAGES[stage][1] is not Blocks:
        return Setup(stage, {**options, "num_slots": needed + rng.randint(0, 100)}, asks)
    block_size = 2 ** rng.randint(0, 5 if crowd else 8)
    options["block_size"] = block_size
    options["num_slots"] = (-(-needed // block_size) + rng.choice([0, 1] if crowd else [0, 1, 2, 5, 200])) * block_size
    options["enable_prefix_caching"] = rng.random() < 0.5
    options["num_speculative_tokens"] = rng.choice([0, 0, 1, 2, 5])
    if fast and stage != "invariant":
        options["attention_backend"] = rng.choice(["auto", "torch"])
    if stage != "paged":
        options["max_num_batched_tokens"] = rng.choice([rng.randint(1, 8), rng.randint(1, 64), rng.randint(1, 4096)])
        options["policy"] = rng.choice(["fcfs", "priority"])
        options["chunking"] = rng.random() < 0.8
        options["mixing"] = rng.random() < 0.8
        options["admit_first_chunk"] = rng.random() < 0.3
    return Setup(stage, options, asks)


def run(model, setup: Setup):
    """The engine after the run, and its outputs."""
    engine = iteration_engine(model, setup.stage, **setup.options)
    return engine, serve(engine, setup.asks)


def assert_within_budget(engine, setup: Setup):
    """A batch is no larger than its budget, and no request has more places in it than batch slots."""
    for iteration in engine.trace.iterations:
        assert len(iteration.spans) <= setup.options["max_num_seqs"]
        if iteration.budget is not None and setup.options["chunking"]:
            assert iteration.num_tokens <= iteration.budget == setup.options["max_num_batched_tokens"]


device = pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], scope="module")(
    lambda request: request.param
)


@pytest.fixture(scope="module")
def pair(random_folder, device):
    """The random model, and the right outputs."""
    model, oracle = load_model(random_folder, device, torch.float32), Oracle(random_folder, device)
    model.eos_token_ids, oracle.eos_token_ids = EOS, list(EOS)
    return model, Alone(oracle, EOS, LONGEST, model)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_any_setup_gives_the_tokens_of_each_request_alone(pair, stage):
    model, alone = pair
    examples = {"paged": 100, "chunked": 200}.get(stage, 15)
    seen = Counter()

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(rng=st.randoms(use_true_random=True))
    def check(rng):
        setup = draw_setup(rng, stage)
        note(repr(setup))
        engine, outputs = run(model, setup)
        assert [output.token_ids for output in outputs] == [alone(ask.prompt, ask.params) for ask in setup.asks]
        assert_within_budget(engine, setup)
        metrics = measure(engine.trace)
        seen.update(
            examples=1,
            textbook=not setup.options["fast"],
            preempted=metrics.preemptions > 0,
            cached=metrics.cached_tokens > 0,
            several=metrics.tokens_per_step > 1,
            rejected=any(span.rejected for i in engine.trace.iterations for span in i.spans),
            chunks=any(engine.trace.phase(span) == "chunk" for i in engine.trace.iterations for span in i.spans),
        )

    check()
    if examples > 15:  # what is to be survived did happen
        assert seen["preempted"] > examples / 5, seen
        assert min(seen[kind] for kind in ("textbook", "cached", "several", "rejected")) > examples / 10, seen
    if stage == "chunked":
        assert seen["chunks"] > examples / 3, seen


# ---- The embedded model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded(tiny, device):
    model = tiny if device == "cpu" else load_model("tiny", device, torch.float32)
    return model, Alone(Oracle(tiny.folder, device), model.eos_token_ids, 80)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["course", "lookups"])
@pytest.mark.parametrize("num_speculative_tokens", [0, 4])
@pytest.mark.parametrize(("stage", "budget"), [("paged", None), ("chunked", 16), ("chunked", 64), ("chunked", 512)])
def test_the_workloads_on_the_embedded_model(embedded, name, stage, budget, num_speculative_tokens):
    """Twice in one engine: the second time the prefix cache has every prompt."""
    model, alone = embedded
    load = workload(name)
    options = {} if budget is None else {"max_num_batched_tokens": budget}
    options |= {"max_num_seqs": load.max_num_seqs, "num_slots": load.num_slots, "enable_prefix_caching": True}
    engine = iteration_engine(model, stage, num_speculative_tokens=num_speculative_tokens, **options)
    for _ in range(2):
        for output, item in zip(load.replay(engine), load.items, strict=True):
            assert output.token_ids == alone(output.prompt_token_ids, item.params), output.text
            assert output.finish_reason == "stop"
    assert measure(engine.trace).cached_tokens > 0
    assert budget is None or all(iteration.num_tokens <= budget for iteration in engine.trace.iterations)


def again(first: int, last: int) -> str:
    """A question whose answer mostly stands in the text before it."""
    return chat("Count from 5 to 35.") + " ".join(map(str, range(5, 36))) + chat(f"Count from {first} to {last}.")


@pytest.mark.parametrize("stage", ["paged", "chunked"])
@pytest.mark.parametrize("prefix", [False, True])
def test_guesses_that_come_true_save_steps_and_change_nothing(embedded, stage, prefix):
    model, alone = embedded
    params = SamplingParams(max_tokens=80)
    asks = [Ask(again(first, last), params, first) for first, last in ((7, 31), (10, 33), (6, 20), (12, 34))]
    iterations = []
    for num_speculative_tokens in (0, 4):
        options = {"num_slots": 400, "num_speculative_tokens": num_speculative_tokens, "enable_prefix_caching": prefix}
        engine = iteration_engine(model, stage, **options)
        for output in serve(engine, asks):
            assert output.token_ids == alone(output.prompt_token_ids, params), output.text
        iterations.append(len(engine.trace.iterations))
        assert (measure(engine.trace).tokens_per_step > 2) == (num_speculative_tokens > 0)
    assert iterations[1] < iterations[0] / 1.5


@pytest.mark.parametrize("stage", ["paged", "chunked"])
def test_a_seeded_request_says_the_same_in_any_company(embedded, stage):
    """Alone; in a crowd; with guesses; after it lost its memory."""
    model, _ = embedded
    ask = Ask(again(7, 15), SamplingParams(max_tokens=40, temperature=1.5, seed=5, ignore_eos=True))
    crowd = [Ask(chat(f"Count from {n} to 40."), SamplingParams(max_tokens=60), n / 4) for n in (1, 2, 5, 9)]
    greedy = replace(ask, params=replace(ask.params, temperature=0.0))
    alone, other = (serve(iteration_engine(model, "static", num_slots=512), [own])[0] for own in (ask, greedy))
    assert alone.token_ids != other.token_ids
    for num_speculative_tokens in (0, 4):
        options = {"num_slots": 184, "block_size": 8, "num_speculative_tokens": num_speculative_tokens}
        engine = iteration_engine(model, stage, **options)
        *_, output = serve(engine, [*crowd, replace(ask, arrival=6)])  # the newest: it is the one that is driven out
        assert output.token_ids == alone.token_ids
        assert any(event.kind == "preempt" and event.request_id == output.request_id for event in engine.trace.events)
        guesses = [span for i in engine.trace.iterations for span in i.spans if span.request_id == output.request_id]
        assert (max(len(span.tokens) for span in guesses) > 1) == (num_speculative_tokens > 0)


# ---- The comparison can fail: each of these faults must show ---------------------------------------------------------


def misread(monkeypatch, change):
    """Every request is read through a table that `change` has been at; its K/V are written where they belong."""
    right = Batch.tables.func
    monkeypatch.setattr(Batch, "tables", property(lambda self: [change(list(table)) for table in right(self)]))


def blocks_in_reverse(monkeypatch):
    misread(monkeypatch, lambda table: table[::-1])


def table_off_by_one(monkeypatch):
    """Positions are looked for one block further on than they were written."""
    misread(monkeypatch, lambda table: [*table[1:], table[0]])


def hash_of_the_block_alone(monkeypatch):
    """A block is found by its own tokens, whatever came before it."""
    real = CachedBlocks.chain

    def chain(self, request, n_blocks):
        size, hashes = self.block_size, []
        for index in range(n_blocks):
            part = type(request)("part", [0])
            part.tokens = request.tokens[index * size : (index + 1) * size]
            hashes += real(self, part, 1)
            self._chains.pop(part.request_id)
        return hashes

    monkeypatch.setattr(CachedBlocks, "chain", chain)
    monkeypatch.setattr(CachedBlocks, "check", lambda self: None)


def evicted_blocks_keep_their_hash(monkeypatch):
    def take(self, n_blocks):
        blocks = [self.free.popitem(last=False)[0] for _ in range(n_blocks)]
        for block in blocks:
            self.references[block] = 1
        return blocks

    monkeypatch.setattr(CachedBlocks, "take", take)
    monkeypatch.setattr(CachedBlocks, "check", lambda self: None)


def blocks_are_shared_too_early(monkeypatch):
    """The block that is being filled counts as full, if its tokens are known: those of a prompt in chunks.
    No token is wrong yet, since its owner writes before others read; `check` sees it."""
    real = CachedBlocks.file_full_blocks

    def file_full_blocks(self):
        for request in self.holders.values():
            request.computed += self.block_size
        real(self)
        for request in self.holders.values():
            request.computed -= self.block_size

    monkeypatch.setattr(CachedBlocks, "file_full_blocks", file_full_blocks)


def a_cached_block_stays_free(monkeypatch):
    """The next request that needs a block gets one that another has just taken over from the cache."""

    def admit(self, request, kept_free=0):
        self.file_full_blocks()
        cached = self.cached_prefix(request)
        if self.blocks(len(request.tokens)) - len(cached) > len(self.free) - kept_free:
            return False
        for block in cached:
            self.references[block] += 1
        self.holders[request.request_id] = request
        request.table, request.computed = cached, len(cached) * self.block_size
        return True

    monkeypatch.setattr(CachedBlocks, "admit", admit)
    monkeypatch.setattr(CachedBlocks, "check", lambda self: None)


def preempted_requests_keep_their_count(monkeypatch):
    """They go on where they were, over memory that another request has used."""
    real = CachedBlocks.admit

    def preempt(self, request):
        self.running.remove(request)
        self.memory.release(request)
        self.waiting.appendleft(request)

    def admit(self, request, kept_free=0):
        before = request.computed
        admitted = real(self, request, kept_free)
        request.computed = max(request.computed, before)
        return admitted

    monkeypatch.setattr(Paged, "preempt", preempt)
    monkeypatch.setattr(CachedBlocks, "admit", admit)
    for memory in (Blocks, CachedBlocks):
        monkeypatch.setattr(memory, "check", lambda self: None)


def rejected_guesses_stay(monkeypatch):
    monkeypatch.setattr(
        sampler, "accept", lambda request, chosen: [*request.tokens[-request.guesses :], chosen[request.guesses]]
    )


def wrong_guesses_are_not_taken_back(monkeypatch):
    real = Speculative.commit

    def commit(self, plan, tokens):
        ends = {request: request.computed + n_tokens for request, n_tokens in plan}
        events = real(self, plan, tokens)
        for request, end in ends.items():
            request.computed = end
        return events

    monkeypatch.setattr(Speculative, "commit", commit)


def noise_of_the_first_guess_for_all(monkeypatch):
    real = sampler.choose

    def choose(logits, wanted, *how):
        """The rows of a request get the noise of its first."""
        told = [
            (request, len(request.tokens) - request.guesses if request.params.temperature > 0 else length)
            for request, length in wanted
        ]
        return real(logits, told, *how)

    monkeypatch.setattr(sampler, "choose", choose)


def a_chunk_one_too_long(monkeypatch):
    real = Chunked.share
    monkeypatch.setattr(Chunked, "share", lambda *args: real(*args) + 1)


def a_full_hit_leaves_nothing_to_compute(monkeypatch):
    def cached_prefix(self, request):
        cached = []
        for key in self.chain(request, len(request.tokens) // self.block_size):
            if key not in self.block_of:
                break
            cached.append(self.block_of[key])
        return cached

    monkeypatch.setattr(CachedBlocks, "cached_prefix", cached_prefix)


def queue_jumpers(monkeypatch):
    """A request that comes goes to the front: unfair, and no token is wrong."""
    real = Scheduler.add

    def add(self, request):
        real(self, request)
        self.waiting.remove(request)
        self.waiting.appendleft(request)

    monkeypatch.setattr(Scheduler, "add", add)


FAULTS = [
    blocks_in_reverse,
    table_off_by_one,
    hash_of_the_block_alone,
    evicted_blocks_keep_their_hash,
    blocks_are_shared_too_early,
    a_cached_block_stays_free,
    preempted_requests_keep_their_count,
    rejected_guesses_stay,
    wrong_guesses_are_not_taken_back,
    noise_of_the_first_guess_for_all,
    a_chunk_one_too_long,
    a_full_hit_leaves_nothing_to_compute,
]


def wrong(model, alone, setups: list[Setup]) -> list[str]:
    """What goes wrong in the first setup in which a request gets other tokens than alone, in words; [] if none."""
    for setup in setups:
        try:
            engine, outputs = run(model, setup)
            assert_within_budget(engine, setup)
        except (TypeError, AttributeError, NameError):
            raise  # the fault no longer fits the code that it is planted in
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
        if [output.token_ids for output in outputs] != [alone(ask.prompt, ask.params) for ask in setup.asks]:
            return ["other tokens"]
    return []


@pytest.fixture(scope="module")
def setups(pair):
    """Setups whose right answers are known: some come from this very package, before a fault is planted in it."""
    rng = random.Random(11)
    drawn = [draw_setup(rng, stage) for stage in ("chunked", "paged") * 20]
    for ask in (ask for setup in drawn for ask in setup.asks):
        pair[1](ask.prompt, ask.params)
    return drawn


@pytest.mark.slow
def test_sound_setups_give_no_alarm(pair, setups):
    assert wrong(*pair, setups) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_engine_is_caught(pair, setups, monkeypatch, fault):
    fault(monkeypatch)
    assert wrong(*pair, setups) != []


@pytest.mark.slow
def test_an_unfair_engine_gives_the_same_tokens(pair, setups, monkeypatch):
    """The order of service is the schedulers' tests' affair: no order may change a token."""
    queue_jumpers(monkeypatch)
    assert wrong(*pair, setups) == []
