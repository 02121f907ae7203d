"""Decode steps through recorded graphs give the tokens that the engine gives without them, whatever the batch: a
recorder stands in for CUDA, which runs what was recorded and nothing else."""

import random
from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch
from helpers.kernels import interpreted
from helpers.recorder import Recordable, with_graphs
from helpers.serve import Ask, assert_nothing_left, iteration_engine, serve

from tinyengine import Engine, SamplingParams
from tinyengine.attention import KVCache, PagedAttention
from tinyengine.fast import choose, graphs
from tinyengine.fast.attention import ByTorch, ByTriton


def asks(n=13, seed=0, longest=30, **params):
    rng = random.Random(seed)
    return [
        Ask(
            [rng.randrange(6, 300) for _ in range(rng.randint(1, 40))],
            SamplingParams(max_tokens=rng.randint(2, longest), **{"ignore_eos": index % 2 == 0, **params}),
            arrival=float(index if index > 5 else 0),
        )
        for index in range(n)
    ]


def pure_decodes(trace):
    return [
        iteration
        for iteration in trace.iterations
        if all(span.n_tokens == 1 and len(span.tokens) == 1 for span in iteration.spans)
    ]


def compare(model, work, stage="chunked", **options):
    """Runs the work without graphs and with them, and returns the latter's engine."""
    options = {"max_num_seqs": 11, "num_slots": 2048, **options}
    plain = iteration_engine(model, stage, **options)
    right = [output.token_ids for output in serve(plain, work)]
    engine = with_graphs(iteration_engine(model, stage, **options))
    assert [output.token_ids for output in serve(engine, work)] == right
    decodes = pure_decodes(engine.trace)
    assert engine.forward.capture.plays == len(decodes) > 0
    assert [one.spans for one in engine.trace.iterations] == [one.spans for one in plain.trace.iterations]
    for one in engine.trace.iterations:
        rows = next(size for size in engine.forward.sizes if size >= len(one.spans))
        assert one.padding == (rows - len(one.spans) if one in decodes else 0)
    return engine


def test_sizes_are_those_of_the_field_and_end_with_the_largest_batch():
    assert graphs.sizes(1) == [1] and graphs.sizes(3) == [1, 2, 3] and graphs.sizes(8) == [1, 2, 4, 8]
    assert graphs.sizes(32) == [1, 2, 4, 8, 16, 24, 32] and graphs.sizes(33) == [1, 2, 4, 8, 16, 24, 32, 33]


def test_tokens_are_the_same_at_every_batch_size(random_model):
    engine = compare(random_model, asks())
    batches = {len(one.spans) for one in pure_decodes(engine.trace)}
    assert len(batches) > 6 and {rows for rows, _ in engine.forward.graphs} == {
        next(size for size in (1, 2, 4, 8, 11) if size >= n) for n in batches
    }


@pytest.mark.parametrize(
    "options",
    [
        {"stage": "paged"},
        {"max_num_batched_tokens": 13, "block_size": 4},
        {"max_num_batched_tokens": 3, "max_num_seqs": 4},  # a chunk of one token is no decode
        {"num_slots": 160, "block_size": 8},  # preemption
        {"num_slots": 512, "enable_prefix_caching": True, "block_size": 4},
        {"num_speculative_tokens": 3},  # a step with guesses is no pure decode, one without is
        {"policy": "priority", "num_slots": 200, "block_size": 2},
    ],
    ids=str,
)
def test_tokens_are_the_same_under_every_scheduler(random_model, options):
    work = asks(10, seed=1)
    work += [Ask(ask.prompt * 2, ask.params, arrival=20.0 + index) for index, ask in enumerate(work)]  # shared prefixes
    engine = compare(random_model, work, **options)
    kinds = {event.kind for event in engine.trace.events}
    assert "preempt" in kinds if options.get("num_slots") == 160 else True
    if "enable_prefix_caching" in options:
        assert any(event.cached for event in engine.trace.events)
    if "num_speculative_tokens" in options:
        assert any(span.draft for one in engine.trace.iterations for span in one.spans)


def test_a_table_that_outgrows_its_bucket_gets_the_next_one(random_model, monkeypatch):
    monkeypatch.setattr(graphs, "LEAST_CONTEXT", 16)
    engine = compare(random_model, [Ask([7, 8, 9], SamplingParams(max_tokens=70, ignore_eos=True))], block_size=4)
    assert sorted(engine.forward.graphs) == [(1, 4), (1, 8), (1, 16), (1, 32)]


def test_drawn_and_penalised_tokens_are_the_same(random_model):
    compare(random_model, drawn_jobs())


