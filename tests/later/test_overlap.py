"""One step of overlap changes when tokens come, and nothing else: a device that delivers late stands in for CUDA."""

import json
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from helpers.recorder import with_graphs
from helpers.serve import Ask, assert_nothing_left, iteration_engine, serve
from helpers.tokenizer import byte_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyengine import OverlappedEngine, SamplingParams, Trace
from tinyengine.clock import IterationClock
from tinyengine.metrics import measure, token_times
from tinyengine.overlap import PENDING


class Late:
    """An `overlap.fetch` that gives nothing away before it is asked, and remembers how many were under way at once."""

    def __init__(self):
        self.under_way, self.most = [], 0

    def __call__(self, chosen):
        values = chosen.tolist()
        self.under_way.append(values)
        self.most = max(self.most, len(self.under_way))

        def land():
            assert self.under_way.pop(0) is values, "tokens are asked for out of order"
            return values

        return land


def late_engine(model, stage="chunked", **options):
    engine = OverlappedEngine(model, stage, clock=IterationClock(), **options)
    engine.fetch = Late()
    return engine


def result(output):
    return output.token_ids, output.text, output.pieces, output.finish_reason, type(output.error)


def assert_the_trace_tells_what_came(engine, outputs):
    trace = engine.trace
    emitted = {request_id: [] for request_id in outputs}
    for before, one in zip([None, *trace.iterations], trace.iterations):
        assert before is None or one.time >= before.end
        for span in one.spans:
            assert PENDING not in span.tokens
            emitted[span.request_id].extend(span.tokens)
    assert emitted == {request_id: output.token_ids for request_id, output in outputs.items()}
    assert all(moments == sorted(moments) for moments in token_times(trace).values())
    ended = [event.request_id for event in trace.events if event.kind in ("finish", "abort")]
    assert sorted(ended) == sorted(outputs.keys() & trace.requests)  # one that never arrived is not in the trace
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))).iterations == trace.iterations
    measure(trace)


@st.composite
def runs(draw):
    rng = random.Random(draw(st.integers(0, 10**6)))
    asks = []
    for _ in range(draw(st.integers(1, 7))):
        params = SamplingParams(
            max_tokens=rng.choice([1, 1, 2, 5, 12]),
            temperature=rng.choice([0.0, 0.0, 0.8]),
            seed=rng.randrange(100),
            ignore_eos=rng.random() < 0.5,
            stop_token_ids=tuple(rng.sample(range(300), 40)),
            repetition_penalty=rng.choice([1.0] * 9 + [1.3]),
        )
        prompt = [rng.randrange(6, 300) for _ in range(rng.choice([1, 3, 9, 20]))]
        asks.append(Ask(prompt, params, arrival=float(rng.choice([0, 0, 1, 4, 9])), priority=rng.randrange(2)))
    asks += [replace(one, arrival=one.arrival + 2) for one in asks[:2]]  # a prefix to share
    stage = draw(st.sampled_from(["static", "orca", "selective", "paged", "chunked", "chunked", "chunked"]))
    options = {"max_num_seqs": draw(st.integers(1, 4)), "num_slots": draw(st.sampled_from([32, 40, 64, 256]))}
    if stage in ("paged", "chunked"):
        options["block_size"] = draw(st.sampled_from([1, 4, 16]))
        options["enable_prefix_caching"] = draw(st.booleans())
        options["num_speculative_tokens"] = draw(st.sampled_from([0, 0, 0, 2]))
    if stage == "chunked":
        options["max_num_batched_tokens"] = draw(st.sampled_from([3, 8, 512]))
        options["policy"] = draw(st.sampled_from(["fcfs", "priority"]))
    return asks, stage, options


@given(runs())
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_outputs_are_those_of_the_engine_without_overlap(random_model, run):
    asks, stage, options = run
    right = serve(iteration_engine(random_model, stage, **options), asks)
    engine = late_engine(random_model, stage, **options)
    outputs = serve(engine, asks)
    assert [result(output) for output in outputs] == [result(output) for output in right]
    assert_the_trace_tells_what_came(engine, {output.request_id: output for output in outputs})
    assert engine._flight is None and not engine.fetch.under_way


