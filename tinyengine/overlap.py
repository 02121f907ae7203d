"""One step of overlap: while the GPU computes an iteration, the CPU already schedules and launches the next one.

A request's newest token is then not known yet. In `tokens` it is PENDING, which is enough to schedule by: the next
iteration takes its input from where the last one left it, on the device. An ending is noticed one iteration late: a
request that turns out to have ended has computed one token for nothing, which is thrown away.
Source: asynchronous scheduling as in vLLM and SGLang; NanoFlow (2024), section 4.2.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tinyengine.batch import Batch
from tinyengine.engine import Engine
from tinyengine.guard import whole
from tinyengine.outputs import StreamedToken
from tinyengine.request import Request
from tinyengine.sampler import choose
from tinyengine.scheduler import Plan, Token
from tinyengine.trace import Iteration

PENDING = -1  # stands in `tokens` for one that is computed, but not known yet


@dataclass
class Flight:
    """An iteration whose tokens are on their way.

    requests: which are owed a token, in order of `chosen` [n], which is on the device. number: of the iteration in the
    trace, where it started at `time`. n_tokens: rows of its batch. land() waits for the tokens.
    """

    requests: list[Request]
    chosen: torch.Tensor
    number: int
    time: float
    n_tokens: int
    land: Callable[[], list[int]]


class OverlappedEngine(Engine):
    """An Engine with a step of its own: it launches an iteration, and gives the tokens of the one before. The outputs
    are those of Engine. Iterations that depend on the values of the last tokens wait for these: those with guesses,
    which are looked up in them, and with a repetition penalty, which falls on them.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.fetch = fetch
        self._flight: Flight | None = None
        self._device_free = 0.0  # when the last iteration was done

    @whole
    @torch.inference_mode()
    def step(self) -> list[StreamedToken]:
        """Launches one iteration, and gives the tokens of the one before it."""
        self.outputs.settle()
        if self._must_wait():
            self._land()
            return super().step()
        self._receive(started := self.clock.now())
        plan = self.scheduler.schedule()
        if not plan:
            return self.settle() if self._flight else self._idle()
        batch = self.attention.layout(plan, self.memory, self.scheduler.height(plan), self.model.device)
        chosen = self._launch(batch)
        iteration = self._record_launch(plan, batch, started)
        land = self.fetch(chosen)
        self._land()
        self._count(plan)
        number = self.trace.append(iteration)
        owed = [request for request, _ in batch.wanted]
        self._flight = Flight(owed, chosen, number, started, len(batch.tokens), land)
        streamed = self.outputs.deliver()
        if not self.outputs.open:  # what is still on its way belongs to requests that have ended
            self._land()
        return streamed

    @whole
    def settle(self) -> list[StreamedToken]:
        """Waits for the tokens that are on their way, if there are any, and delivers them."""
        self._land()
        return self.outputs.deliver()

    def _must_wait(self) -> bool:
        if getattr(self.scheduler, "num_speculative_tokens", 0):
            return True
        return any(entry.request.params.repetition_penalty != 1.0 for entry in self.outputs.open.values())

    def _launch(self, batch: Batch) -> torch.Tensor:
        """The next token of each wanted row [len(batch.wanted)], as the device will compute it."""
        if self._flight:
            take_tokens(batch, self._flight)
        return choose(self.logits(batch), batch.wanted, self.draw)

    def _record_launch(self, plan: Plan, batch: Batch, started: float) -> Iteration:
        budget, none = self.scheduler.token_budget, [None] * len(plan)
        times = dict(time=started, duration=0.0)  # until it lands
        return self.trace.iteration(plan, none, self.memory, padding=batch.padding, budget=budget, **times)

    def _count(self, plan: Plan):
        """What `Scheduler.commit` would do, as far as it is known: counts the plan as computed, and appends PENDING. A
        request that can get no further token leaves the batch, and keeps its memory until its last token has landed."""
        for request, n_tokens in plan:
            if request.finished:
                continue
            request.computed += n_tokens
            if request.gap == 0:
                request.tokens.append(PENDING)
                if len(request.tokens) == request.max_slots:
                    self.scheduler.running.remove(request)

    def _land(self):
        """Writes the tokens that were on their way where PENDING stood, and leaves them to be delivered."""
        flight = self._flight
        if flight is None:
            return
        with self.guard.window():
            tokens = flight.land()
        self.clock.iteration_done()
        now = self.clock.now()
        time = max(flight.time, self._device_free)
        self.scheduler.observe(flight.n_tokens, now - time)
        self._flight, self._device_free = None, now
        landed = []
        for request, token in zip(flight.requests, tokens, strict=True):
            if not request.finished:
                request.tokens[-1] = token
                landed.append(Token(request, token, request.reason_to_finish()))
        for request, _, reason in landed:
            if reason:
                self.scheduler.finish(request, reason)
        came = {token.request.request_id: token.token_id for token in landed}
        self.trace.landed(flight.number, came, time, now - time)
        self.outputs.put(landed)


def fetch(chosen: torch.Tensor) -> Callable[[], list[int]]:
    """Starts the copy of tokens [n] to the CPU; what it returns waits until the device has come so far."""
    if not chosen.is_cuda:
        return chosen.tolist
    host = torch.empty(chosen.shape, dtype=chosen.dtype, pin_memory=True)
    host.copy_(chosen, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def land() -> list[int]:
        done.synchronize()
        return host.tolist()

    return land


def take_tokens(batch: Batch, flight: Flight):
    """Puts the tokens of `flight` into the rows of the next batch that wait for them, without leaving the device."""
    places = {id(request): place for place, request in enumerate(flight.requests)}
    waiting = [
        (row, places[id(request)]) for row, (request, _) in enumerate(batch.wanted) if request.tokens[-1] == PENDING
    ]
    if waiting:
        rows, sources = torch.tensor(waiting, device=batch.tokens.device).T
        batch.tokens[batch.last[rows]] = flight.chosen[sources]