def drawn_jobs():
    return [
        Ask(ask.prompt, SamplingParams(max_tokens=12, temperature=n % 2, seed=n, repetition_penalty=1.0 + n / 10))
        for n, ask in enumerate(asks(6))
    ]


def test_empty_rows_of_a_bucket_touch_no_slot_but_their_own(random_model):
    """A batch of 3 in a bucket of 4, after one of 4: what the fourth left behind must not be written once more."""
    engine = with_graphs(iteration_engine(random_model, "chunked", max_num_seqs=4, num_slots=256, block_size=16))
    for n in range(4):
        engine.add_request([10 + n, 20, 30], SamplingParams(max_tokens=4 if n == 0 else 20, ignore_eos=True))
    gone = None
    while engine.has_unfinished():
        gone = gone or list(engine.scheduler.running[0].table if engine.scheduler.running else [])
        engine.step()
        held = [block for record in engine.outputs.open.values() for block in record.request.table]
        if len(engine.outputs.open) == 3 and gone[0] not in held:
            engine.attention.cache.keys[:, gone[0]] = torch.nan  # no request holds it now
    cache = engine.attention.cache
    assert {rows for rows, _ in engine.forward.graphs} == {4}
    assert cache.keys[:, gone[0]].isnan().all(), "a request that has ended still wrote"
    assert not cache.keys[:, -1, 0].isnan().any(), "the empty row wrote nowhere: the test looks at nothing"
    assert_nothing_left(engine)


def test_two_batches_in_a_row_each_get_their_own_result(random_model):
    """The result lies in a buffer: it must have been used up before the next step, and must not be an older one."""
    engine = with_graphs(iteration_engine(random_model, "chunked", max_num_seqs=2, num_slots=256))
    seen = []
    logits = engine.logits

    def watch(batch):
        seen.append(logits(batch))
        return seen[-1]

    engine.logits = watch
    engine.generate([[7, 8, 9], [9, 8, 7]], SamplingParams(max_tokens=6, ignore_eos=True))
    assert all(not one.isnan().any() for one in seen)
    assert not any(torch.equal(one, other) for one, other in pairwise(seen) if one.shape == other.shape)


def test_an_aborted_request_and_a_failing_model_leave_the_graphs_as_they_are(random_model):
    work = asks(4, longest=12)
    right = [output.token_ids for output in serve(iteration_engine(random_model, "chunked", num_slots=512), work)]
    engine = with_graphs(iteration_engine(random_model, "chunked", num_slots=512))
    ids = [engine.add_request(ask.prompt, ask.params) for ask in [*work, work[0]]]
    forward, calls = engine.forward, iter([0, 0, 0, 1, 0, 0, 1])

    def failing(batch):
        if next(calls, 0):
            raise RuntimeError("the GPU is gone")
        return forward(batch)

    engine.forward = failing
    for step in range(100):
        if step == 3:
            engine.abort_request(ids[-1])
        try:
            engine.step()
        except RuntimeError:
            continue
        if not engine.has_unfinished():
            break
    assert [engine.outputs[request_id].token_ids for request_id in ids[:-1]] == right
    assert_nothing_left(engine)


# the choice of an attention, and what is refused


def test_on_a_cpu_there_are_no_graphs_and_asking_for_them_is_an_error(random_model):
    for choice in (None, False):
        assert not isinstance(Engine(random_model, num_slots=64, cuda_graphs=choice).forward, graphs.DecodeGraphs)
    with pytest.raises(ValueError, match="cuda_graphs is True, but the model is on cpu"):
        Engine(random_model, num_slots=64, cuda_graphs=True)
    with pytest.raises(ValueError, match="cuda_graphs is 1, but must be True or False"):
        Engine(random_model, num_slots=64, cuda_graphs=1)
    assert graphs.why_not(torch.device("cuda"), ByTriton) is None
    assert "calls torch for each request" in graphs.why_not(torch.device("cuda"), ByTorch)
    assert "calls torch for each request" in graphs.why_not(torch.device("cuda"), None)  # left as it was