def ask(engine, n=4, **params):
    return [
        engine.add_request([10 + index, 20, 30], SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **params}))
        for index in range(n)
    ]


def test_an_iteration_is_launched_before_the_tokens_of_the_last_one_are_known(random_model):
    engine = late_engine(random_model, num_slots=256)
    ids = ask(engine)
    assert engine.step() == [] and engine.fetch.most == 1
    assert all(request.tokens[-1] == PENDING for request in engine.scheduler.running)
    first = engine.step()
    assert engine.fetch.most == 2 and [token.request_id for token in first] == ids
    assert [len(engine.outputs[request_id].token_ids) for request_id in ids] == [1] * 4
    assert engine.settle() and engine.settle() == [] and not engine.fetch.under_way


def test_an_end_is_noticed_one_step_late_and_costs_one_row(random_model):
    (alone,) = iteration_engine(random_model, "chunked", num_slots=256).generate([[10, 20, 30]], SamplingParams(8))
    end = alone.token_ids[3]
    length = alone.token_ids.index(end) + 1
    engine = late_engine(random_model, num_slots=256)
    (stopped,) = ask(engine, 1, stop_token_ids=(end,))
    while engine.has_unfinished():
        engine.step()
        engine.memory.check()
    output = engine.outputs[stopped]
    assert output.token_ids == alone.token_ids[:length] and output.finish_reason == "stop"
    assert len(engine.trace.iterations) == length + 1 and engine.trace.iterations[-1].spans[0].tokens == ()
    assert_nothing_left(engine)
    # the most tokens it may have are counted, not looked at: no row is lost
    engine = late_engine(random_model, num_slots=256)
    ask(engine, 1, max_tokens=5)
    while engine.has_unfinished():
        engine.step()
    assert len(engine.trace.iterations) == 5


@pytest.mark.parametrize("fallback", [{"num_speculative_tokens": 2}, {}], ids=["guesses", "penalty"])
def test_what_needs_the_values_waits_for_them(random_model, fallback):
    engine = late_engine(random_model, num_slots=256, **fallback)
    ask(engine, 2, **({} if fallback else {"repetition_penalty": 1.2}))
    while engine.has_unfinished():
        engine.step()
    assert engine.fetch.most == 0
    ask(engine, 2)
    engine.step()
    assert engine.fetch.most == (0 if fallback else 1)


def test_overlap_begins_and_ends_as_requests_come_and_go(random_model):
    engine = late_engine(random_model, num_slots=256)
    right = iteration_engine(random_model, "chunked", num_slots=256)
    for one in (engine, right):
        ask(one, 2, max_tokens=12)
        for _ in range(4):
            one.step()
        ask(one, 1, max_tokens=3, repetition_penalty=1.5)
        while one.has_unfinished():
            one.step()
    assert engine.fetch.most == 2
    assert {key: result(one) for key, one in engine.outputs.items()} == {
        key: result(one) for key, one in right.outputs.items()
    }


