"""Trace -> the compact dict that every picture is drawn from (JavaScript and matplotlib alike). Pure Python.

What is sent, and nothing else is drawn:

    {"palette": [colour, ...], "phases": PHASES,
     "requests": [[id, label], ...],          all engines together, so that one request has one colour everywhere
     "texts": [text, ...],                    each text that a token added, once
     "views", "iteration",                    what is shown at first (Player adds these)
     "engines": [{
        "name", "slots",                      slots: batch slots, the rows of the slot timeline
        "time", "duration",                   seconds, one per iteration
        "padding", "budget",                  tokens, one per iteration; a budget may be None
        "padding_known",                      whether the trace tells of padding: a scheduler without a model has none
        "runs": [[row, request, phase, iteration, length, start, n_tokens, tokens, draft, recomputed], ...],
        "held": [[row, request, first, end], ...],       in the batch, but no tokens of the budget were left for it
        "preempted": [[row, request, first, end], ...],  its old row, until it or another request runs there
        "batch": [[iteration, gone, come], ...],         the ids that ran, in batch order, where they change
        "waiting": [[iteration, gone, come], ...],       the ids that waited, in queue order, likewise
        "events": [[iteration, kind, request, detail, cached], ...],
        "stalls": [[first, end, times, [request, ...]], ...],  from a token in `first` to the next one in `end`, that is
                                                         `times` the usual gap, for a cause that the caption names
        "records": {request: [prompt tokens, max_tokens, arrival, priority, ttft target, tbt target, prompt text]},
        "pieces": {request: [index into texts of each emitted token]},
        "diverged": {request: [index, token, text]},     the first token other than expected, and what was expected
        "forgotten",                          iterations before the first one, that the trace has no more
        "earlier": {request: [tokens, first]},           how many it got in those, and when the first of them came
        "num_slots", "block_size", "contiguous",         the arena
        "memory": [[request, first, end, parts, used], ...],  see memory_map.py
        "captions": [sentence per iteration],
        "timed",                              false where each iteration of each engine takes 1: nobody measured it
        "tops": [rows, seconds]}]}                       where the axes of the batch end, in all engines (see _tops)

`request` is an index into `requests`, `phase` one into `phases`. A run is `length` iterations in which one request
went on in the same way: `n_tokens` tokens each, the first at position `start`, of which the last `draft` were guesses
and `recomputed` had been computed before. `tokens` has what each iteration emitted: a token id, a list of several, or
None. `gone` and `come` change a list: those requests leave it, and then each [place, request] comes in at its place.
Runs and changes, and not cells, because 64 slots x 2,000 iterations must stay below 2 MB.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from statistics import median

from tinyengine.trace import RequestRecord, Trace
from visualizers.captions import Stall, captions, counted, label
from visualizers.figures import axis_top, composition
from visualizers.memory_map import holdings
from visualizers.rows import Rows

PHASES = ("prefill", "chunk", "decode", "recompute")
# Okabe and Ito's colour-blind-safe hues, ordered so that neighbours differ in lightness too.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
STALL = 3.0  # times the run's median gap between two tokens of a request, where its user was promised nothing
PROMPT = 240  # characters of a prompt that are sent

Expected = Trace | Mapping[str, Sequence[int]]  # a trace, or token ids by request id


def build(traces: dict[str, Trace], expected: Expected | None = None) -> dict:
    """The data of one picture: one engine per named trace. expected: what each request's tokens should be."""
    # Of the events too: a request can be aborted before it has arrived.
    ids = list(dict.fromkeys(chain.from_iterable(_ids(trace) for trace in traces.values())))
    index = {request_id: number for number, request_id in enumerate(ids)}
    texts: dict[str, int] = {}
    engines = [_engine(name, trace, index, texts, expected) for name, trace in traces.items()]
    tops = _tops(engines)
    timed = any(duration != 1 for engine in engines for duration in engine["duration"])
    for engine in engines:
        engine |= {"tops": tops, "timed": timed}
    return {
        "palette": list(PALETTE),
        "phases": list(PHASES),
        "requests": [[request_id, label(request_id)] for request_id in ids],
        "texts": list(texts),
        "engines": engines,
    }


