"""A scheduler under watch whose requests may overtake: a request that does not fit is passed, but not for ever."""

from collections import Counter

from tinyengine.course.watch import Watch
from tinyengine.trace import Trace


class Overtaking(Watch):
    """One run of a scheduler class with an attribute `patience`: how often a request may be overtaken.

    case: (sizes, max_num_seqs, n_slots, patience).
    """

    rules = Watch.rules | {"order": "no request is overtaken more than `patience` times"}

    def __init__(self, scheduler_class, case: tuple, named=None):
        self.overtaken, self.patience = Counter(), case[3]
        super().__init__(scheduler_class, case[:3], named, patience=self.patience)

    def look_at_order(self, queue, waiting, running) -> None:
        """Counts who is overtaken, and looks whether the queue keeps its order."""
        joined = [request for request in running if request in queue]
        for request in waiting:
            name = request.request_id
            self.overtaken[name] += sum(self.place(request) < self.place(other) for other in joined)
            if self.overtaken[name] > self.patience:
                self.note("order", f"{name} has been overtaken {self.overtaken[name]} times")
        if waiting != sorted(waiting, key=self.place):
            names = ", ".join(request.request_id for request in waiting)
            self.note("order", f"the queue is now {names}: who waits keeps the place")

    def look_at_joining(self, waiting, running, joined: int) -> None:
        """The first time that one more request could have joined is kept in `late`."""
        if self.late or len(running) == self.max_num_seqs:
            return
        for request in sorted(waiting, key=self.place):
            if self.memory.fits(request):
                self.late = f"{self.here()}: {request.request_id} may join, fits, and waits"
                self.when["late"] = len(self.plans) + 1
                return
            if self.overtaken[request.request_id] >= self.patience:
                return


def joins(trace: Trace) -> dict[str, int]:
    """The iteration in which each request joins, from 1."""
    first = {}
    for number, iteration in enumerate(trace.iterations, 1):
        for span in iteration.spans:
            first.setdefault(span.request_id, number)
    return first
