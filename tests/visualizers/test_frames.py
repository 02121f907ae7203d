"""The dict that is drawn says what the trace says, for hand-made traces and for random ones."""

import base64
import gzip
import json
import random
import re
from collections import Counter

import pytest
from helpers.traces import CHUNKS, busy, cut, requests, run, sized, wander, wild
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyengine.memory import Holding, Slots
from tinyengine.metrics import measure
from tinyengine.scheduler import Orca, Static
from tinyengine.trace import Event, Iteration, RequestRecord, Span, Trace
from visualizers import compare, frames, show
from visualizers.captions import label
from visualizers.figures import KINDS, axis_top, composition, figures, lists, lives, waiting
from visualizers.memory_map import MemoryMap
from visualizers.player import VIEWS


def engine_of(trace: Trace) -> dict:
    return frames.build({"it": trace})["engines"][0]


def cells(engine: dict) -> dict:
    """{(row, iteration): (request, phase, start, n_tokens, tokens, draft, recomputed)}; a cell holds one request."""
    found = {}
    for row, request, phase, first, length, start, n_tokens, tokens, draft, recomputed in engine["runs"]:
        assert len(tokens) == length
        for number, emitted in enumerate(tokens, first):
            assert (row, number) not in found
            some = () if emitted is None else tuple(emitted) if isinstance(emitted, list) else (emitted,)
            found[row, number] = (request, phase, start, n_tokens, some, draft, recomputed)
            start += n_tokens - (draft - max(0, len(some) - 1))
    return found


def owners(engine: dict) -> dict:
    return {cell: content[0] for cell, content in cells(engine).items()}


# By hand


def test_static_batching_keeps_its_holes_and_orca_fills_them():
    static = engine_of(run(Static, sized((2, 2), (1, 4), (3, 2)), 2))
    orca = engine_of(run(Orca, sized((2, 2), (1, 4), (3, 2)), 2))
    assert owners(static) == {(0, 0): 0, (1, 0): 1, (0, 1): 0, (1, 1): 1, (1, 2): 1, (1, 3): 1, (0, 4): 2, (0, 5): 2}
    assert owners(orca) == {(0, 0): 0, (1, 0): 1, (0, 1): 0, (1, 1): 1, (0, 2): 2, (1, 2): 1, (0, 3): 2, (1, 3): 1}
    assert (figures(static)["idle_slot_steps"], figures(static)["occupancy"]) == (4, 8 / 12)
    assert (figures(orca)["idle_slot_steps"], figures(orca)["occupancy"]) == (0, 1)


def test_chunks_a_preemption_and_a_request_without_budget():
    engine = engine_of(CHUNKS)
    chunk, prefill, decode, recompute = (frames.PHASES.index(p) for p in ("chunk", "prefill", "decode", "recompute"))
    assert engine["runs"] == [
        [0, 0, chunk, 0, 1, 0, 4, [None], 0, 0],
        [0, 0, chunk, 1, 1, 4, 2, [70], 0, 0],
        [1, 1, prefill, 1, 1, 0, 2, [71], 0, 0],
        [0, 0, decode, 2, 2, 6, 1, [72, 74], 0, 0],
        [1, 1, decode, 2, 2, 2, 1, [73, 75], 0, 0],
        [2, 2, chunk, 2, 1, 0, 2, [None], 0, 0],
        [2, 2, chunk, 4, 1, 2, 2, [76], 0, 0],
        [0, 1, recompute, 5, 1, 0, 4, [77], 0, 4],  # r1 is back, in the lowest free row
        [2, 2, decode, 5, 1, 4, 1, [78], 0, 0],
    ]
    assert engine["held"] == [[2, 2, 3, 4]]
    assert engine["preempted"] == [[1, 1, 4, 5]]


def test_a_preempted_row_is_outlined_only_until_another_request_runs_there():
    records = {name: RequestRecord(name, 1, 9, 0.0) for name in ("a", "b")}
    iterations = [
        Iteration(0, 1, (Span("a", 0, 1, (5,)),)),
        Iteration(1, 1, ()),
        Iteration(2, 1, (Span("b", 0, 1, (5,)),)),
        Iteration(3, 1, (Span("b", 1, 1, (5,)),)),
    ]
    engine = engine_of(Trace("", 1, requests=records, iterations=iterations, events=[Event(1, "preempt", "a")]))
    assert owners(engine) == {(0, 0): 0, (0, 2): 1, (0, 3): 1}
    assert engine["preempted"] == [[0, 0, 1, 2]]


