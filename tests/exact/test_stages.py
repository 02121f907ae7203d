"""Whatever the stage, the batch and the neighbours: the tokens are those that transformers gives each request alone,
by the textbook and with everything that is put in its place."""

import random
from dataclasses import replace

import pytest
import torch
from helpers.serve import Alone, Ask, iteration_engine, serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyengine import STAGES, SamplingParams, attention, load_model
from tinyengine.fast import attention as fast_attention
from tinyengine.fast import splits
from tinyengine.fast.kernels import cpu
from tinyengine.invariant import attention as invariant
from tinyengine.memory import Slots
from tinyengine.model.text import question
from tinyengine.oracle import Oracle
from tinyengine.qwen3 import Qwen3
from tinyengine.scheduler import Orca
from tinyengine.workload import chat, workload

EOS = tuple(range(20, 44))  # of 300 tokens: an output of the random model meets one after about a dozen
RNG = random.Random(1)
both_forms = pytest.mark.parametrize("fast", [pytest.param(True, id="fast"), pytest.param(False, id="textbook")])
LENGTHS = (1, 1, 2, 3, 5, 8, *RNG.choices(range(1, 61), k=18))
PROMPTS = [[RNG.randrange(300) for _ in range(length)] for length in LENGTHS]

device = pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], scope="module")(
    lambda request: request.param
)


@pytest.fixture(scope="module")
def pair(random_folder, device):
    """The random model and transformers on the same device, both told the same end-of-sequence tokens."""
    model, oracle = load_model(random_folder, device, torch.float32), Oracle(random_folder, device)
    model.eos_token_ids, oracle.eos_token_ids = EOS, list(EOS)
    return model, oracle


@pytest.fixture(scope="module")
def alone(pair):
    return Alone(pair[1], EOS)


@pytest.fixture(scope="module")
def embedded(tiny, device):
    if device == "cpu":
        return tiny, Oracle(tiny.folder)
    return load_model("tiny", device, torch.float32), Oracle(tiny.folder, device)


def staggered() -> list[Ask]:
    """Unequal prompts and limits; some come while others run, two at once, one long after the rest."""
    rng = random.Random(3)
    arrivals = [0, 0, 0, 0, 1, 2, 2, 3.5, 7, 9, 14, 200]
    return [
        Ask(prompt, SamplingParams(max_tokens=rng.choice([1, 2, 7, 16, 24]), ignore_eos=index % 4 == 0), arrival)
        for index, (prompt, arrival) in enumerate(zip(PROMPTS[3:], arrivals, strict=False))
    ]


@both_forms
@pytest.mark.parametrize("stage", STAGES)
def test_requests_that_join_and_leave_get_the_tokens_of_each_alone(pair, stage, fast):
    model, oracle = pair
    jobs = staggered()
    engine = iteration_engine(model, stage, max_num_seqs=3, num_slots=160, fast=fast)
    outputs = serve(engine, jobs)
    for job, output in zip(jobs, outputs, strict=True):
        assert output.token_ids == oracle.generate(job.prompt, job.params)
    # the workload is the one that it is meant to be
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    assert any(1 < len(o.token_ids) < j.params.max_tokens for o, j in zip(outputs, jobs, strict=True))
    assert any(engine.trace.queue_lengths())
    reserved = {key: held.reserved for i in engine.trace.iterations for key, held in i.memory.items()}
    assert sum(reserved.values()) > 2 * 160, "no slot was used twice"


