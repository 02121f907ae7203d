"""What a trace says in numbers. Times are in the unit of the engine's clock: seconds, or iterations."""

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from tinyengine.trace import RequestRecord, Trace


@dataclass(frozen=True)
class Percentiles:
    """Of a list of times; all None where the list is empty."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: list[float]) -> "Percentiles":
        if not values:
            return cls(None, None, None, None)
        return cls(fmean(values), *(percentile(values, share) for share in (0.50, 0.95, 0.99)))


@dataclass(frozen=True)
class Metrics:
    """A run in numbers.

    ttft: arrival to first token. tbt: the gaps between two tokens of a request, all requests' gaps in one list, so that
        one long stall shows in p99 (a mean per request would hide it); tokens that one step gave together are 0 apart.
        tpot: mean gap of each request. e2e: arrival to last token, of the requests that finished. All of them are over
        requests that got that far: in an overload, those still waiting are not in it.
    tokens_per_s: output tokens by the time from the first arrival to the last token.
    slot_occupancy: busy batch slots / batch slots, over all iterations. idle_slot_steps: the others, counted.
    padded_rows, padding_share: rows computed for nothing, and their share of all rows.
    kv_reserved, kv_used: mean share of the arena that requests hold, and that has K/V in it; what two requests share
        counts once. kv_waste: 1 - used / reserved. kv_waste_past_last_block: the same without the rest of the block in
        which each request's newest token lies. kv_fragmented: mean share of the arena that is free, but outside the
        largest hole; 0 where a request's slots need not be one piece.
    cached_tokens: tokens found in the prefix cache. recomputed_tokens: computed once more after a preemption.
    preemptions: how often a request lost its memory.
    tokens_per_step: tokens per request and iteration that gave any; above 1 with speculation. draft_tokens,
        accepted_tokens: guesses, and right ones.
    goodput: requests a second that finished and met their promise (first token, and every gap); a request without one
        meets it.

    Of a trace that forgets, all of this is about what it still has: time begins with its first iteration, and a first
    token that came before it is in no ttft.
    """

    iterations: int
    output_tokens: int
    ttft: Percentiles
    tbt: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    tokens_per_s: float | None
    slot_occupancy: float
    idle_slot_steps: int
    padded_rows: int
    padding_share: float
    kv_reserved: float
    kv_used: float
    kv_waste: float
    kv_waste_past_last_block: float
    kv_fragmented: float
    cached_tokens: int
    recomputed_tokens: int
    preemptions: int
    tokens_per_step: float | None
    draft_tokens: int
    accepted_tokens: int
    goodput: float | None


def percentile(values: list[float], share: float) -> float:
    """Linear between the two nearest ranks, as numpy's default."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def token_times(trace: Trace) -> dict[str, list[float]]:
    """When each token of each request came, by request id: at the end of its iteration. Without those that the trace
    has forgotten."""
    times: dict[str, list[float]] = {request_id: [] for request_id in trace.requests}
    for iteration in trace.iterations:
        for span in iteration.spans:
            times[span.request_id].extend([iteration.end] * len(span.tokens))
    return times


def measure(trace: Trace) -> Metrics:
    """All numbers of a trace; one without iterations has no times and zeros for the rest."""
    return Metrics(iterations=len(trace.iterations), **_of_requests(trace), **_of_batches(trace), **_of_memory(trace))


