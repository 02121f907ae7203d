"""Trace: what it records, and that nothing is lost on the way through JSON text."""

import json

import pytest
from helpers.traces import busy
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.memory import Holding, Slots
from tinyengine.metrics import measure
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Orca, Static
from tinyengine.trace import EVENT_KINDS, Earlier, Event, Iteration, RequestRecord, Span, Trace

TEXTS = ["", "café", "日本語 🦊", 'a "quote" \\ and a\nline', "</script>", "e\u0301\u202e\x00"]


def make(number: int, prompt: int, output: int) -> Request:
    return Request(f"r{number}", [1] * prompt, SamplingParams(max_tokens=output, ignore_eos=True))


def run(make_scheduler, sizes, aborts=(), contiguous=True, max_num_seqs=2, n_slots=20) -> Trace:
    """A run without a model; each iteration lasts a second and is a rectangle. aborts: (after iteration, request)."""
    scheduler = make_scheduler(Slots(n_slots, contiguous), max_num_seqs)
    trace = Trace("test", max_num_seqs, n_slots)
    requests = [make(n, *size) for n, size in enumerate(sizes)]
    for request, text in zip(requests, TEXTS * len(requests), strict=False):
        scheduler.add(request)
        trace.arrive(request, text)
        trace.pieces[request.request_id] = []
    while True:
        trace.hold(scheduler.memory.holders)
        if not (plan := scheduler.schedule()):
            return trace
        now = len(trace.iterations)
        tokens = [7] * len(plan)
        width = max(n_tokens for _, n_tokens in plan)
        trace.record(
            plan,
            tokens,
            scheduler.memory,
            time=float(now),
            duration=1.0,
            padding=width * scheduler.height(plan) - sum(n_tokens for _, n_tokens in plan),
        )
        for request, _, reason in scheduler.commit(plan, tokens):
            trace.pieces[request.request_id].append(TEXTS[now % len(TEXTS)])
            if reason:
                trace.event("finish", request.request_id, reason)
        for when, number in aborts:
            if when == now and not requests[number].finished:
                scheduler.abort(requests[number])
                trace.event("abort", requests[number].request_id)


def memory_of(*requests: Request | None) -> Slots:
    """An arena in which these hold what they can come to need."""
    memory = Slots(100)
    assert all(memory.reserve(request) for request in requests if request)
    return memory


RUNS = st.builds(
    run,
    st.sampled_from([Static, Orca]),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), max_size=6),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 0)), max_size=2),
    st.booleans(),
    st.integers(1, 3),
)


@given(RUNS)
@settings(deadline=None, max_examples=60)
def test_a_trace_survives_json_text(trace):
    text = json.dumps(trace.to_json())
    again = Trace.from_json(json.loads(text))
    assert again == trace
    assert json.dumps(again.to_json()) == text
    assert Trace.from_json(trace.to_json()) == trace  # and without the text in between


def test_every_field_survives_json_text_with_its_type():
    trace = Trace(
        "chunked",
        3,
        40,
        16,
        False,
        {"é🦊": RequestRecord("é🦊", 6, 3, 0.25, -1, TEXTS[2], 0.5, 0.1)},
        [
            Iteration(0.1, 0.2, (Span("é🦊", 0, 4),), 3, 4, {"é🦊": Holding(((0, 16), (32, 40)), 4)}),
            Iteration(0.3, 0.1, (Span("é🦊", 4, 2, (0, 9), draft=3, recomputed=1),), 0, None, {}),
        ],
        [Event(-1, "abort", "b"), Event(0, "admit", "é🦊", cached=16), Event(1, "finish", "é🦊", "stop")],
        {"é🦊": TEXTS},
        True,
        7,
        11,
        {"é🦊": Earlier(5, 0.125, 0.25)},
    )
    again = Trace.from_json(json.loads(json.dumps(trace.to_json())))
    assert again == trace
    assert again.iterations[0].memory["é🦊"].ranges == ((0, 16), (32, 40))
    assert again.iterations[1].spans[0].tokens == (0, 9) and again.iterations[0].spans[0].tokens == ()
    assert type(again.iterations[0].spans) is tuple and type(again.iterations[0].spans[0]) is Span
    assert type(again.earlier["é🦊"]) is Earlier
    assert hash(again.iterations[0].memory["é🦊"])  # tuples all the way down


