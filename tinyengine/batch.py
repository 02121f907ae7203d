"""One iteration's input: the tokens of all requests as one stream of rows, and where each request's rows are."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from tinyengine.memory import Blocks, Slots
from tinyengine.request import Request
from tinyengine.scheduler import Plan


@dataclass
class Batch:
    """R rows, of which N are real tokens (R = N in a flat batch); B requests, in plan order.

    tokens [R], positions [R]: long; a padding row holds token 0 at position 0.
    real [N]: the rows that hold tokens, long, or None where all of them do.
    slot_mapping [N]: long, the K/V slot of each real token.
    counts: tokens of each request in this iteration (query lengths).
    lengths: tokens of each request in the arena when this iteration is done (key lengths).
    block_size: position p of a request is slot table[p // block_size] * block_size + p % block_size.
    wanted: (request, n) of each row whose next token is wanted; n tokens stand before that next one.
    last [len(wanted)]: the index of each such row, long.

    Attention over blocks reads these as tensors: cu_seqlens_q, seqused_k and block_table, named as in FlashAttention.
    """

    plan: Plan
    tokens: torch.Tensor
    positions: torch.Tensor
    real: torch.Tensor | None
    slot_mapping: torch.Tensor
    counts: list[int]
    lengths: list[int]
    block_size: int
    wanted: list[tuple[Request, int]]
    last: torch.Tensor

    @cached_property
    def padding(self) -> int:
        """Rows that are computed for nothing."""
        return len(self.tokens) - len(self.slot_mapping)

    @cached_property
    def starts(self) -> list[int]:
        """Where each request's rows begin in a flat batch, and where the last one's end: B + 1 numbers."""
        return [0, *accumulate(self.counts)]

    @cached_property
    def tables(self) -> list[list[int] | range]:
        """The blocks of each request that this iteration reads."""
        each = zip(self.plan, self.lengths)
        return [request.table[: -(-length // self.block_size)] for (request, _), length in each]

    @cached_property
    def cu_seqlens_q(self) -> torch.Tensor:
        """`starts` [B + 1], int32."""
        return torch.tensor(self.starts, dtype=torch.int32, device=self.tokens.device)

    @cached_property
    def seqused_k(self) -> torch.Tensor:
        """`lengths` [B], int32."""
        return torch.tensor(self.lengths, dtype=torch.int32, device=self.tokens.device)

    @cached_property
    def block_table(self) -> torch.Tensor:
        """`tables` as a rectangle [B, most blocks], int32, filled up with 0, which is never read."""
        width = max(map(len, self.tables))
        filled = [[*table, *[0] * (width - len(table))] for table in self.tables]
        return torch.tensor(filled, dtype=torch.int32, device=self.tokens.device)

    def slots(self, index: int) -> torch.Tensor:
        """The K/V slots of request `index`'s positions 0 .. length - 1: [length], long."""
        blocks = torch.tensor(self.tables[index], device=self.tokens.device)  # [blocks]
        within = torch.arange(self.block_size, device=self.tokens.device)
        slots = blocks[:, None] * self.block_size + within  # [blocks, block_size]
        return slots.flatten()[: self.lengths[index]]


def flat(plan: Plan, memory: Slots | Blocks, height: int, device: torch.device) -> Batch:
    """Selective batching's stream: the requests' tokens one behind the other, nothing else (Orca, section 3.2). It has
    as many rows as tokens, whatever `height` says."""
    starts = [0, *accumulate(n_tokens for _, n_tokens in plan)]
    return lay_out(plan, memory, starts[:-1], starts[-1], device)


def rectangle(plan: Plan, memory: Slots | Blocks, height: int, device: torch.device) -> Batch:
    """`height` requests by the longest one's tokens, padded on the right, for a model without selective batching.
    Rows past the plan belong to requests that have ended and still take part."""
    width = max(n_tokens for _, n_tokens in plan)
    return lay_out(plan, memory, [index * width for index in range(len(plan))], height * width, device)


def lay_out(plan: Plan, memory: Slots | Blocks, starts: list[int], size: int, device: torch.device) -> Batch:
    """A batch of `size` rows, in which the request at each place of the plan has its rows from its start on."""
    tokens, positions, real, slot_mapping, wanted, last = [0] * size, [0] * size, [], [], [], []
    for (request, n_tokens), start in zip(plan, starts):
        first, end = request.computed, request.computed + n_tokens
        tokens[start : start + n_tokens] = request.tokens[first:end]
        positions[start : start + n_tokens] = range(first, end)
        real += range(start, start + n_tokens)
        slot_mapping += memory.slots(request, first, end)
        if end == len(request.tokens):  # it has caught up: a token is wanted of its last row, and of `guesses` more
            for back in range(request.guesses, -1, -1):
                wanted.append((request, end - back))
                last.append(start + n_tokens - 1 - back)

    def long(numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=device)

    counts, lengths = [n_tokens for _, n_tokens in plan], [request.computed + n_tokens for request, n_tokens in plan]
    where = long(real) if len(real) < size else None
    stream = long(tokens), long(positions), where, long(slot_mapping)
    return Batch(plan, *stream, counts, lengths, memory.block_size, wanted, long(last))
