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
from tinyengine.fast.forward import Forward

Run = Callable[[], torch.Tensor]
Capture = Callable[[Run], tuple[Callable[[], None], torch.Tensor]]

LEAST_CONTEXT = 1024  # tokens that the narrowest block table has room for; each wider one doubles it


def why_not(device: torch.device, attention: type | None) -> str | None:
    """What keeps decode steps on this device and with this kind of attention from being recorded; None where nothing
    does."""
    if device.type != "cuda":
        return f"the model is on {device}, and only CUDA has graphs: load it there, or leave cuda_graphs out"
    if getattr(attention, "backend", "torch") == "torch":
        return (
            "the attention calls torch for each request, and a graph cannot hold as many calls as a later step needs: "
            "use a stage with blocks and attention_backend='triton', or leave cuda_graphs out"
        )
    return None


def sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes that have a graph: 1, 2, 4, 8, 16, 24, 32, ... and the largest batch itself."""
    steps = [1, 2, 4, *range(8, max_num_seqs, 8)]
    return [size for size in steps if size < max_num_seqs] + [max_num_seqs]


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


class DecodeGraphs(Forward):
    """The graphs of an engine, each recorded when it is first wanted.

    Rows of a bucket that a batch leaves empty are requests of one token, which write to the arena's last block, one
    that the memory does not give out, and read nothing else.
    """

    def __init__(self, engine, capture: Capture | None = None):
        super().__init__(engine)
        self.sizes = sizes(engine.scheduler.max_num_seqs)
        self.capture = capture or on_cuda()
        self.graphs: dict[tuple[int, int], Graph] = {}  # by rows and blocks of the table

    def suits(self, batch: Batch) -> bool:
        """Whether every request of the batch computes just its newest token."""
        return len(batch.wanted) == len(batch.tokens) == len(batch.plan) <= self.sizes[-1]

    def run(self, batch: Batch) -> torch.Tensor:
        """Good until the next call; `batch.padding` becomes the rows that the graph computes for nothing."""
        n, width = batch.block_table.shape
        rows = next(size for size in self.sizes if size >= n)
        key = rows, _power_of_two(width, LEAST_CONTEXT // batch.block_size)
        if key not in self.graphs:
            self.graphs[key] = self._record(*key, batch)
        graph = self.graphs[key]
        self._fill(graph.batch, batch, n, width)
        graph.replay()
        batch.padding = rows - n
        return graph.hidden[:n]

    def _record(self, rows: int, width: int, like: Batch) -> Graph:
        engine, device = self.engine, like.tokens.device

        def buffer(*shape: int, dtype=torch.long) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        columns = dict(tokens=buffer(rows), positions=buffer(rows), slot_mapping=buffer(rows), last=buffer(0))
        # A graph sees no number of Python's after it was recorded: lengths and tables are in the buffers below.
        lists = dict(plan=[], counts=[1] * rows, lengths=[], wanted=[])
        static = Batch(real=None, block_size=like.block_size, **columns, **lists)
        static.cu_seqlens_q = torch.arange(rows + 1, dtype=torch.int32, device=device)
        static.seqused_k, static.block_table = buffer(rows, dtype=torch.int32), buffer(rows, width, dtype=torch.int32)
        self._empty(static, 0)

        def run() -> torch.Tensor:  # every row is wanted: there is nothing to pick out
            return engine.model(static.tokens, static.positions, engine.attention(static), engine.operators)

        return Graph(static, *self.capture(run))

    def _fill(self, static: Batch, batch: Batch, n: int, width: int):
        static.tokens[:n].copy_(batch.tokens)
        static.positions[:n].copy_(batch.positions)
        static.slot_mapping[:n].copy_(batch.slot_mapping)
        static.seqused_k[:n].copy_(batch.seqused_k)
        static.block_table[:n, :width].copy_(batch.block_table)
        if n < len(static.tokens):
            self._empty(static, n)

    def _empty(self, static: Batch, first: int):
        """Makes rows from `first` on requests of one token in the spare block. Their token and position may be left
        from any batch: a row sees only its own."""
        spare = self.engine.attention.cache.keys.shape[1] - 1
        static.slot_mapping[first:] = spare * static.block_size
        static.seqused_k[first:] = 1
        static.block_table[first:, 0] = spare


def _power_of_two(at_least: int, least: int) -> int:
    return max(1, least, 1 << (at_least - 1).bit_length())