workloads = st.lists(
    st.builds(
        lambda index, most, ignore, stops, arrival: Ask(
            PROMPTS[index], SamplingParams(max_tokens=most, ignore_eos=ignore, stop_token_ids=stops), arrival
        ),
        st.integers(0, len(PROMPTS) - 1),
        st.integers(1, 24),
        st.booleans(),
        st.lists(st.integers(0, 299), max_size=12),
        st.one_of(st.just(0.0), st.floats(0, 30)),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("stage", STAGES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=workloads, max_num_seqs=st.integers(1, 6), spare=st.integers(0, 300), fast=st.booleans())
def test_any_workload_gives_the_tokens_of_each_alone(pair, alone, stage, jobs, max_num_seqs, spare, fast):
    needed = max(len(job.prompt) + job.params.max_tokens for job in jobs)
    num_slots = -(-(needed + spare) // 16) * 16  # whole blocks, for the stages that have them
    engine = iteration_engine(pair[0], stage, max_num_seqs=max_num_seqs, num_slots=num_slots, fast=fast)
    for job, output in zip(jobs, serve(engine, jobs), strict=True):
        assert output.token_ids == alone(job.prompt, job.params)


@both_forms
@pytest.mark.parametrize("stage", STAGES)
def test_the_course_workload_on_the_embedded_model(embedded, stage, fast):
    model, oracle = embedded
    load = workload("course")
    sizes = dict(max_num_seqs=load.max_num_seqs, num_slots=load.num_slots)
    engine = iteration_engine(model, stage, **sizes, fast=fast)
    for output, item in zip(load.replay(engine), load.items, strict=True):
        assert output.token_ids == oracle.generate(output.prompt_token_ids, item.params), output.text
        assert output.finish_reason == "stop"


@both_forms
@pytest.mark.parametrize("stage", STAGES)
def test_long_and_short_prompts_on_the_embedded_model(embedded, stage, fast):
    model, oracle = embedded
    rng = random.Random(5)
    lookup, _ = question("lookup", rng, n=120)
    jobs = [
        Ask(chat("Count from 3 to 16."), SamplingParams(max_tokens=50)),
        Ask(chat(lookup), SamplingParams(max_tokens=6), arrival=3),
        Ask([rng.randrange(4, 1024) for _ in range(33)], SamplingParams(max_tokens=20, ignore_eos=True), arrival=4),
        Ask("Once upon a time", SamplingParams(max_tokens=30, ignore_eos=True), arrival=4),
        Ask(chat("What is 23 + 45?"), SamplingParams(max_tokens=16), arrival=25),
    ]
    outputs = serve(iteration_engine(model, stage, max_num_seqs=3, num_slots=1024, fast=fast), jobs)
    for output, job in zip(outputs, jobs, strict=True):
        assert output.token_ids == oracle.generate(output.prompt_token_ids, job.params), output.text


class InChunks(Orca):
    """Computes at most five tokens of a request at a time."""

    def schedule(self):
        self._admit()
        return [(request, min(request.gap, 5)) for request in self.running]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("contiguous", [True, False])
@both_forms
def test_prompts_in_chunks_give_the_same_tokens(pair, alone, stage, contiguous, fast):
    """A learner's scheduler, not ours, over one piece of the arena or scattered slots: the counter alone carries it."""
    jobs = staggered()
    scheduler = InChunks(Slots(160, contiguous), max_num_seqs=3)
    engine = iteration_engine(pair[0], stage, scheduler=scheduler, fast=fast)
    assert [o.token_ids for o in serve(engine, jobs)] == [alone(job.prompt, job.params) for job in jobs]
    chunks = [span for i in engine.trace.iterations for span in i.spans if engine.trace.phase(span) == "chunk"]
    assert len(chunks) > 10
    assert not any(span.tokens for span in chunks if span.end < prompt_length(engine, span))
    if not contiguous:
        assert any(len(h.ranges) > 1 for i in engine.trace.iterations for h in i.memory.values())


def prompt_length(engine, span) -> int:
    return engine.trace.requests[span.request_id].num_prompt_tokens


# ---- The comparison can fail: each of these faults must show as a wrong token ----------------------------------------


def late_position(monkeypatch):
    """A decode step one position too late; all positions one too late would be the same distances, and no fault."""
    real = Qwen3.forward

    def forward(self, tokens, positions, *how):
        last = positions >= positions.max()
        return real(self, tokens, positions + last.long(), *how)

    monkeypatch.setattr(Qwen3, "forward", forward)


def foreign_slot(monkeypatch):
    """K/V of the first row of an iteration are written where those of the last row belong, and the other way round."""

    def plant(kind):
        real = kind.write

        def write(self, layer, slot_mapping, k, v):
            real(self, layer, slot_mapping.flip(0) if len(slot_mapping) == 2 else slot_mapping, k, v)

        monkeypatch.setattr(kind, "write", write)

    plant(attention.KVCache)
    plant(fast_attention.LoopCache)


def blind_to_newest_key(monkeypatch):
    """Context one token too short: no query sees its own key, unless it has no other."""
    real, real_query, real_tile = attention.F.scaled_dot_product_attention, invariant.one_query, splits.attend_tile

    def sdpa(q, k, v, attn_mask=None, is_causal=False, **options):
        n, length = q.shape[-2], k.shape[-2]
        if is_causal:
            attn_mask = torch.ones(n, length, dtype=torch.bool).tril()
        elif attn_mask is None:  # each row is a head of one query, which sees all keys
            attn_mask = torch.ones(n, length, dtype=torch.bool)
        elif attn_mask.is_floating_point():
            attn_mask = attn_mask == 0
        newest = attn_mask.sum(-1, keepdim=True) - 1
        return real(q, k, v, attn_mask=attn_mask.scatter(-1, newest, newest == 0), **options)

    def one_query(q, keys, values, split=invariant.SPLIT):
        n = max(1, len(keys) - 1)
        return real_query(q, keys[:n], values[:n], split)

    def attend_tile(q, keys, values, tile):
        hidden = torch.nn.functional.pad(tile.hidden[..., 1:], (0, 1), value=splits.LOWEST)
        return real_tile(q, keys, values, replace(tile, hidden=hidden, _rectangle=None))

    see_otherwise(monkeypatch, lambda seen, length: (seen - 1).clamp(min=1))
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", sdpa)
    monkeypatch.setattr(invariant, "one_query", one_query)
    monkeypatch.setattr(splits, "attend_tile", attend_tile)


def no_mask(monkeypatch):
    """Every query sees every key, so a prompt's tokens see those behind them."""
    real, real_tile = attention.F.scaled_dot_product_attention, splits.attend_tile

    def sdpa(q, k, v, attn_mask=None, is_causal=False, **options):
        return real(q, k, v, **options)

    def attend(self, batch):
        """The invariant definition hides keys by leaving them out; here each query is given all of its request's."""
        ends = [length - 1 for length, count in zip(batch.lengths, batch.counts) for _ in range(count)]
        return real_attend(self, replace(batch, positions=torch.tensor(ends)))

    real_attend = invariant.InvariantAttention.__call__
    see_otherwise(monkeypatch, lambda seen, length: length)
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", sdpa)
    monkeypatch.setattr(invariant.InvariantAttention, "__call__", attend)

    def unseen(tile):
        return replace(tile, hidden=torch.zeros_like(tile.hidden), _rectangle=None)

    monkeypatch.setattr(splits, "attend_tile", lambda q, k, v, tile: real_tile(q, k, v, unseen(tile)))


def see_otherwise(monkeypatch, change):
    """In the compiled loops, a query sees as many keys as `change` makes of how many it should see, and of how many
    its request has."""
    if cpu.why_not(torch.device("cpu"), torch.float32):
        return
    from tinyengine.fast.kernels.cpu import loops

    real = loops.paged_attention

    def paged_attention(q, keys, values, cu_seqlens_q, seqused_k, block_table, *, most_queries, out):
        counts = cu_seqlens_q.diff()
        owner = torch.repeat_interleave(counts)  # [rows], of each row
        length = seqused_k[owner]
        seen = length - cu_seqlens_q[1:][owner] + torch.arange(len(q)) + 1
        rows = (counts[owner] <= most_queries).nonzero()[:, 0]  # each is a request of its own
        where = torch.arange(len(rows) + 1).int(), change(seen, length)[rows].int(), block_table[owner[rows]]
        out[rows] = real(q[rows].contiguous(), keys, values, *where)

    monkeypatch.setattr(loops, "paged_attention", paged_attention)


@both_forms
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", [late_position, foreign_slot, blind_to_newest_key, no_mask])
def test_a_broken_engine_is_caught(random_model, random_oracle, monkeypatch, stage, fault, fast):
    jobs = [Ask(prompt, SamplingParams(max_tokens=16, ignore_eos=True)) for prompt in (PROMPTS[6], PROMPTS[4])]
    right = [random_oracle.generate(job.prompt, job.params) for job in jobs]
    options = dict(num_slots=256, fast=fast)
    if fast:
        options["compiled_decode"] = False  # else most steps would call nothing that can be replaced
    sound = [o.token_ids for o in serve(iteration_engine(random_model, stage, **options), jobs)]
    fault(monkeypatch)
    broken = [o.token_ids for o in serve(iteration_engine(random_model, stage, **options), jobs)]
    assert sound == right != broken


def test_a_mask_aligned_to_the_top_left_is_caught_in_chunks(random_model, random_oracle, monkeypatch):
    """Whole prompts do not show it: only a chunk behind older context does."""

    real = attention.F.scaled_dot_product_attention
    job = Ask(max(PROMPTS, key=len), SamplingParams(max_tokens=16, ignore_eos=True))
    right = random_oracle.generate(job.prompt, job.params)

    def top_left(q, k, v, attn_mask, **options):
        return real(q, k, v, is_causal=q.shape[-2] > 1, **options)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", top_left)
    whole = serve(iteration_engine(random_model, "selective", num_slots=256, fast=False), [job])
    chunks = serve(iteration_engine(random_model, "selective", scheduler=InChunks(Slots(256)), fast=False), [job])
    assert whole[0].token_ids == right != chunks[0].token_ids


def test_the_oracle_heeds_its_parameters(random_folder, random_oracle):
    """Without end of sequence it runs to max_tokens, and with it the output ends in that token."""
    free = random_oracle.generate(PROMPTS[7], SamplingParams(max_tokens=20, ignore_eos=True))
    oracle = Oracle(random_folder)
    oracle.eos_token_ids = [free[6]]
    assert len(free) == 20
    assert oracle.generate(PROMPTS[7], SamplingParams(max_tokens=20, ignore_eos=True)) == free
    assert oracle.generate(PROMPTS[7], SamplingParams(max_tokens=20)) == free[: free.index(free[6]) + 1]