def test_a_trace_survives_a_file(tmp_path):
    trace = run(Orca, [(3, 2), (2, 4), (1, 1)], aborts=[(1, 1)])
    trace.save(tmp_path / "run.json")
    assert Trace.load(tmp_path / "run.json") == trace
    assert "日本語" in (tmp_path / "run.json").read_text(encoding="utf-8")


def test_a_trace_with_guesses_shared_blocks_and_preemptions_survives_json_text():
    trace = busy(2, prefix=12)
    numbers = measure(trace)
    assert numbers.preemptions and numbers.cached_tokens and numbers.accepted_tokens and numbers.recomputed_tokens
    again = Trace.from_json(json.loads(json.dumps(trace.to_json())))
    assert again == trace and measure(again) == numbers


def test_an_empty_trace_survives_json_text():
    assert Trace.from_json(json.loads(json.dumps(Trace().to_json()))) == Trace()


@pytest.mark.parametrize(
    ("span", "phase"),
    [
        (Span("r", 0, 10, (7,)), "prefill"),
        (Span("r", 0, 4), "chunk"),
        (Span("r", 4, 3), "chunk"),
        (Span("r", 4, 6, (7,)), "chunk"),
        (Span("r", 9, 1, (7,)), "chunk"),
        (Span("r", 10, 1, (7,)), "decode"),
        (Span("r", 15, 1, (7,)), "decode"),
        (Span("r", 15, 4, (7, 8), draft=3), "decode"),
        (Span("r", 0, 13, (7,), recomputed=12), "recompute"),
        (Span("r", 8, 4, recomputed=4), "recompute"),
        (Span("r", 10, 4, recomputed=1), "recompute"),
        (Span("r", 0, 10, (7,), recomputed=4), "recompute"),
    ],
)
def test_the_phase_of_a_span(span, phase):
    assert Trace(requests={"r": RequestRecord("r", 10, 20, 0.0)}).phase(span) == phase


def test_a_prompt_of_one_token_is_a_prefill():
    assert Trace(requests={"r": RequestRecord("r", 1, 5, 0.0)}).phase(Span("r", 0, 1, (7,))) == "prefill"


@pytest.mark.parametrize(
    ("span", "end", "rejected"),
    [
        (Span("r", 4, 3), 7, 0),
        (Span("r", 4, 1, (7,)), 5, 0),
        (Span("r", 4, 4, (7,), draft=3), 5, 3),
        (Span("r", 4, 4, (7, 8, 9), draft=3), 7, 1),
        (Span("r", 4, 4, (7, 8, 9, 6), draft=3), 8, 0),
    ],
)
def test_wrong_guesses_are_not_computed(span, end, rejected):
    assert (span.end, span.rejected) == (end, rejected)


def test_admit_and_finish_stand_at_the_iterations_where_they_happened():
    trace = run(Orca, [(2, 3), (2, 1), (2, 2)])
    assert trace.events == [
        *(Event(0, "arrive", f"r{n}") for n in range(3)),
        Event(0, "admit", "r0"),
        Event(0, "admit", "r1"),
        Event(0, "finish", "r1", "length"),
        Event(1, "admit", "r2"),
        Event(2, "finish", "r0", "length"),
        Event(2, "finish", "r2", "length"),
    ]
    assert list(trace.queues()) == [("r2",), (), ()] and list(trace.queue_lengths()) == [1, 0, 0]
    assert [iteration.end for iteration in trace.iterations] == [1.0, 2.0, 3.0]