def _of_requests(trace: Trace) -> dict:
    """When tokens came, and what was promised."""
    times, earlier = token_times(trace), trace.earlier
    arrival = {request_id: record.arrival for request_id, record in trace.requests.items()}
    since = {key: [earlier[key].last, *moments] if key in earlier else moments for key, moments in times.items()}
    gaps = {key: [later - sooner for sooner, later in pairwise(moments)] for key, moments in since.items()}
    begun = {request_id: moments for request_id, moments in since.items() if moments}
    first = {key: earlier[key].first if key in earlier else moments[0] for key, moments in begun.items()}
    ttft = {key: moment - arrival[key] for key, moment in first.items()}
    ended = {event.request_id for event in trace.events if event.kind == "finish" and event.detail != "error"}
    finished = [request_id for request_id in begun if request_id in ended]
    kept = [key for key in finished if _met(trace.requests[key], ttft[key], gaps[key])]
    output_tokens = sum(map(len, times.values()))
    start = trace.iterations[0].time if trace.forgotten and trace.iterations else min(arrival.values(), default=0.0)
    elapsed = max((moments[-1] for moments in begun.values()), default=0.0) - start
    return dict(
        output_tokens=output_tokens,
        ttft=Percentiles.of([seconds for request_id, seconds in ttft.items() if request_id not in earlier]),
        tbt=Percentiles.of([gap for each in gaps.values() for gap in each]),
        tpot=Percentiles.of([fmean(each) for each in gaps.values() if each]),
        e2e=Percentiles.of([begun[key][-1] - arrival[key] for key in finished]),
        tokens_per_s=output_tokens / elapsed if elapsed > 0 else None,
        goodput=len(kept) / elapsed if elapsed > 0 else None,
    )


def _of_batches(trace: Trace) -> dict:
    """What the rows of the batches were used for."""
    slot_steps = trace.max_num_seqs * len(trace.iterations)
    spans = [span for iteration in trace.iterations for span in iteration.spans]
    padded = sum(iteration.padding for iteration in trace.iterations)
    rows = padded + sum(iteration.num_tokens for iteration in trace.iterations)
    emitting = sum(bool(span.tokens) for span in spans)
    output_tokens = sum(len(span.tokens) for span in spans)
    drafted = sum(span.draft for span in spans)
    return dict(
        slot_occupancy=_share(len(spans), slot_steps),
        idle_slot_steps=slot_steps - len(spans),
        padded_rows=padded,
        padding_share=_share(padded, rows),
        cached_tokens=sum(event.cached for event in trace.events),
        recomputed_tokens=sum(span.recomputed for span in spans),
        preemptions=sum(event.kind == "preempt" for event in trace.events),
        tokens_per_step=output_tokens / emitting if emitting else None,
        draft_tokens=drafted,
        accepted_tokens=drafted - sum(span.rejected for span in spans),
    )


def _of_memory(trace: Trace) -> dict:
    """Shares of the arena, over all iterations."""
    reserved, used, ends, fragmented = (sum(column) for column in _memory_columns(trace))
    slots = trace.num_slots * len(trace.iterations)
    return dict(
        kv_reserved=_share(reserved, slots),
        kv_used=_share(used, slots),
        kv_waste=_share(reserved - used, reserved),
        kv_waste_past_last_block=_share(reserved - ends - used, reserved),
        kv_fragmented=_share(fragmented, slots),
    )


def _met(request: RequestRecord, ttft: float, gaps: list[float]) -> bool:
    """Whether a finished request got its first token, and every later one, as soon as it was promised."""
    if request.ttft_target is not None and ttft > request.ttft_target:
        return False
    return request.tbt_target is None or max(gaps, default=0.0) <= request.tbt_target


def fragmented_slots(ranges: list[tuple[int, int]], num_slots: int) -> int:
    """Free slots outside the largest hole, for held ranges [first, end): no one request could have them."""
    holes, end = [], 0
    for first, past in sorted(ranges):
        holes.append(first - end)
        end = past
    holes.append(num_slots - end)
    return sum(holes) - max(holes)


def _memory_columns(trace: Trace):
    """Reserved and used slots, free slots of last blocks, and fragmented slots of each iteration, as four columns."""
    rows = [(0, 0, 0, 0)]
    for iteration in trace.iterations:
        held = iteration.memory.values()
        ranges = sorted(part for holding in held for part in holding.ranges)
        reserved = _union(ranges)
        shared = sum(holding.reserved for holding in held) - reserved  # only full blocks are: used as often as held
        used = sum(holding.used for holding in held) - shared
        ends = sum(-holding.used % trace.block_size for holding in held)
        rows.append((reserved, used, ends, fragmented_slots(ranges, trace.num_slots) if trace.contiguous else 0))
    return zip(*rows, strict=True)


def _union(ranges: list[tuple[int, int]]) -> int:
    """Slots in at least one of the sorted ranges."""
    size, past = 0, 0
    for first, end in ranges:
        size += max(0, end - max(first, past))
        past = max(past, end)
    return size


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