def test_stop_strings_and_functions_end_it_where_they_do_without_overlap(random_model):
    model = random_model
    tokenizer, before = byte_tokenizer(), model.tokenizer
    model.tokenizer = tokenizer
    try:
        alone = iteration_engine(model, "chunked", num_slots=256).generate([[10, 20, 30]], SamplingParams(12))[0]
        text = alone.text[len(alone.text) // 2 :][:2]
        params = [
            SamplingParams(12, stop=(text,) if text else ()),
            SamplingParams(12, stop_when=lambda tokens: len(tokens) == 5),
            SamplingParams(12, stop_when=lambda tokens: 1 // (3 - len(tokens)) > 1),  # raises at the third
            SamplingParams(12),
        ]
        results = []
        for engine in (iteration_engine(model, "chunked", num_slots=256), late_engine(model, num_slots=256)):
            ids = [engine.add_request([10, 20, 30], each) for each in params]
            while engine.has_unfinished():
                engine.step()
                engine.memory.check()
            results.append([result(engine.outputs[request_id]) for request_id in ids])
            assert_nothing_left(engine)
        assert results[0] == results[1] and results[0][2][3] == "error"
    finally:
        model.tokenizer = before


@pytest.mark.parametrize("after", range(6))
def test_an_abort_while_its_token_is_on_the_way_touches_no_other(random_model, after):
    right = iteration_engine(random_model, "chunked", num_slots=256)
    right.generate([[10 + n, 20, 30] for n in range(4)], SamplingParams(8, ignore_eos=True))
    engine = late_engine(random_model, num_slots=256)
    ids = ask(engine)
    for _ in range(after):
        engine.step()
    engine.abort_request(ids[1])
    engine.memory.check()
    got = list(engine.outputs[ids[1]].token_ids)
    while engine.has_unfinished():
        engine.step()
        engine.memory.check()
    assert engine.outputs[ids[1]].token_ids == got and engine.outputs[ids[1]].finish_reason == "abort"
    assert all(len(engine.outputs[key].token_ids) == 8 for key in ids if key != ids[1])
    assert_the_trace_tells_what_came(engine, engine.outputs)
    assert_nothing_left(engine)


def test_one_request_may_end_another_whose_token_has_just_come(random_model):
    engine = late_engine(random_model, num_slots=256)
    victim = []
    stop = lambda tokens: len(tokens) == 3 and engine.abort_request(victim[0])  # noqa: E731
    engine.add_request([10, 20, 30], SamplingParams(8, ignore_eos=True, stop_when=stop))
    victim += ask(engine, 1)
    while engine.has_unfinished():
        engine.step()
        engine.memory.check()
    assert len(engine.outputs[victim[0]].token_ids) == 2
    assert_the_trace_tells_what_came(engine, engine.outputs)
    assert_nothing_left(engine)


def test_a_model_that_raises_loses_no_token(random_model):
    right = serve(iteration_engine(random_model, "chunked", num_slots=256), [Ask([7, 8], SamplingParams(9))] * 2)
    engine = late_engine(random_model, num_slots=256, compiled_decode=False)
    forward, fails = engine.forward, iter([0, 1, 0, 0, 1, 1, 0, 1])

    def failing(batch):
        if next(fails, 0):
            raise RuntimeError("out of memory")
        return forward(batch)

    engine.forward = failing
    ids = [engine.add_request([7, 8], SamplingParams(9)) for _ in range(2)]
    failures = 0
    while engine.has_unfinished():
        try:
            engine.step()
        except RuntimeError:
            failures += 1
        engine.memory.check()
    assert failures == 4
    outputs = {request_id: engine.outputs[request_id] for request_id in ids}
    assert [output.token_ids for output in outputs.values()] == [output.token_ids for output in right]
    assert_the_trace_tells_what_came(engine, outputs)


def test_an_interrupt_in_a_users_function_loses_no_token(random_model):
    right = serve(iteration_engine(random_model, "chunked", num_slots=256), [Ask([7, 8], SamplingParams(9))] * 3)
    engine = late_engine(random_model, num_slots=256)

    def interrupt(tokens):
        if len(tokens) == 4 and not seen:
            seen.append(1)
            raise KeyboardInterrupt

    seen = []
    ids = [engine.add_request([7, 8], SamplingParams(9, stop_when=interrupt)) for _ in range(3)]
    while engine.has_unfinished():
        with suppress(KeyboardInterrupt):
            engine.step()
        engine.memory.check()
    assert seen and [engine.outputs[key].token_ids for key in ids] == [output.token_ids for output in right]
    assert_the_trace_tells_what_came(engine, engine.outputs)


def test_graphs_and_overlap_together(random_model):
    rng = random.Random(3)
    asks = [
        Ask([rng.randrange(6, 300) for _ in range(n + 1)], SamplingParams(rng.randint(1, 20)), arrival=float(n % 5))
        for n in range(9)
    ]
    right = serve(iteration_engine(random_model, "chunked", num_slots=200), asks)
    engine = with_graphs(late_engine(random_model, num_slots=200))
    assert [result(output) for output in serve(engine, asks)] == [result(output) for output in right]
    assert engine.forward.capture.plays > 10 and engine.fetch.most == 2
