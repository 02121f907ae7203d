"""CUDA graphs for decode steps: a recorded step is launched as one, instead of kernel by kernel.

A step in which each request computes one token has many small kernels, and launching them takes the CPU longer than
running them takes the GPU. A graph plays them all with one launch, but only over the very tensors that it was recorded
with. So there is one graph for each size of batch and of block table, in buckets, and its batch is made of buffers.
Source: the idea and the sizes are vLLM's and nano-vllm's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tinyengine.batch import Batch

Run = Callable[[], torch.Tensor]
Capture = Callable[[Run], tuple[Callable[[], None], torch.Tensor]]

LEAST_CONTEXT = 1024  # tokens that the narrowest block table has room for; each wider one doubles it


def sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes that have a graph: 1, 2, 4, 8, 16, 24, 32, ... and the largest batch itself."""
    steps = [1, 2, 4, *range(8, max_num_seqs, 8)]
    return [size for size in steps if size < max_num_seqs] + [max_num_seqs]


def why_not(device: torch.device, attention) -> str | None:
    """What keeps decode steps on this device and with this attention from being recorded; None where nothing does."""
    if device.type != "cuda":
        return f"the model is on {device}, and only CUDA has graphs: load it there, or leave cuda_graphs out"
    if getattr(attention, "backend", "torch") == "torch":
        return (
            f"{type(attention).__name__} calls torch for each request, and a graph cannot hold as many calls as a "
            "later step needs: use a stage with blocks and attention_backend='triton', or leave cuda_graphs out"
        )
    return None


def on_cuda() -> Capture:
    """How CUDA records: nothing runs while it does, and what is allocated stays at its address. All graphs share one
    pool of memory, since only one of them plays at a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Run) -> tuple[Callable[[], None], torch.Tensor]:
        run()  # once before: kernels are compiled and libraries set themselves up, which cannot be recorded
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = run()
        return graph.replay, out

    return capture


@dataclass
class Graph:
    """batch: its tensors are the buffers. replay() computes `hidden` [rows, hidden] from them."""

    batch: Batch
    replay: Callable[[], None]
    hidden: torch.Tensor


class DecodeGraphs:
    """The graphs of an engine, each recorded when it is first wanted.

    run: the model on a batch, [R, hidden]. scratch: the first slot of a block that no request ever owns: rows of a
    bucket that a batch leaves empty are requests of one token, which write there and read nothing else.
    """

    def __init__(self, run: Callable[[Batch], torch.Tensor], scratch: int, max_num_seqs: int, capture: Capture):
        self.run = run
        self.scratch = scratch
        self.sizes = sizes(max_num_seqs)
        self.capture = capture
        self.graphs: dict[tuple[int, int], Graph] = {}  # by rows and blocks of the table

    def suits(self, batch: Batch) -> bool:
        """Whether every request of the batch computes just its newest token."""
        return len(batch.due) == len(batch.tokens) == len(batch.plan) <= self.sizes[-1]

    def padding(self, batch: Batch) -> int:
        """Rows that the graph computes for nothing."""
        return self._rows(batch) - len(batch.tokens)

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The model's hidden states for a batch that suits: [R, hidden], good until the next call."""
        n, width = batch.block_table.shape
        key = self._rows(batch), _power_of_two(width, LEAST_CONTEXT // batch.block_size)
        if key not in self.graphs:
            self.graphs[key] = self._record(*key, batch)
        graph = self.graphs[key]
        self._fill(graph.batch, batch, n, width)
        graph.replay()
        return graph.hidden[:n]

    def _rows(self, batch: Batch) -> int:
        return next(size for size in self.sizes if size >= len(batch.tokens))

    def _record(self, rows: int, width: int, like: Batch) -> Graph:
        def buffer(*shape: int, dtype=torch.long) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=like.tokens.device)

        static = Batch(
            plan=[],
            tokens=buffer(rows),
            positions=buffer(rows),
            real=None,
            slot_mapping=buffer(rows),
            counts=[1] * rows,
            lengths=[],  # a graph sees no number of Python's after it was recorded: these are in `varlen`
            tables=[],
            block_size=like.block_size,
            due=[],
            guessed=[],
            last=buffer(0),
        )
        starts = torch.arange(rows + 1, dtype=torch.int32, device=like.tokens.device)
        static.varlen = starts, buffer(rows, dtype=torch.int32), buffer(rows, width, dtype=torch.int32)
        self._empty(static, 0)
        return Graph(static, *self.capture(lambda: self.run(static)))

    def _fill(self, static: Batch, batch: Batch, n: int, width: int):
        static.tokens[:n].copy_(batch.tokens)
        static.positions[:n].copy_(batch.positions)
        static.slot_mapping[:n].copy_(batch.slot_mapping)
        static.seqused_k[:n].copy_(batch.seqused_k)
        static.block_table[:n, :width].copy_(batch.block_table)
        if n < len(static.tokens):
            self._empty(static, n)

    def _empty(self, static: Batch, first: int):
        """Rows from `first` on belong to nobody. Their token and position may be anybody's: a row sees only its own."""
        static.slot_mapping[first:] = self.scratch
        static.seqused_k[first:] = 1
        static.block_table[first:, 0] = self.scratch // static.block_size


def _power_of_two(at_least: int, least: int) -> int:
    return max(1, least, 1 << (at_least - 1).bit_length())
