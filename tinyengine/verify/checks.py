"""The sixteen invariances. Each compares the bits of logits and K/V entries, never tokens, with each request alone."""

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from tinyengine.invariant.envelope import AWKWARD, beside_later_tokens, in_company, row_wise
from tinyengine.noise import gumbel_noise
from tinyengine.request import Request, SamplingParams
from tinyengine.sampler import choose
from tinyengine.verify.watch import Case, Count, Scenario, Subject, compare

LENGTHS = (1, 5, 15, 16, 17, 127, 128, 129)  # on both sides of every block and split border
SIZES = (2, 3, 5, 8, 17, 33, 52)
BUDGETS = (1, 7, 16, 37, 64)  # none but the last is aligned to anything
NEW = 8  # tokens that a request generates, most of the time


def cases(subject: Subject, lengths=LENGTHS, new: int = NEW, arrivals=(), seed: int = 0, **params) -> list[Case]:
    """Requests with random prompts: the same length always means the same prompt."""
    vocab = subject.model.config.vocab_size
    params = SamplingParams(max_tokens=new, ignore_eos=True, **params)
    prompts = [tuple(random.Random(f"{seed}/{n}").choices(range(vocab), k=n)) for n in lengths]
    return [Case(prompt, params, dict(enumerate(arrivals)).get(i, 0.0)) for i, prompt in enumerate(prompts)]


def each(subject: Subject, scenarios) -> Count:
    total = Count()
    for scenario in scenarios:
        total += subject.against_alone(scenario)
    return total


def run_to_run(subject: Subject) -> Count:
    return each(subject, [Scenario([case]) for case in cases(subject, (17, 129, 200)) for _ in range(2)])


def batch_size(subject: Subject) -> Count:
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(max(SIZES))]
    return each(subject, [Scenario(cases(subject, lengths[-n:], new=4)) for n in SIZES])


def place_in_batch(subject: Subject) -> Count:
    work = cases(subject, (5, 17, 128, 129, 130))
    return each(subject, [Scenario(work[i:] + work[:i]) for i in range(len(work))] + [Scenario(work[::-1])])


def neighbours(subject: Subject) -> Count:
    """Other neighbours in the engine, rows of NaN and infinity beside a row in each operator, and such tokens behind
    a query in attention."""
    work = cases(subject, (129,))
    others = [cases(subject, lengths, seed=seed) for lengths in ((128,), (1, 200), (17,) * 6) for seed in (1, 2)]
    return (
        each(subject, [Scenario(other[:1] + work + other[1:]) for other in others])
        + _company(subject, AWKWARD)
        + _later_tokens(subject)
    )


def joining_and_leaving(subject: Subject) -> Count:
    lengths, arrivals = (130, 5, 128, 16, 200, 1, 129, 17), (0, 0, 2, 3, 5, 6, 9, 9)
    staggered = cases(subject, lengths, arrivals=arrivals)
    ends = [replace(case, params=replace(case.params, max_tokens=1 + 5 * i % 13)) for i, case in enumerate(staggered)]
    return each(subject, [Scenario(ends, {"max_num_seqs": most}) for most in (3, 8)])


def dummy_rows(subject: Subject) -> Count:
    work = cases(subject, (1, 17, 129))
    scenarios = [Scenario(batch, dummy_rows=rows) for rows in (1, 2, 5, 29) for batch in (work, work[:1], work[2:])]
    return each(subject, scenarios) + _company(subject, (2, 5, 9, 33), fills=(0.0,))


def chunk_borders(subject: Subject) -> Count:
    work = cases(subject, (17, 129, 201))
    alone = [Scenario([case], {"max_num_batched_tokens": budget}) for case in work for budget in BUDGETS]
    together = [Scenario(work, {"max_num_batched_tokens": budget}) for budget in BUDGETS]
    return each(subject, alone + together)


def mixed_steps(subject: Subject) -> Count:
    """Prompts computed beside decodes, and decodes that verify guesses."""
    work = cases(subject, (5, 130, 17, 200, 128), arrivals=(0, 1, 2, 3, 4), new=16)
    repeated = tuple(work[0].prompt * 6)  # its continuation can be guessed
    guessing = [replace(work[1], arrival=2.0), Case(repeated, replace(work[0].params, max_tokens=32))]
    return each(
        subject,
        [
            Scenario(work, {"max_num_batched_tokens": 48}, shows=_mixes),
            Scenario(guessing, {"num_speculative_tokens": 3, "max_num_batched_tokens": 48}, shows=_guesses),
        ],
    )


def preemption(subject: Subject) -> Count:
    work = cases(subject, (120, 33, 127, 17, 128), new=24)
    options = [{"num_slots": slots, "max_num_batched_tokens": budget} for slots in (160, 176) for budget in (32, 4096)]
    return each(subject, [Scenario(work, option, shows=_preempts) for option in options])


def prefix_cache(subject: Subject) -> Count:
    """Requests that begin as another did: after it has gone, while it runs, and for a part of it only."""
    (first,) = cases(subject, (200,))
    rest = cases(subject, (30,), seed=1)[0].prompt
    parts = [replace(first, prompt=first.prompt[:n] + rest, arrival=at) for n, at in ((70, 1), (130, 1), (16, 14))]
    work = [first, *parts, replace(first, arrival=14.0), replace(first, arrival=15.0)]
    options = [{"enable_prefix_caching": True, "block_size": size} for size in (4, 16, 64)]
    return each(subject, [Scenario(work, option, shows=_shares) for option in options])