def test_captions_are_plain_words():
    engine = engine_of(CHUNKS)
    assert engine["captions"][1] == (
        "iteration 2: r1 admitted into batch slot 1; 1 chunk (2 tokens), 1 prefill (2 tokens); 1 waiting"
    )
    assert engine["captions"][3] == "iteration 4: 2 decodes; r0 finished (length); 2 padding rows"
    assert engine["captions"][4] == "iteration 5: r1 preempted; 1 chunk (2 tokens); 1 waiting"
    assert engine["captions"][5] == (
        "iteration 6: r1 admitted into r0's batch slot; 1 recompute (4 tokens), 1 decode; "
        "r1 stalled, not run for 1 iteration (4 times the usual gap); r1 finished (length); r2 aborted"
    )


@pytest.mark.parametrize(
    ("slow", "promised", "told"),
    [
        ((Span("a", 3, 1, (5,)),), None, None),  # alone, and slow: the machine
        ((Span("a", 3, 1, (5,)), Span("c", 1, 1, (5,))), None, None),  # another's decode is no cause
        ((Span("a", 3, 1, (5,)), Span("b", 0, 9, (5,))), None, " behind b's prefill"),
        ((Span("a", 3, 1, (5,)), Span("b", 0, 9), Span("c", 0, 1, (5,))), None, " behind b's chunk and 1 more"),
        ((Span("b", 0, 9, (5,)),), None, ", not run for 1 iteration"),
        ((Span("a", 3, 1, (5,)),), 2.0, ""),  # longer than was promised, whatever the cause
        ((Span("a", 3, 1, (5,)), Span("b", 0, 9, (5,))), 99.0, None),
    ],
)
def test_a_stall_has_a_cause_or_breaks_a_promise(slow, promised, told):
    lead = [Iteration(n, 1, (Span("a", n, 1, (5,)),)) for n in range(3)]
    last = Span("a", 4 if slow[0].request_id == "a" else 3, 1, (5,))
    records = {name: RequestRecord(name, 9 if name == "b" else 1, 9, 0.0, tbt_target=promised) for name in "abc"}
    if any(span.request_id == "c" for span in slow):
        records["b"] = RequestRecord("b", 20, 9, 0.0)
    late = [Iteration(3, 8, slow), Iteration(11, 1, (last,))]
    engine = engine_of(Trace("", 3, requests=records, iterations=[*lead, *late]))
    said = [caption for caption in engine["captions"] if "stalled" in caption]
    assert [ids for *_, ids in engine["stalls"]] == ([] if told is None else [[0]])
    if told is None:
        assert not said
    else:
        assert len(said) == 1 and f"a stalled{told} (" in said[0]


def test_many_names_are_counted():
    engine = engine_of(run(Static, sized(*[(1, 1)] * 5), 5))
    assert "r0 admitted into batch slot 0, r1 admitted into batch slot 1 and 3 more" in engine["captions"][0]
    ended = "r0 finished (length, gives back 2 K/V slots), r1 finished (length, gives back 2 K/V slots) and 3 more"
    assert ended in engine["captions"][0]


@pytest.mark.parametrize(
    ("request_id", "name"),
    [("3", "req 3"), ("r3", "r3"), ("", "(no name)"), ("a\nb", "a b"), ("x" * 40, "x" * 23 + "…"), ("猫", "猫")],
)
def test_labels(request_id, name):
    assert label(request_id) == name


def test_one_request_has_one_colour_in_all_engines():
    data = frames.build({"a": run(Static, sized((1, 1), (1, 1))), "b": run(Orca, sized((1, 1), (1, 2), (1, 1)))})
    assert [request_id for request_id, _ in data["requests"]] == ["r0", "r1", "r2"]


def test_a_request_aborted_before_it_arrived():
    data = frames.build({"a": Trace(events=[Event(-1, "abort", "never here")])})
    assert data["requests"] == [["never here", "never here"]]


