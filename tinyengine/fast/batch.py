"""The textbook's flat batch, with one copy to the device for all of its numbers: on CUDA a copy costs about as much as
a small kernel, whatever its size."""

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import torch

from tinyengine import batch as textbook
from tinyengine.batch import Batch
from tinyengine.memory import Blocks, Slots
from tinyengine.scheduler import Plan


class RangeBatch(Batch):
    """A batch whose tables may be ranges: they are not gone through in Python."""

    def slots(self, index: int) -> torch.Tensor:
        table = self.tables[index]
        if isinstance(table, range) and self.block_size == 1:
            return torch.arange(table.start, table.stop, device=self.tokens.device)
        return super().slots(index)


def rectangle(plan: Plan, memory: Slots | Blocks, height: int, device: torch.device) -> RangeBatch:
    """As `batch.rectangle`."""
    return RangeBatch(**vars(textbook.rectangle(plan, memory, height, device)))


def flat(plan: Plan, memory: Slots | Blocks, height: int, device: torch.device) -> Batch:
    """As `batch.flat`."""
    return lay_out(plan, memory, device, with_tables=False)


def flat_with_tables(plan: Plan, memory: Slots | Blocks, height: int, device: torch.device) -> Batch:
    """And with it cu_seqlens_q, seqused_k and block_table, by which a kernel finds its way through blocks."""
    return lay_out(plan, memory, device, with_tables=True)


def lay_out(plan: Plan, memory: Slots | Blocks, device: torch.device, with_tables: bool) -> Batch:
    tokens, positions, slot_mapping, wanted, last, lengths = [], [], [], [], [], []
    for request, n_tokens in plan:
        first, end = request.computed, request.computed + n_tokens
        tokens += request.tokens[first:end]
        positions += range(first, end)
        slot_mapping += memory.slots(request, first, end)
        lengths.append(end)
        if end == len(request.tokens):
            for back in range(request.guesses, -1, -1):
                wanted.append((request, end - back))
                last.append(len(tokens) - 1 - back)

    counts = [n_tokens for _, n_tokens in plan]
    batch = Batch(plan, None, None, None, None, counts, lengths, memory.block_size, wanted, None)
    columns = tokens, positions, slot_mapping, last
    tensors = [torch.frombuffer(array("q", list(chain(*columns))), dtype=torch.long)]
    if with_tables:
        starts = np.array([0, *accumulate(counts)], dtype=np.int32)
        tensors += map(torch.from_numpy, (starts, np.array(lengths, dtype=np.int32), block_table(batch.tables)))
    longs, *integers = on_device(tensors, device)
    batch.tokens, batch.positions, batch.slot_mapping, batch.last = longs.split([len(column) for column in columns])
    if with_tables:
        batch.cu_seqlens_q, batch.seqused_k, batch.block_table = integers
    return batch


def block_table(tables: Sequence[range | list[int]]) -> np.ndarray:
    """[B, most blocks], int32. A request's last block stands in behind it for those that it has not."""
    width = max(map(len, tables))
    if all(isinstance(table, range) for table in tables):  # one block for each key: too many to go through in Python
        starts, ends = np.array([(table.start, table.stop) for table in tables], dtype=np.int32).T[:, :, None]
        return np.minimum(starts + np.arange(width, dtype=np.int32), ends - 1)
    return np.array([[*table, *[table[-1]] * (width - len(table))] for table in tables], dtype=np.int32)


def on_device(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Tensors of the CPU, those of larger numbers first, with one copy. On CUDA it waits its turn behind the work in
    flight, and the CPU does not wait for it: that takes pinned memory."""
    if device.type == "cpu":
        return tensors
    whole = as_bytes(tensors)
    whole = whole.pin_memory() if device.type == "cuda" else whole
    return from_bytes(whole.to(device, non_blocking=True), tensors)


def as_bytes(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten().view(torch.uint8) for tensor in tensors])


def from_bytes(whole: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = whole.split([tensor.nbytes for tensor in like])
    return [part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like)]