def placement(subject: Subject) -> Count:
    def shuffle(seed: int):
        def prepare(engine):
            random.Random(seed).shuffle(engine.memory.free)

        return prepare

    work = cases(subject, (17, 65, 200))
    return each(subject, [Scenario(batch, prepare=shuffle(seed)) for seed in range(3) for batch in (work, work[1:2])])


def block_size(subject: Subject) -> Count:
    work = cases(subject, (17, 65, 200))
    return each(subject, [Scenario([case], {"block_size": size}) for size in (1, 4, 16, 64, 256) for case in work])


def poisoned_arena(subject: Subject) -> Count:
    """Whatever is free holds NaN, at the start and again whenever a request has left."""

    def poison(engine):
        cache, free = engine.attention.cache, list(engine.memory.free)
        cache.keys[:, free], cache.values[:, free] = torch.nan, torch.nan

    work = cases(subject, (1, 16, 127, 130), arrivals=(0, 0, 4, 9))
    options = {"num_slots": 400}
    return each(subject, [Scenario(batch, options, prepare=poison, each_step=poison) for batch in (work, work[3:])])


def decode_is_prefill(subject: Subject) -> Count:
    """A request alone, and its text so far as the prompt of another: the decode step's row against the prompt's."""
    count = Count()
    for case in cases(subject, (5, 127, 130)):
        alone = subject.alone(case)
        for n in range(1, NEW):
            prompt = tuple(alone.tokens[: len(case.prompt) + n])
            prefilled = subject.run(Scenario([Case(prompt, replace(case.params, max_tokens=1))])).seen["r0"]
            compare(prefilled, alone, count)
            count.cases += 1
    return count


def ties(subject: Subject) -> Count:
    """Exact ties go to the lowest id, in any row; every token of a run is the lowest id of its row's best logits."""
    vocab, dtype = subject.model.config.vocab_size, subject.model.dtype
    count = Count()
    for n in (1, 2, 5, 33):
        logits = torch.zeros(n, vocab, dtype=dtype)
        lowest = torch.tensor([(37 * row + 1) % (vocab - 1) for row in range(n)])
        logits[torch.arange(n), lowest] = 1.0
        logits[:, vocab - 1] = 1.0
        request = Request("r", [0])
        count.compare(choose(logits, [(request, 1)] * n).double(), lowest.double())
        count.cases += n
    for case in cases(subject, (17, 130)):
        alone = subject.alone(case)
        for text, row in alone.logits:
            best = (row == row.amax()).nonzero()[0, 0]
            count.compare(best.double(), torch.tensor(alone.tokens[len(text)]).double())
        count.cases += 1
    return count


def sampling_noise(subject: Subject) -> Count:
    """Drawn tokens alone and in a batch, the noise of a row alone and in company, and no generator touched."""
    drawn = cases(subject, (5, 17, 128, 129), temperature=0.9, top_p=0.9, top_k=200)
    drawn = [replace(case, params=replace(case.params, seed=number)) for number, case in enumerate(drawn)]
    state = torch.get_rng_state()
    count = each(subject, [Scenario(drawn), Scenario(drawn[::-1], {"max_num_batched_tokens": 37})])
    count.compare(torch.get_rng_state().double(), state.double())
    vocab = subject.model.config.vocab_size
    seeds, positions = torch.arange(7)[:, None], torch.arange(100, 107)[:, None]
    together = gumbel_noise(seeds, positions, vocab)
    for row in range(7):
        count.compare(together[row], gumbel_noise(seeds[row : row + 1], positions[row : row + 1], vocab)[0])
        count.cases += 1
    return count


CHECKS: dict[str, Callable[[Subject], Count]] = {
    "run to run": run_to_run,
    "batch size": batch_size,
    "place in the batch": place_in_batch,
    "neighbours, NaN and infinity": neighbours,
    "neighbours join and leave": joining_and_leaving,
    "padding and dummy rows": dummy_rows,
    "chunk borders": chunk_borders,
    "prompts beside decodes": mixed_steps,
    "preemption and recompute": preemption,
    "prefix cache": prefix_cache,
    "placement of blocks": placement,
    "block size": block_size,
    "NaN in free blocks": poisoned_arena,
    "decode row is prompt row": decode_is_prefill,
    "ties": ties,
    "sampling": sampling_noise,
}


@torch.inference_mode()
def _company(subject: Subject, sizes, **options) -> Count:
    """Each operator of the subject's, rows alone and in company."""
    count = Count()
    operators = subject.engine(num_slots=256).operators
    for _, operator, width in row_wise(subject.model, operators):
        for got, wanted in in_company(operator, width, subject.model.norm.weight, sizes, **options):
            count.compare(got, wanted)
            count.cases += 1
    return count


@torch.inference_mode()
def _later_tokens(subject: Subject) -> Count:
    """The subject's attention, with a token of NaN or infinity behind a query."""
    count, model = Count(), subject.model
    for got, wanted in beside_later_tokens(subject.make_attention, model.config, model.device, model.dtype):
        count.compare(got, wanted)
        count.cases += 1
    return count


def _mixes(engine) -> bool:
    phases = [{engine.trace.phase(span) for span in iteration.spans} for iteration in engine.trace.iterations]
    return any("decode" in each and len(each) > 1 for each in phases)


def _guesses(engine) -> bool:
    return any(span.draft for iteration in engine.trace.iterations for span in iteration.spans)


def _preempts(engine) -> bool:
    return any(event.kind == "preempt" for event in engine.trace.events)


def _shares(engine) -> bool:
    return sum(event.cached for event in engine.trace.events if event.cached) > 100