def test_a_trace_that_forgets_shows_what_its_requests_had_before():
    trace = cut(CHUNKS, 3)  # r0 has had 2 tokens by then, r1 as many, r2 none
    engine = engine_of(trace)
    assert engine["forgotten"] == 3 and engine["earlier"] == {0: [2, 1.0], 1: [2, 1.0]}
    assert engine["captions"][0].startswith("iteration 1: 3 iterations before it forgotten; r0 admitted into batch ")
    came = [(life.came, life.first) for life in lives(engine)]
    assert came == [([-1, -1, 0], None), ([-1, -1, 0, 2], None), ([1, 2], 1)]
    right = {"r0": [70, 72, 74], "r1": [71, 99, 75, 78], "gone": [1]}
    data = frames.build({"it": trace}, right)
    assert data["engines"][0]["diverged"] == {1: [3, 78, None]}  # number 2 is forgotten: it may be right or wrong
    assert show(trace, expected=right).data["engines"][0]["diverged"] == {1: [3, 78, None]}
    assert frames.build({"it": trace}, CHUNKS)["engines"][0]["diverged"] == {}


def test_a_long_queue_is_sent_as_its_changes():
    trace = Trace("", 1)
    for number in range(3000):
        name = f"r{number}"
        trace.requests[name] = RequestRecord(name, 1, 1, 0.0)
        trace.events.append(Event(0, "arrive", name))
    for number in range(200):
        trace.events += [Event(number, "admit", f"r{number}"), Event(number, "finish", f"r{number}")]
        trace.iterations.append(Iteration(float(number), 1.0, (Span(f"r{number}", 0, 1, (5,)),)))
    engine = engine_of(trace)
    assert sum(len(gone) + len(come) for _, gone, come in engine["waiting"]) == 2999 + 199
    assert figures(engine, 150)["waiting"] == 3000 - 151


def test_a_wrong_number_or_kind_of_traces_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="1 to 6 traces, but 0 were given"):
        compare()
    with pytest.raises(TypeError, match="engine is of type object, but a Trace is needed"):
        show(object())
    with pytest.raises(TypeError, match=r"compare got a Trace without a name: write compare\(static=a, "):
        compare(CHUNKS)
    with pytest.raises(TypeError, match="a is of type str, but a Trace is needed"):
        compare(a="trace.json")


def test_64_slots_and_2000_iterations_fit_in_2_mb(tmp_path):
    trace = run(Orca, requests(1000, 250, 40), 64)
    assert len(trace.iterations) > 1900
    assert show(trace).to_html(tmp_path / "big.html").stat().st_size < 2_000_000


def test_axes_are_cut_only_where_a_few_values_dwarf_all_others():
    assert axis_top([]) == axis_top([0, 0]) == 1
    assert axis_top([3, 5, 20]) == 20
    assert axis_top([5] * 40 + [19, 21]) == 19
    assert axis_top([5] * 40 + [100] * 5) == 100  # not so few


def test_engines_side_by_side_have_one_scale():
    def one(size: int, budget: int | None) -> Trace:
        return Trace(
            "", 1, requests={"a": RequestRecord("a", size, 1, 0.0)},
            iterations=[Iteration(0.0, size, (Span("a", 0, size, (5,)),), budget=budget)],
        )  # fmt: skip

    def tops(*engines: tuple[int, int | None]) -> list:
        data = frames.build({str(n): one(*engine) for n, engine in enumerate(engines)})
        assert all(engine["tops"] == data["engines"][0]["tops"] for engine in data["engines"])
        return data["engines"][0]["tops"]

    assert tops((3, None), (8, None)) == [8, 8]
    assert tops((3, 12), (8, None)) == [12, 8]
    assert tops((3, 17), (8, 9)) == [9, 8]  # 17 is far above all rows


# At random


@st.composite
def traces(draw) -> Trace:
    names = draw(st.lists(st.text(min_size=0, max_size=6), unique=True, max_size=8))
    slots, count, seed = draw(st.integers(1, 4)), draw(st.integers(0, 25)), draw(st.integers(0, 10**6))
    return cut(wander(names, slots, count, random.Random(seed)), draw(st.integers(0, count)))


