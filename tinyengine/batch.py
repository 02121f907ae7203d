"""One iteration's input: the tokens of all requests as one stream of rows, and where each request's rows are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from tinyengine.memory import Blocks, Slots
from tinyengine.request import Request
from tinyengine.scheduler import Plan, Tokens
from tinyengine.speculate import accept


@dataclass
class Batch:
    """R rows, of which N are real tokens (R = N in a flat batch); B requests, in plan order.

    tokens [R], positions [R]: long; a padding row holds token 0 at position 0.
    real: the rows that hold tokens [N], long, or None where all of them do.
    slot_mapping [N]: long, the K/V slot of each real token.
    counts: tokens of each request in this iteration (query lengths).
    lengths: tokens of each request in the arena when this iteration is done (key lengths).
    tables, block_size: position p of a request is slot table[p // block_size] * block_size + p % block_size.
    due: the plan's index of each row whose next token is wanted: the last of a request that has caught up, and as many
        before it as it has guesses. guessed [len(due)]: how many guesses come before that token. last [len(due)]: the
        rows, long.

    Varlen kernels know the same under other names: cu_seqlens_q, seqused_k and block_table.
    """

    plan: Plan
    tokens: torch.Tensor
    positions: torch.Tensor
    real: torch.Tensor | None
    slot_mapping: torch.Tensor
    counts: list[int]
    lengths: list[int]
    tables: list[range | list[int]]
    block_size: int
    due: list[int]
    guessed: list[int]
    last: torch.Tensor

    @property
    def padding(self) -> int:
        """Rows that are computed for nothing."""
        return len(self.tokens) - len(self.slot_mapping)

    @property
    def due_requests(self) -> list[Request]:
        return [self.plan[index][0] for index in self.due]

    @cached_property
    def cu_seqlens_q(self) -> torch.Tensor:
        """Where each request's rows begin in a flat batch, and where the last one's end: [B + 1], int32."""
        return self._int32([0, *accumulate(self.counts)])

    @cached_property
    def seqused_k(self) -> torch.Tensor:
        """`lengths`: [B], int32."""
        return self._int32(self.lengths)

    @cached_property
    def block_table(self) -> torch.Tensor:
        """`tables` as a rectangle, filled up with 0, which nobody reads: [B, most blocks], int32."""
        sizes = [-(-length // self.block_size) for length in self.lengths]
        rows = [[*table[:size], *[0] * (max(sizes) - size)] for table, size in zip(self.tables, sizes)]
        return self._int32(rows)

    def slots(self, index: int) -> slice | torch.Tensor:
        """The slots of request `index`'s positions 0 .. length - 1: a slice where they are one piece, else [length]."""
        table, length = self.tables[index], self.lengths[index]
        if isinstance(table, range) and self.block_size == 1:
            return slice(table.start, table.start + length)
        blocks = torch.tensor(table[: -(-length // self.block_size)])  # [blocks]
        slots = blocks[:, None] * self.block_size + torch.arange(self.block_size)  # [blocks, block_size]
        return slots.flatten()[:length].to(self.tokens.device)

    def per_plan(self, chosen: list[int]) -> Tokens:
        """Spreads the tokens that were chosen for the due rows over the plan, as `Scheduler.commit` wants them: None
        for a request that is not due, a list for one with guesses."""
        spread: Tokens = [None] * len(self.plan)
        rows = iter(chosen)
        for index in dict.fromkeys(self.due):
            request = self.plan[index][0]
            own = [next(rows) for _ in range(len(request.draft) + 1)]
            spread[index] = accept(request, own) if request.draft else own[0]
        return spread

    def _int32(self, numbers: Sequence) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.tokens.device)


def flat(plan: Plan, memory: Slots | Blocks, rows: int, device: torch.device) -> Batch:
    """Selective batching's stream: the requests' tokens one behind the other, nothing else (Orca, section 3.2).

    `rows` is of no use here: a stream has as many rows as tokens.
    """
    offsets, offset = [], 0
    for _, count in plan:
        offsets.append(offset)
        offset += count
    return _build(plan, memory, offsets, offset, device)


def rectangle(plan: Plan, memory: Slots | Blocks, rows: int, device: torch.device) -> Batch:
    """`rows` requests by the longest one's tokens, padded on the right: what a model without selective batching needs.
    Rows past the plan belong to requests that have ended and still take part."""
    width = max(count for _, count in plan)
    return _build(plan, memory, [index * width for index in range(len(plan))], rows * width, device)


def _build(plan: Plan, memory: Slots | Blocks, offsets: list[int], size: int, device: torch.device) -> Batch:
    tokens, positions, real, slot_mapping = [0] * size, [0] * size, [], []
    lengths, due, guessed, last = [], [], [], []
    for index, ((request, count), offset) in enumerate(zip(plan, offsets, strict=True)):
        first, end, guesses = request.computed, request.computed + count, len(request.draft)
        text = request.tokens + request.draft if guesses else request.tokens
        tokens[offset : offset + count] = text[first:end]
        positions[offset : offset + count] = range(first, end)
        real.extend(range(offset, offset + count))
        slot_mapping.extend(memory.slots(request, first, end))
        lengths.append(end)
        if end == len(text):
            due.extend([index] * (guesses + 1))
            guessed.extend(range(guesses + 1))
            last.extend(range(offset + count - guesses - 1, offset + count))

    def on_device(numbers):
        return torch.tensor(numbers, dtype=torch.long, device=device)

    return Batch(
        plan=plan,
        tokens=on_device(tokens),
        positions=on_device(positions),
        real=on_device(real) if len(real) < size else None,
        slot_mapping=on_device(slot_mapping),
        counts=[count for _, count in plan],
        lengths=lengths,
        tables=[request.table for request, _ in plan],
        block_size=memory.block_size,
        due=due,
        guessed=guessed,
        last=on_device(last),
    )
