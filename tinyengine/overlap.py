"""One step of overlap: while the GPU computes an iteration, the CPU already schedules and launches the next one.

A request's newest token is then not known yet. In `tokens` it is PENDING, which is enough to schedule by: the next
iteration takes its input from where the last one left it, on the device. What a value decides, it decides one iteration
late: a request that turns out to have ended has computed one token for nothing, which nobody ever gets.
Source: asynchronous scheduling as in vLLM and SGLang; NanoFlow (2024), section 4.2.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tinyengine.batch import Batch, on_device
from tinyengine.request import PENDING, Request

Fetch = Callable[[torch.Tensor], Callable[[], list[int]]]


@dataclass
class Flight:
    """An iteration whose tokens are on their way.

    requests: who is owed a token, in order of `chosen` [n], which is on the device. number: of the iteration in the
    trace. n_tokens: rows of its batch. arrive() waits for the tokens.
    """

    requests: list[Request]
    chosen: torch.Tensor
    number: int
    n_tokens: int
    arrive: Callable[[], list[int]]


def fetch(chosen: torch.Tensor) -> Callable[[], list[int]]:
    """Starts the copy of tokens [n] to the CPU; what it returns waits until the device has come so far."""
    if not chosen.is_cuda:
        return chosen.tolist
    host = torch.empty(chosen.shape, dtype=chosen.dtype, pin_memory=True)
    host.copy_(chosen, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def arrive() -> list[int]:
        done.synchronize()
        return host.tolist()

    return arrive


def take_tokens(batch: Batch, flight: Flight):
    """Puts the tokens of `flight` into the rows of the next batch that wait for them, without leaving the device."""
    places = {id(request): place for place, request in enumerate(flight.requests)}
    waiting = [(row, places[id(one)]) for row, one in enumerate(batch.due_requests) if one.tokens[-1] == PENDING]
    if waiting:
        rows, sources = on_device(list(zip(*waiting, strict=True)), batch.tokens.device)
        batch.tokens[batch.last[rows]] = flight.chosen[sources]


def must_wait(scheduler, requests) -> bool:
    """Whether the next iteration depends on the values of the last one's tokens: guesses are looked up in them, and a
    penalty falls on them."""
    if getattr(scheduler, "num_speculative_tokens", 0):
        return True
    return any(request.params.repetition_penalty != 1.0 for request in requests)