def check(traces: dict[str, Trace], expected: Expected | None):
    """Raises ValueError where `expected` is neither a trace nor token ids by request id, or names a request of no
    trace."""
    if expected is None or isinstance(expected, Trace):
        return
    if not isinstance(expected, Mapping):
        raise ValueError(f"expected is {expected!r}, but a Trace or {{request id: token ids}} is needed")
    for request_id, tokens in expected.items():
        if isinstance(tokens, str) or not isinstance(tokens, Iterable):
            raise ValueError(f"expected[{request_id!r}] is {tokens!r}, but a list of token ids is needed")
        if not any(request_id in trace.requests or trace.forgotten for trace in traces.values()):
            known = ", ".join(dict.fromkeys(repr(key) for trace in traces.values() for key in trace.requests))
            raise ValueError(f"expected names the request {request_id!r}, but the traces have {known[:200] or 'none'}")


def _ids(trace: Trace) -> list[str]:
    return [*trace.requests, *(event.request_id for event in trace.events)]


def to_json(data: dict) -> str:
    """ASCII text, also where a name is half of a surrogate pair."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _engine(name: str, trace: Trace, index: dict[str, int], texts: dict[str, int], expected: Expected | None) -> dict:
    rows = Rows(trace)
    gaps = _gaps(trace)
    stalls = _stalls(trace, gaps)
    pieces = {index[key]: [texts.setdefault(piece, len(texts)) for piece in own] for key, own in trace.pieces.items()}
    return {
        "name": name,
        "slots": max(trace.max_num_seqs, rows.count),
        "time": [iteration.time for iteration in trace.iterations],
        "duration": [iteration.duration for iteration in trace.iterations],
        "padding": [iteration.padding for iteration in trace.iterations],
        "padding_known": _knows_padding(trace),
        "budget": [iteration.budget for iteration in trace.iterations],
        "runs": _runs(trace, rows, index),
        "held": [[row, index[who], first, end] for row, who, first, end in rows.held],
        "preempted": [[row, index[who], first, end] for row, who, first, end in rows.preempted],
        "batch": _changes((tuple(span.request_id for span in i.spans) for i in trace.iterations), index),
        "waiting": _changes(trace.queues(), index),
        "events": [[e.iteration, e.kind, index[e.request_id], e.detail, e.cached] for e in trace.events],
        "stalls": [[each.first, each.end, each.times, [index[who] for who in each.request_ids]] for each in stalls],
        "records": {index[record.request_id]: _record(record) for record in trace.requests.values()},
        "pieces": pieces,
        "diverged": {index[key]: place for key, place in _diverged(trace, expected).items()},
        "forgotten": trace.forgotten,
        "earlier": {index[key]: [earlier.tokens, earlier.first] for key, earlier in trace.earlier.items()},
        "num_slots": trace.num_slots,
        "block_size": trace.block_size,
        "contiguous": trace.contiguous,
        "memory": holdings(trace, index),
        "captions": captions(trace, rows.entered, stalls),
    }


def _tops(engines: list[dict]) -> list[float]:
    """Where the axes of the batch end: one scale for all engines, so that their bars can be compared. A budget far
    above all rows is not on it."""
    tallest = max(axis_top(list(map(sum, composition(engine)))) for engine in engines)
    budgets = [max((budget for budget in engine["budget"] if budget is not None), default=0) for engine in engines]
    rows = max(tallest, *(budget for budget in budgets if budget <= 2 * tallest), 0)
    return [rows, max(axis_top(engine["duration"]) for engine in engines)]


def _knows_padding(trace: Trace) -> bool:
    """False for a scheduler, or a toy, that was driven without a model: each iteration takes 1, no token has a text."""
    is_timed = any(iteration.padding or iteration.duration != 1 for iteration in trace.iterations)
    return is_timed or bool(trace.pieces)


def _record(record: RequestRecord) -> list:
    text = record.prompt
    if text is not None and len(text) > PROMPT:
        text = f"{text[: PROMPT // 2]} … {text[-PROMPT // 2 :]}"
    return [
        *(record.num_prompt_tokens, record.max_tokens, record.arrival, record.priority),
        *(record.ttft_target, record.tbt_target, text),
    ]


def _runs(trace: Trace, rows: Rows, index: dict[str, int]) -> list[list]:
    runs: list[list] = []
    latest: dict[str, tuple[tuple, list]] = {}  # of each request: how its run would go on, and the run
    for number, iteration in enumerate(trace.iterations):
        for span, row in zip(iteration.spans, rows.of[number], strict=True):
            phase = PHASES.index(trace.phase(span))
            way = (row, phase, span.n_tokens, span.draft, span.recomputed)
            goes_on, run = latest.get(span.request_id, (None, []))
            if goes_on != (*way, number, span.start):
                run = [row, index[span.request_id], phase, number, 0, span.start, span.n_tokens, [], *way[3:]]
                runs.append(run)
            run[4] += 1
            run[7].append(_short(span.tokens))
            latest[span.request_id] = ((*way, number + 1, span.end), run)
    return runs


def _short(tokens: tuple[int, ...]) -> int | list[int] | None:
    return list(tokens) if len(tokens) > 1 else next(iter(tokens), None)


def _changes(lists: Iterable[tuple[str, ...]], index: dict[str, int]) -> list[list]:
    """What turns each list of request ids into the next one; the first begins as []."""
    changes, before = [], ()
    for number, now in enumerate(lists):
        if now == before:
            continue
        still, was = set(now), set(before)
        stay = [request_id for request_id in before if request_id in still]
        if stay != [request_id for request_id in now if request_id in was]:
            stay, was = [], set()  # those that stay have changed places: all leave and come
        left = [index[request_id] for request_id in before if not stay or request_id not in still]
        come = [[place, index[request_id]] for place, request_id in enumerate(now) if request_id not in was]
        changes.append([number, left, come])
        before = now
    return changes


def _gaps(trace: Trace) -> list[tuple[str, int, int, float]]:
    """(request id, iteration of a token, iteration of its next one, seconds between them)."""
    came: dict[str, list[int]] = {}
    for number, iteration in enumerate(trace.iterations):
        for span in iteration.spans:
            if span.tokens:
                came.setdefault(span.request_id, []).append(number)
    ends = [iteration.end for iteration in trace.iterations]
    return [(key, i, j, ends[j] - ends[i]) for key, numbers in came.items() for i, j in pairwise(numbers)]


def _stalls(trace: Trace, gaps: list[tuple[str, int, int, float]]) -> list[Stall]:
    """Gaps longer than was promised, or, without a promise, longer than STALL times the median gap for a cause that
    the trace shows: a long gap without one is the machine's."""
    usual = median([gap for *_, gap in gaps] or [0.0])
    stalls: dict[tuple[int, int, str], Stall] = {}
    for request_id, first, end, gap in gaps:
        promised = trace.requests[request_id].tbt_target
        if gap <= (STALL * usual if promised is None else promised):
            continue
        cause = _cause(trace, request_id, first, end)
        if cause or promised is not None:
            times = round(gap / usual, 1) if usual else 0.0
            stalls.setdefault((first, end, cause), Stall(first, end, times, cause, [])).request_ids.append(request_id)
    return sorted(stalls.values(), key=lambda stall: stall.end)