def assert_tells_the_truth(trace: Trace):
    data = frames.build({"it": trace})
    engine, ids = data["engines"][0], [request_id for request_id, _ in data["requests"]]
    drawn = cells(engine)
    assert engine["slots"] == trace.max_num_seqs and all(row < trace.max_num_seqs for row, _ in drawn)
    told = {number: set() for number in range(len(trace.iterations))}
    for (_, number), (request, phase, *span) in drawn.items():
        span = Span(ids[request], *span)
        assert trace.phase(span) == data["phases"][phase]
        told[number].add(span)
    assert [told[number] for number in told] == [set(iteration.spans) for iteration in trace.iterations]
    assert [tuple(ids[r] for r in queue) for queue in waiting(engine)] == list(trace.queues())
    for row, _, first, end in engine["held"] + engine["preempted"]:
        assert first < end and not any((row, number) in drawn for number in range(first, end))
    memory = MemoryMap(engine)
    for number, iteration in enumerate(trace.iterations):
        shown = {ids[request]: Holding(joined(held.ranges), held.used) for request, held in memory.at(number).items()}
        assert shown == {key: Holding(joined(held.ranges), held.used) for key, held in iteration.memory.items()}
    told = [[event.iteration, event.kind, event.request_id, event.detail, event.cached] for event in trace.events]
    assert [[number, kind, ids[request], *more] for number, kind, request, *more in engine["events"]] == told
    batches = lists(engine["batch"], len(trace.iterations))
    assert [[ids[r] for r in batch] for batch in batches] == [[s.request_id for s in i.spans] for i in trace.iterations]
    texts = {ids[request]: [data["texts"][n] for n in pieces] for request, pieces in engine["pieces"].items()}
    assert texts == trace.pieces
    assert_figures(trace, engine)


