"""One iteration's input: the tokens of all requests as one stream of rows, and where each request's rows are."""

from array import array
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

    @property
    def cu_seqlens_q(self) -> torch.Tensor:
        """Where each request's rows begin in a flat batch, and where the last one's end: [B + 1], int32."""
        return self.varlen[0]

    @property
    def seqused_k(self) -> torch.Tensor:
        """`lengths`: [B], int32."""
        return self.varlen[1]

    @property
    def block_table(self) -> torch.Tensor:
        """`tables` as a rectangle, filled up with 0, which nobody reads: [B, most blocks], int32."""
        return self.varlen[2]

    @cached_property
    def varlen(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The three of them, where they did not come with the rest (`paged` brings them)."""
        columns = _varlen_columns(self.counts, self.lengths, self.tables, self.block_size)
        return _as_varlen(*on_device(columns, self.tokens.device))

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


def on_device(columns: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Lists of whole numbers as long tensors, with one copy to the device for all of them: on CUDA a copy costs about
    as much as a small kernel, whatever its size."""
    numbers = array("q")  # a list would take three times as long: torch asks each of its elements what it is
    for column in columns:
        numbers.extend(column)
    whole = to_device(torch.frombuffer(numbers, dtype=torch.long), device)
    return whole.split([len(column) for column in columns])


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On CUDA the copy waits its turn behind the work in flight, and nobody waits for it: that takes pinned memory."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def flat(plan: Plan, memory: Slots | Blocks, rows: int, device: torch.device) -> Batch:
    """Selective batching's stream: the requests' tokens one behind the other, nothing else (Orca, section 3.2).

    `rows` is of no use here: a stream has as many rows as tokens.
    """
    return _build(plan, memory, *_offsets(plan), device)


def paged(plan: Plan, memory: Slots | Blocks, rows: int, device: torch.device) -> Batch:
    """`flat`, and with it, in the same copy, the integers by which a kernel finds its way through blocks."""
    return _build(plan, memory, *_offsets(plan), device, with_tables=True)


def rectangle(plan: Plan, memory: Slots | Blocks, rows: int, device: torch.device) -> Batch:
    """`rows` requests by the longest one's tokens, padded on the right: what a model without selective batching needs.
    Rows past the plan belong to requests that have ended and still take part."""
    width = max(count for _, count in plan)
    return _build(plan, memory, [index * width for index in range(len(plan))], rows * width, device)


def _offsets(plan: Plan) -> tuple[list[int], int]:
    """Where each request's rows begin when they stand one behind the other, and how many there are."""
    ends = list(accumulate(count for _, count in plan))
    return [0, *ends[:-1]], ends[-1]


def _build(
    plan: Plan,
    memory: Slots | Blocks,
    offsets: list[int],
    size: int,
    device: torch.device,
    with_tables: bool = False,
) -> Batch:
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

    counts = [count for _, count in plan]
    tables = [request.table for request, _ in plan]
    columns = [tokens, positions, real if len(real) < size else [], slot_mapping, last]
    if with_tables:
        columns += _varlen_columns(counts, lengths, tables, memory.block_size)
    columns = on_device(columns, device)
    batch = Batch(
        plan=plan,
        tokens=columns[0],
        positions=columns[1],
        real=columns[2] if len(real) < size else None,
        slot_mapping=columns[3],
        counts=counts,
        lengths=lengths,
        tables=tables,
        block_size=memory.block_size,
        due=due,
        guessed=guessed,
        last=columns[4],
    )
    if with_tables:
        batch.varlen = _as_varlen(*columns[5:])
    return batch


def _varlen_columns(counts, lengths, tables, block_size: int) -> list[list[int]]:
    """cu_seqlens_q, seqused_k and block_table, the last one row behind the other."""
    sizes = [-(-length // block_size) for length in lengths]
    rows = []
    for table, size in zip(tables, sizes):
        rows += table[:size]
        rows += [0] * (max(sizes) - size)
    return [[0, *accumulate(counts)], lengths, rows]


def _as_varlen(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, table: torch.Tensor):
    return cu_seqlens_q.int(), seqused_k.int(), table.int().view(len(seqused_k), -1)