def _cause(trace: Trace, request_id: str, first: int, end: int) -> str:
    """What a request waited for between its tokens of two iterations: its turn, or others' prompts."""
    between = trace.iterations[first + 1 : end + 1]
    missed = sum(all(span.request_id != request_id for span in iteration.spans) for iteration in between)
    if missed:
        return f", not run for {counted(missed, 'iteration')}"
    others = [
        (span.request_id, trace.phase(span))
        for iteration in between
        for span in iteration.spans
        if span.request_id != request_id and trace.phase(span) != "decode"
    ]
    if not others:
        return ""
    (who, phase), *more = dict.fromkeys(others)
    return f" behind {label(who)}'s {phase}" + (f" and {len(more)} more" if more else "")


def _diverged(trace: Trace, expected: Expected | None) -> dict[str, list]:
    """[index, expected token, its text] of each request whose tokens are not the expected ones; None past their end."""
    if expected is None:
        return {}
    right = _emitted(expected) if isinstance(expected, Trace) else expected
    pieces = expected.pieces if isinstance(expected, Trace) else {}
    ended = {event.request_id for event in trace.events if event.kind == "finish"}
    found = {}
    for request_id, tokens in _emitted(trace).items():
        if request_id not in right:
            continue
        wanted = list(right[request_id])
        differ = (n for n, (a, b) in enumerate(zip(tokens, wanted)) if a != b and a is not None and b is not None)
        place = next(differ, min(len(tokens), len(wanted)))
        if place < len(tokens) or (place < len(wanted) and request_id in ended):
            texts = pieces.get(request_id, [])
            found[request_id] = [place, *(part[place] if place < len(part) else None for part in (wanted, texts))]
    return found


def _emitted(trace: Trace) -> dict[str, list[int | None]]:
    """All tokens of each request; None for one that the trace has forgotten."""
    tokens: dict[str, list[int | None]] = {request_id: [] for request_id in trace.requests}
    for request_id, earlier in trace.earlier.items():
        tokens[request_id] = [None] * earlier.tokens
    for iteration in trace.iterations:
        for span in iteration.spans:
            tokens[span.request_id].extend(span.tokens)
    return tokens
