"""A lesson's toy keeps a plain list of batches. Here it becomes a Trace, so that the same pictures draw it."""

from collections import Counter

from tinyengine.trace import Event, Iteration, RequestRecord, Span, Trace


def toy_trace(history: list[list[str]], slots: int, name: str = "toy") -> Trace:
    """history: for each iteration the ids of the requests in the batch, in order. slots: batch slots.

    One iteration lasts one second, and every request gets one token from each of its iterations.
    """
    owed = Counter(request_id for batch in history for request_id in batch)
    trace = Trace(name, max_num_seqs=slots)
    for request_id, tokens in owed.items():
        trace.requests[request_id] = RequestRecord(request_id, 1, tokens, arrival=0.0)
        trace.events.append(Event(0, "arrive", request_id))
    got: Counter[str] = Counter()
    for number, batch in enumerate(history):
        trace.events += [Event(number, "admit", request_id) for request_id in batch if not got[request_id]]
        spans = tuple(Span(request_id, got[request_id], 1, tokens=(0,)) for request_id in batch)
        trace.iterations.append(Iteration(float(number), 1.0, spans))
        got.update(batch)
        trace.events += [
            Event(number, "finish", request_id, "length") for request_id in batch if got[request_id] == owed[request_id]
        ]
    return trace
