"""One iteration's input: the tokens of all requests as one stream of rows, and where each request's rows are."""

from dataclasses import dataclass

import torch

from tinyengine.memory import Slots
from tinyengine.request import Request
from tinyengine.scheduler import Plan


@dataclass
class Batch:
    """R rows, of which N are real tokens (R = N in a flat batch); B requests, in plan order.

    tokens [R], positions [R]: long; a padding row holds token 0 at position 0.
    real: the rows that hold tokens [N], long, or None where all of them do.
    slot_mapping [N]: long, the K/V slot of each real token.
    counts: tokens of each request in this iteration (query lengths).
    lengths: tokens of each request in the arena when this iteration is done (key lengths).
    tables: the slots of each request's positions 0 .. length - 1; a range where they are one piece.
    due: which requests of the plan get a token. last [len(due)]: the row of the last token of each.
    """

    plan: Plan
    tokens: torch.Tensor
    positions: torch.Tensor
    real: torch.Tensor | None
    slot_mapping: torch.Tensor
    counts: list[int]
    lengths: list[int]
    tables: list[range | list[int]]
    due: list[int]
    last: torch.Tensor

    @property
    def padding(self) -> int:
        """Rows that are computed for nothing."""
        return len(self.tokens) - len(self.slot_mapping)

    @property
    def due_requests(self) -> list[Request]:
        return [self.plan[index][0] for index in self.due]

    def per_plan(self, tokens: list[int]) -> list[int | None]:
        """Spreads the tokens of the due requests over the plan: None for the others."""
        spread: list[int | None] = [None] * len(self.plan)
        for index, token in zip(self.due, tokens, strict=True):
            spread[index] = token
        return spread


def flat(plan: Plan, memory: Slots, rows: int, device: torch.device) -> Batch:
    """Selective batching's stream: the requests' tokens one behind the other, nothing else (Orca, section 3.2).

    `rows` is of no use here: a stream has as many rows as tokens.
    """
    offsets, offset = [], 0
    for _, count in plan:
        offsets.append(offset)
        offset += count
    return _build(plan, memory, offsets, offset, device)


def rectangle(plan: Plan, memory: Slots, rows: int, device: torch.device) -> Batch:
    """`rows` requests by the longest one's tokens, padded on the right: what a model without selective batching needs.
    Rows past the plan belong to requests that have ended and still take part."""
    width = max(count for _, count in plan)
    return _build(plan, memory, [index * width for index in range(len(plan))], rows * width, device)


def _build(plan: Plan, memory: Slots, offsets: list[int], size: int, device: torch.device) -> Batch:
    tokens, positions, real, slot_mapping = [0] * size, [0] * size, [], []
    counts, lengths, tables, due, last = [], [], [], [], []
    for index, ((request, count), offset) in enumerate(zip(plan, offsets, strict=True)):
        first, end = request.computed, request.computed + count
        tokens[offset : offset + count] = request.tokens[first:end]
        positions[offset : offset + count] = range(first, end)
        real.extend(range(offset, offset + count))
        slot_mapping.extend(memory.slots(request, first, end))
        counts.append(count)
        lengths.append(end)
        tables.append(memory.slots(request, 0, end))
        if end == len(request.tokens):
            due.append(index)
            last.append(offset + count - 1)

    def on_device(numbers):
        return torch.tensor(numbers, dtype=torch.long, device=device)

    return Batch(
        plan,
        on_device(tokens),
        on_device(positions),
        on_device(real) if len(real) < size else None,
        on_device(slot_mapping),
        counts,
        lengths,
        tables,
        due,
        on_device(last),
    )