def test_a_backend_is_taken_by_name_or_refused_in_a_sentence(random_model):
    assert Engine(random_model, num_slots=64).attention.backend == ("numba" if find_spec("numba") else "torch")
    assert Engine(random_model, num_slots=64, attention_backend="torch").attention.backend == "torch"
    for backend, sentence in [
        ("triton", "attention_backend is 'triton', but the model is on cpu"),
        ("varlen", "attention_backend is 'varlen', but "),
        ("flash", "attention_backend is 'flash', but the backends are auto, torch, numba, triton, varlen"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            Engine(random_model, num_slots=64, attention_backend=backend)
    with pytest.raises(ValueError, match="attention_backend is 'torch', but Padded computes in one way only"):
        Engine(random_model, "static", num_slots=64, attention_backend="torch")
    with pytest.raises(ValueError, match="split_kv is False, but PerRequest computes in one way only"):
        Engine(random_model, "selective", num_slots=64, split_kv=False)
    with pytest.raises(ValueError, match="split_kv is 'no', but must be True or False"):
        Engine(random_model, num_slots=64, split_kv="no")


@pytest.mark.parametrize(
    ("dtype", "head_dim", "backend"),
    [
        (torch.bfloat16, 128, "triton"),
        (torch.float32, 16, "triton"),
        (torch.float64, 64, "torch"),
        (torch.float16, 8, "torch"),
        (torch.float16, 264, "torch"),
    ],
)
def test_on_cuda_the_backend_is_triton_where_the_kernel_takes_the_model(dtype, head_dim, backend, triton):
    class Arena:
        device = torch.device("cuda")
        shape = (1, 16, 16, 2, head_dim)

    Arena.dtype = dtype
    assert choose(PagedAttention, Arena, "auto").backend == backend
    if backend == "torch":
        with pytest.raises(ValueError, match=f"triton', but .*({head_dim}|float64)"):
            choose(PagedAttention, Arena, "triton")


@pytest.mark.parametrize(
    ("requests", "width", "counts", "split_kv", "splits"),
    [
        (1, 64, [1], True, True),
        (1, 64, [1], False, False),
        (1, 16, [1], True, False),  # no longer than one split
        (1, 17, [1], True, True),
        (16, 64, [1], True, True),  # 16 x 8 heads: 128 programs for 132 multiprocessors
        (17, 64, [1], True, False),
        (2, 64, [1, 2], True, False),  # no decode
    ],
)
def test_keys_are_split_where_few_long_ones_decode(requests, width, counts, split_kv, splits, monkeypatch):
    monkeypatch.setattr("tinyengine.fast.attention._multiprocessors", lambda device: 132)

    class Config:
        num_hidden_layers, num_key_value_heads, head_dim = 1, 8, 16

    class Decode:
        block_table, block_size = torch.zeros(requests, width), 16

    Decode.counts = counts
    attention = ByTriton.__new__(ByTriton)  # no kernel is needed to choose its options
    attention.cache, attention.split_kv = KVCache(Config, 2, 16, torch.device("cpu"), torch.float32), split_kv
    options = attention.options(Decode)
    assert options == ({"split_size": 256} if splits else {})


@pytest.mark.parametrize("multiprocessors", [1, 132], ids=["whole", "split"])
def test_the_kernels_behind_the_graphs_give_the_tokens_of_torch(random_model, triton, monkeypatch, multiprocessors):
    """The CUDA path as it is, from the layout to the kernels' arguments, with kernels that Triton interprets."""
    kernels = interpreted()
    from tinyengine.fast.kernels.cuda import paged as module

    used = []

    def watched(*args, **options):
        used.append(options.get("split_size"))
        return kernels.paged_attention(*args, **options)

    monkeypatch.setattr(module, "paged_attention", watched)
    monkeypatch.setattr(module, "write_kv", kernels.write_kv)
    monkeypatch.setattr(module, "check_arena", kernels.check_arena)
    monkeypatch.setattr("tinyengine.fast.attention._multiprocessors", lambda device: multiprocessors)
    monkeypatch.setattr("tinyengine.fast.attention.SPLIT_SIZE", 64)
    monkeypatch.setattr(graphs, "LEAST_CONTEXT", 16)

    def rerun(run):
        out = run()

        def replay():
            out.copy_(run())

        return replay, out

    work = [Ask([7] * 61 + [9, 8], SamplingParams(max_tokens=5)), Ask([20, 30], SamplingParams(max_tokens=3))]
    right = serve(iteration_engine(random_model, "chunked", num_slots=256), work)
    engine = with_graphs(iteration_engine(random_model, "chunked", num_slots=256), rerun, ByTriton)
    assert [one.token_ids for one in serve(engine, work)] == [one.token_ids for one in right]
    assert len(engine.forward.graphs) >= 3 and (64 in used) == (multiprocessors == 132) and None in used


def test_the_recorder_refuses_what_a_graph_cannot_hold(random_model):
    """A fake that takes anything proves nothing."""

    class Reading(Recordable):
        def __call__(self, batch):
            inner = super().__call__(batch)
            return lambda layer, q, k, v: inner(layer, q, k, v) * (batch.seqused_k.sum().item() > 0)

    engine = with_graphs(iteration_engine(random_model, "chunked", num_slots=64), attention=Reading)
    with pytest.raises(AssertionError, match="no graph can hold it"):
        engine.generate([[7, 8]], SamplingParams(max_tokens=4))
