"""Every acceleration, behind one function. The textbook says what is computed, and this room computes the same in less
time. It is the only one that knows numba and Triton, and without the folder every stage runs as its lesson shows it.
Either may be missing, so what needs one is imported where it is used.

`why_not(...)` says, where something is made, what keeps it from running here; `suits(batch)` says so in a step.
"""

import torch

from tinyengine.attention import KVCache, Padded, PagedAttention, PerRequest
from tinyengine.fast import decode, graphs
from tinyengine.fast.attention import ByLoops, ByTorch, ByTriton, ByVarlen, FastPadded
from tinyengine.fast.invariant import INVARIANT
from tinyengine.fast.kernels import cuda
from tinyengine.invariant import Invariant

OPTIONS = ("attention_backend", "split_kv", "cuda_graphs", "compiled_decode")
BACKENDS = ("auto", "torch", "numba", "triton", "varlen")

# What may take the place of a stage's attention; "auto" takes the first that can run.
CANDIDATES = {
    Padded: (FastPadded,),
    PerRequest: (ByLoops, ByTorch),
    PagedAttention: (ByTriton, ByLoops, ByTorch, ByVarlen),
    Invariant: INVARIANT,
}


def accelerate(
    engine,
    attention_backend: str = "auto",
    split_kv: bool = True,
    cuda_graphs: bool | None = None,
    compiled_decode: bool = True,
):
    """Puts into a new engine what computes its stage fastest on its device. Parts that are no stage's stay.

    attention_backend: of paged and chunked: "auto", or one of BACKENDS.
    split_kv: on CUDA, several programs share the keys of a request where few long ones decode.
    cuda_graphs: decode steps are recorded and replayed (see DecodeGraphs); None does so where it can, True insists.
    compiled_decode: on a CPU, decode steps are one compiled call where they can (see DecodeInOneCall). False goes layer
        by layer, through the modules of the model: the same bits, and hooks and prints in them are called.
    Raises ValueError for a choice that cannot run here.
    """
    _check(split_kv=split_kv, compiled_decode=compiled_decode)
    if cuda_graphs is not None:
        _check(cuda_graphs=cuda_graphs)
    model, device = engine.model, engine.model.device
    kind = choose(type(engine.attention), engine.attention.cache.keys, attention_backend, split_kv)
    reason = graphs.why_not(device, kind)
    if cuda_graphs and reason:
        raise ValueError(f"cuda_graphs is True, but {reason}")
    records = cuda_graphs is not False and not reason
    if kind:
        cache = _with_spare_block(engine) if records else engine.attention.cache
        engine.attention = kind(cache, split_kv)
        engine.operators = kind.operators(model)
    if cuda.has_triton(device):
        from tinyengine.fast.kernels.cuda.draw import draw  # needs Triton

        engine.draw = draw
    if records:
        engine.forward = graphs.DecodeGraphs(engine)
    elif compiled_decode and decode.why_not(engine) is None:
        engine.forward = decode.DecodeInOneCall(engine)


def choose(kind: type, arena: torch.Tensor, wanted: str, split_kv: bool = True) -> type | None:
    """What takes the place of a stage's attention over this arena; None where nothing does. Raises ValueError, with the
    reason, for a backend that cannot run."""
    if wanted not in BACKENDS:
        raise ValueError(f"attention_backend is {wanted!r}, but the backends are {', '.join(BACKENDS)}")
    if kind is not PagedAttention and (wanted != "auto" or not split_kv):
        name, value = ("split_kv", split_kv) if wanted == "auto" else ("attention_backend", wanted)
        raise ValueError(f"{name} is {value!r}, but {kind.__name__} computes in one way only: leave it out")
    candidates = CANDIDATES.get(kind, ())
    if wanted == "auto":
        return next((candidate for candidate in candidates if candidate.why_not(arena) is None), None)
    chosen = next(candidate for candidate in candidates if candidate.backend == wanted)
    if reason := chosen.why_not(arena):
        raise ValueError(f"attention_backend is {wanted!r}, but {reason}")
    return chosen


def _check(**switches):
    for name, choice in switches.items():
        if not isinstance(choice, bool):
            raise ValueError(f"{name} is {choice!r}, but must be True or False")


def _with_spare_block(engine) -> KVCache:
    """An arena of one block more than the memory gives out: the empty rows of a graph write there."""
    config, (_, n_blocks, block_size, *_) = engine.model.config, engine.attention.cache.keys.shape
    engine.attention.cache = None  # its memory is needed
    return KVCache(config, n_blocks + 1, block_size, engine.model.device, engine.model.dtype)
