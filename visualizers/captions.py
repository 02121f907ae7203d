"""One sentence per iteration, in the course's own words. Pure Python."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tinyengine.trace import Event, Holding, Iteration, Trace

LONGEST_LABEL = 24  # characters; the tooltip of the widget shows the whole id
NAMED = 2  # requests named in one part of a sentence; the rest are counted


def label(request_id: str) -> str:
    """How pictures name a request: its id, printable and not too long; a bare number becomes "req 3"."""
    text = "".join(char if char.isprintable() else " " for char in request_id).strip() or "(no name)"
    if text.isascii() and text.isdigit():
        text = f"req {text}"
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


@dataclass
class Stall:
    """A gap between two tokens that was long, and why. first, end: iterations of the two tokens. times: gap / usual
    gap. cause: in words, or "" where more than was promised passed without one in the trace."""

    first: int
    end: int
    times: float
    cause: str
    request_ids: list[str]


def captions(trace: Trace, entered: list[dict[str, tuple[int, str | None]]], stalls: list[Stall]) -> list[str]:
    """entered: per iteration, {request id: (batch slot, the request that had it before)}."""
    events, late = defaultdict(list), defaultdict(list)
    for event in trace.events:
        events[event.iteration, event.kind].append(event)
    for stall in stalls:
        late[stall.end].append(stall)
    return [
        f"iteration {number + 1}: "
        + _sentence(trace, number, iteration, waiting, entered[number], events, late[number])
        for number, (iteration, waiting) in enumerate(zip(trace.iterations, trace.queue_lengths(), strict=True))
    ]


def _sentence(
    trace: Trace, number: int, iteration: Iteration, waiting: int, entered: dict, events: dict, late: list[Stall]
) -> str:
    """In the order in which it happened: requests that left and came before the forward pass, what ran, what ended."""
    cached = {event.request_id: event.cached for event in events[number, "admit"]}
    held = iteration.memory
    parts = [
        f"{counted(trace.forgotten, 'iteration')} before it forgotten" if trace.forgotten and not number else "",
        _list(f"{label(event.request_id)} preempted" for event in events[number, "preempt"]),
        _list(_entry(request_id, *place, cached.get(request_id, 0)) for request_id, place in entered.items()),
        _work(trace, iteration),
        *map(_stall, late),
        _list(_ending(event, held.get(event.request_id), trace) for event in events[number, "finish"]),
        _list(f"{label(event.request_id)} aborted" for event in events[number, "abort"]),
        f"{iteration.padding} padding {plural('row', iteration.padding)}" if iteration.padding else "",
        f"{waiting} waiting" if waiting else "",
    ]
    return "; ".join(part for part in parts if part)


def _stall(stall: Stall) -> str:
    return f"{_list(map(label, stall.request_ids))} stalled{stall.cause} ({stall.times:g} times the usual gap)"


def _list(phrases: Iterable[str]) -> str:
    phrases = list(phrases)
    more = len(phrases) - NAMED
    return ", ".join(phrases[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _entry(request_id: str, row: int, before: str | None, cached: int) -> str:
    found = f" with {cached} cached tokens" if cached else ""
    if before in (None, request_id):
        place = "batch slot" if before is None else "its old batch slot"
        return f"{label(request_id)} admitted into {place} {row}{found}"
    return f"{label(request_id)} admitted into {label(before)}'s batch slot{found}"


def _ending(event: Event, held: Holding | None, trace: Trace) -> str:
    said = [event.detail] if event.detail else []
    if held is not None:
        size = held.reserved // trace.block_size
        said.append(f"gives back {size} {plural('K/V slot' if trace.block_size == 1 else 'block', size)}")
    return f"{label(event.request_id)} finished" + (f" ({', '.join(said)})" if said else "")


def _work(trace: Trace, iteration: Iteration) -> str:
    """As in "1 prefill (12 tokens), 3 decodes"."""
    spans, tokens = Counter(), Counter()
    for span in iteration.spans:
        phase = trace.phase(span)
        spans[phase] += 1
        tokens[phase] += span.n_tokens - span.draft
    parts = []
    for phase, count in spans.items():
        size = "" if phase == "decode" else f" ({tokens[phase]} {plural('token', tokens[phase])})"
        parts.append(f"{count} {plural(phase, count)}{size}")
    guesses = sum(span.draft for span in iteration.spans)
    if guesses:
        right = guesses - sum(span.rejected for span in iteration.spans)
        parts.append(f"{guesses} {plural('guess', guesses)}, {right} right")
    return ", ".join(parts) or "nothing ran"


def counted(count: int, word: str) -> str:
    return f"{count} {plural(word, count)}"


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}es" if word.endswith("s") else f"{word}s"