def test_an_aborted_request_is_not_taken_for_a_preempted_one():
    trace = run(Orca, [(2, 9), (2, 3)], aborts=[(1, 0)])
    assert [event for event in trace.events if event.kind in ("preempt", "abort")] == [Event(1, "abort", "r0")]


def test_losing_the_memory_and_going_on_is_a_preemption_and_a_second_admission():
    request, trace = make(0, 2, 5), Trace()
    trace.arrive(request)
    for holds in (True, False, False, True):
        plan = [(request, 2)] if holds else []
        trace.record(plan, [None] * len(plan), memory_of(request if holds else None), time=0.0, duration=1.0)
    assert [(event.iteration, event.kind) for event in trace.events] == [
        (0, "arrive"),
        (0, "admit"),
        (1, "preempt"),
        (3, "admit"),
    ]


def test_who_is_driven_out_twice_has_still_lost_all_that_it_ever_had():
    request, trace = make(0, 9, 5), Trace()
    trace.arrive(request)
    for n_tokens in (8, 0, 3, 0, 9):  # 0: it holds nothing
        plan, memory = ([(request, n_tokens)], memory_of(request)) if n_tokens else ([], memory_of())
        trace.record(plan, [7 if n_tokens == 9 else None] * len(plan), memory, time=0.0, duration=1.0)
    assert [span.recomputed for iteration in trace.iterations for span in iteration.spans] == [0, 3, 8]


def test_aborted_before_the_first_iteration_is_the_end_of_nothing():
    trace = Trace()
    trace.event("abort", "r0")
    assert trace.events == [Event(-1, "abort", "r0")]


def test_a_record_needs_one_token_for_each_request_of_the_plan():
    with pytest.raises(ValueError):
        Trace().record([(make(0, 2, 2), 2)], [], memory_of(), time=0.0, duration=1.0)


@given(RUNS)
@settings(deadline=None, max_examples=60)
def test_what_a_trace_says_adds_up(trace):
    running: set[str] = set()
    emitted = dict.fromkeys(trace.requests, 0)
    computed = dict.fromkeys(trace.requests, 0)
    assert {event.kind for event in trace.events} <= set(EVENT_KINDS)
    for number, (iteration, queue) in enumerate(zip(trace.iterations, trace.queues(), strict=True)):
        here = [event for event in trace.events if event.iteration == number]
        running |= {event.request_id for event in here if event.kind == "admit"}
        assert set(iteration.memory) == running >= {span.request_id for span in iteration.spans}
        assert not running & set(queue)
        for span in iteration.spans:
            assert span.start == computed[span.request_id]
            computed[span.request_id] += span.n_tokens
            emitted[span.request_id] += len(span.tokens)
        for request_id, holding in iteration.memory.items():
            record = trace.requests[request_id]
            assert holding.used == computed[request_id] <= holding.reserved
            assert holding.reserved == record.num_prompt_tokens + record.max_tokens
        slots = [slot for held in iteration.memory.values() for part in held.ranges for slot in range(*part)]
        assert len(slots) == len(set(slots)) and all(0 <= slot < trace.num_slots for slot in slots)
        real = sum(span.n_tokens for span in iteration.spans)
        assert iteration.num_tokens == real and iteration.padding >= 0
        width = max(span.n_tokens for span in iteration.spans)
        assert (real + iteration.padding) % width == 0, "padded and real rows make a rectangle"
        running -= {event.request_id for event in here if event.kind in ("finish", "abort")}
    assert not running
    ended = [event.request_id for event in trace.events if event.kind in ("finish", "abort")]
    assert sorted(ended) == sorted(trace.requests)
    assert emitted == {request_id: len(pieces) for request_id, pieces in trace.pieces.items()}


def test_a_trace_is_printed_in_one_line():
    assert repr(Trace("chunked")) == "<Trace chunked: 0 requests, 0 iterations>"
    assert repr(Trace()) == "<Trace of no stage: 0 requests, 0 iterations>"