def joined(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The same ranges, as the picture has them: one that has grown at its end is in two parts."""
    parts: list[tuple[int, int]] = []
    for first, past in ranges:
        if parts and parts[-1][1] == first:
            parts[-1] = (parts[-1][0], past)
        else:
            parts.append((first, past))
    return tuple(parts)


def assert_equals_the_metrics(trace: Trace):
    """Occupancy, padding, waiting and memory, rebuilt from what is sent, are what metrics.py says of the trace."""
    engine, measured = engine_of(trace), measure(trace)
    shown, slots = figures(engine), trace.num_slots * len(trace.iterations)
    rows = composition(engine)
    guesses, padding = KINDS.index("guess"), KINDS.index("padding")
    assert shown["occupancy"] == measured.slot_occupancy
    assert shown["idle_slot_steps"] == measured.idle_slot_steps
    assert shown["tokens_out"] == measured.output_tokens
    assert shown["padding"] == sum(row[padding] for row in rows) == measured.padded_rows
    assert [sum(row) for row in rows] == [i.num_tokens + i.padding for i in trace.iterations]
    assert sum(row[padding] for row in rows) / sum(map(sum, rows)) == measured.padding_share
    assert sum(row[guesses] for row in rows) == measured.draft_tokens
    assert sum(run[4] * run[9] for run in engine["runs"]) == measured.recomputed_tokens
    assert sum(kind == "preempt" for _, kind, *_ in engine["events"]) == measured.preemptions
    assert sum(event[4] for event in engine["events"]) == measured.cached_tokens
    assert [len(queue) for queue in waiting(engine)] == list(trace.queue_lengths())
    memory = MemoryMap(engine)
    sums = Counter()
    for number in range(len(trace.iterations)):
        sums.update(memory.figures(number))
    assert sums["held"] / slots == measured.kv_reserved
    assert sums["filled"] / slots == measured.kv_used
    assert sums["lost"] / slots == measured.kv_fragmented


def assert_figures(trace: Trace, engine: dict):
    queued = list(trace.queue_lengths())
    for last in range(len(trace.iterations)):
        past = trace.iterations[: last + 1]
        busy = sum(len(iteration.spans) for iteration in past)
        slot_steps = trace.max_num_seqs * len(past)
        assert figures(engine, last) == {
            "iterations": last + 1,
            "running": len(past[-1].spans),
            "waiting": queued[last],
            "idle_slot_steps": slot_steps - busy,
            "padding": sum(iteration.padding for iteration in past),
            "tokens_out": sum(len(span.tokens) for iteration in past for span in iteration.spans),
            "occupancy": busy / slot_steps,
        }


@pytest.mark.parametrize("make", [Static, Orca])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_figures_equal_the_metrics_over_slots(make, seed):
    assert_equals_the_metrics(run(make, requests(9, 9, 9, seed), 3, Slots(60)))


@given(st.integers(0, 10**6), st.sampled_from([0, 8, 12]), st.sampled_from(["fcfs", "priority"]))
@settings(max_examples=40, deadline=None)
def test_figures_equal_the_metrics_over_blocks(seed, prefix, policy):
    trace = busy(seed, prefix, policy=policy)
    assert_equals_the_metrics(trace)
    assert_tells_the_truth(trace)


def test_the_samples_have_all_that_a_picture_can_show():
    traces = [busy(seed, prefix) for seed in range(6) for prefix in (0, 12)]
    seen = [measure(trace) for trace in traces]
    for name in ("preemptions", "recomputed_tokens", "cached_tokens", "draft_tokens", "accepted_tokens"):
        assert max(getattr(one, name) for one in seen) > 0, name
    was_shared = False
    for trace in traces:
        own = MemoryMap(engine_of(trace))
        for number in range(len(trace.iterations)):
            holders = Counter(s for held in own.at(number).values() for part in held.ranges for s in range(*part))
            shared = {slot for part in own.shared(number) for slot in range(*part)}
            assert shared == {slot for slot, count in holders.items() if count > 1}
            was_shared |= bool(shared)
    assert was_shared
    assert measure(run(Orca, requests(9, 9, 9), 3, Slots(60))).kv_fragmented > 0


@given(traces())
@settings(max_examples=150, deadline=None)
def test_a_picture_never_lies(trace):
    assert_tells_the_truth(trace)


@given(traces(), traces())
@settings(max_examples=40, deadline=None)
def test_the_page_carries_the_data_whatever_the_text(tmp_path_factory, one, two):
    player = compare(one=one, two=two)
    page = player.to_html(tmp_path_factory.mktemp("page") / "page.html").read_text(encoding="utf-8")
    (sent,) = re.findall(r'<script type="text/plain" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(gzip.decompress(base64.b64decode(sent))) == json.loads(json.dumps(player.data))
    assert page.count("</script>") == 2


def test_a_page_can_have_a_heading_and_a_table(tmp_path):
    page = show(CHUNKS).to_html(tmp_path / "page.html", "a <title>", "some <b>", [{"stage": "<x>", "n": "5"}])
    text = page.read_text(encoding="utf-8")
    assert "<title>a &lt;title&gt;</title>" in text and "<h1>a &lt;title&gt;</h1><p>some &lt;b&gt;</p>" in text
    assert "<tr><th>stage</th><th>n</th></tr><tr><td>&lt;x&gt;</td><td>5</td></tr>" in text
    assert "<header>" not in show(CHUNKS).to_html(page).read_text(encoding="utf-8")


@pytest.mark.parametrize("write", ["to_html", "to_png", "to_gif"])
def test_a_file_that_cannot_be_made_is_refused_with_a_sentence(tmp_path, write):
    with pytest.raises(ValueError, match=r"but there is no folder .*no'?: make it first"):
        getattr(show(CHUNKS), write)(tmp_path / "no" / "file")
    with pytest.raises(ValueError, match="but that is a folder: give the path of a file in it"):
        getattr(show(CHUNKS), write)(tmp_path)


@pytest.mark.parametrize(
    "trace",
    [
        Trace(),
        Trace("no iterations", 4, requests={"a": RequestRecord("a", 1, 1, 0.0)}, events=[Event(-1, "abort", "a")]),
        wander(["only"], 1, 30, random.Random(1)),
        wander([f"request {n}" for n in range(500)], 64, 60, random.Random(2)),
        wander(["</script>", "<b>", "$x_1$", "猫🐈", "\u202e", "\x00", "\ud800"], 3, 40, random.Random(3)),
        wild(5, keep=8).trace,
        wild(8, keep=1).trace,
    ],
    ids=["empty", "no iterations", "one slot", "500 requests", "odd names", "the last iterations", "the last one"],
)
def test_extremes(trace, tmp_path):
    assert_tells_the_truth(trace)
    show(trace).to_html(tmp_path / "page.html")
    assert show(trace, views=VIEWS).to_png(tmp_path / "picture.png") == (tmp_path / "picture.png").read_bytes()
