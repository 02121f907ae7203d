"""What stands in for a GPU on a machine without one: a recorder in place of CUDA's graphs, and attention that it can
record."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tinyengine.attention import KVCache
from tinyengine.fast.attention import ByTorch
from tinyengine.fast.batch import flat_with_tables
from tinyengine.fast.graphs import DecodeGraphs
from tinyengine.operators import TORCH

# what would make the CPU wait for the GPU
READS = ("item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal")


class Recording(TorchDispatchMode):
    """Remembers every operation with the tensors it was given and the tensors it made. Played again, the same
    operations read and write the same tensors, as a CUDA graph does: whatever Python computed while it was recorded,
    from a list's length to a choice between two ways, stays as it was."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.plays = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert func.overloadpacket.__name__ not in READS, f"{func} reads from the device: no graph can hold it"
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out

    def play(self):
        self.plays += 1
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():  # else a view, or in place
                    old.copy_(new)


class Recorder:
    """A `Capture`. recordings: one for each graph."""

    def __init__(self):
        self.recordings = []

    def __call__(self, run):
        with Recording() as recording:
            out = run()
        out.fill_(torch.nan)  # while CUDA records, nothing is computed
        self.recordings.append(recording)
        return recording.play, out

    @property
    def plays(self) -> int:
        return sum(recording.plays for recording in self.recordings)


class Recordable(ByTorch):
    """Attention of decodes by tensors alone: no list and no number of Python's has a say in it. A batch that is no
    graph's goes the usual way."""

    layout = staticmethod(flat_with_tables)

    def __init__(self, cache: KVCache):
        self.cache = cache  # as it is: a write by a loop could not be recorded

    def __call__(self, batch):
        if batch.plan or max(batch.counts) > 1:  # a graph's own batch has no plan
            return super().__call__(batch)

        def attend(layer, q, k, v):
            self.cache.write(layer, batch.slot_mapping, k, v)
            keys, values = (
                arena[layer][batch.block_table.long()].flatten(1, 2) for arena in (self.cache.keys, self.cache.values)
            )  # [rows, most slots, kv_heads, head_dim]
            unseen = torch.arange(keys.shape[1]) >= batch.seqused_k[:, None]
            keys, values = (x.masked_fill(unseen[:, :, None, None], 0).transpose(1, 2) for x in (keys, values))
            mask = torch.zeros(unseen.shape, dtype=q.dtype).masked_fill(unseen, -torch.inf)[:, None, None]
            return F.scaled_dot_product_attention(q[:, :, None], keys, values, mask, enable_gqa=True)[:, :, 0]

        return attend


def with_graphs(engine, capture=None, attention=Recordable):
    """The engine, with a recorder for its graphs, and an arena that is NaN and has the spare block."""
    memory, model = engine.memory, engine.model
    n_blocks = memory.n_slots // memory.block_size + 1
    cache = KVCache(model.config, n_blocks, memory.block_size, model.device, model.dtype)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    engine.attention, engine.operators = attention(cache), TORCH
    vars(engine).pop("forward", None)  # what compiles decodes on a CPU
    engine.forward = DecodeGraphs(engine, capture or Recorder())
    return engine
