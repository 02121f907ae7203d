"""Whether the promise holds here: a self-test, on this machine and this model's own shapes.

That a product with a multiple of 8 rows has one order of summation is no law, only how the libraries at hand behave.
So before an engine claims invariance, rows are computed alone and in awkward company, and their bits compared. What was
tested is the envelope: weights' shapes, dtype, device, library versions, thread count. Between two envelopes nothing is
promised: another GPU model or thread count may give other bits.
"""

import platform
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tinyengine.attention import Attend, KVCache
from tinyengine.batch import Batch
from tinyengine.invariant.attention import SPLIT
from tinyengine.invariant.operators import TILE_ROWS, InvariantOperators
from tinyengine.memory import Blocks
from tinyengine.noise import gumbel_noise
from tinyengine.operators import Operators
from tinyengine.request import Request
from tinyengine.sampler import cut

AWKWARD = (1, 2, 3, 5, 7, 8, 9, 11, 16, 17, 33, 52, 64, 100, 129, 257)  # rows of a batch
FILLS = (None, 0.0, torch.nan, torch.inf)  # what the neighbours of a row may hold
MOST_FLOP = 2e10  # of one weight's test: about half a second
TILES = (TILE_ROWS, 2 * TILE_ROWS, 4 * TILE_ROWS)  # heights of a product that are tried, one after the other
LARGE = 2**25  # numbers in a weight from which each call takes long by itself, however few its rows
TWO_TILES = (2, 9)  # rows that make one tile and two: a large weight is tried with these alone

tested: dict[tuple, int] = {}  # by envelope and candidates: which of them holds


class SameThreads:
    """Before an attention class: it serves with as many threads of torch as it was made with, and no others."""

    def __init__(self, *args):
        super().__init__(*args)
        self.num_threads = torch.get_num_threads()

    def __call__(self, batch: Batch) -> Attend:
        if torch.get_num_threads() != self.num_threads:
            raise RuntimeError(
                f"torch has {torch.get_num_threads()} threads, but this engine was made with {self.num_threads}, and "
                "its bits depend on that: set the thread count back, or make a new engine"
            )
        return super().__call__(batch)


def envelope(model) -> tuple:
    """What the bits of this model depend on here, beside its tokens."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else platform.processor()
    shapes = tuple(sorted({tuple(weight.shape) for weight in model.parameters()}))
    return shapes, model.dtype, str(model.device), device, torch.__version__, torch.get_num_threads()


def tested_operators(model) -> Operators:
    """torch's operators for the invariant stage. (Its attention has no test: it computes each query by itself.)"""
    return first_that_holds(model, [InvariantOperators(rows) for rows in TILES])


@torch.inference_mode()
def first_that_holds(model, candidates: list[Operators]) -> Operators:
    """The first of these operators whose rows are the same in any batch; tested once per envelope and process.

    Raises RuntimeError, naming operator and shape, where none of them holds.
    """
    key = envelope(model), *((type(operators), operators.tile_rows) for operators in candidates)
    if key not in tested:
        failure, tried = "", 0
        while failure is not None and tried < len(candidates):
            failure = next(failures(model, candidates[tried]), None)
            tried += 1
        _refuse(model, failure)
        tested[key] = tried - 1
    return candidates[tested[key]]


@torch.inference_mode()
def check_attention(model, make_attention: Callable):
    """Raises RuntimeError where an attention gives a query other bits in company than alone; tested once per envelope
    and process."""
    key = envelope(model), make_attention
    if key not in tested:
        _refuse(model, failure_of_attention(model, make_attention))
        tested[key] = 0


def _refuse(model, failure: str | None):
    if failure:
        raise RuntimeError(
            f"{failure} depends on the batch here (torch {torch.__version__}, {torch.get_num_threads()} threads, "
            f"{model.device}, {str(model.dtype).removeprefix('torch.')}), so no invariance can be promised: try "
            "another thread count or dtype, or use the stage 'chunked'"
        )


def row_wise(model, operators: Operators) -> Iterator[tuple[str, Callable, int]]:
    """Each operator on this model's shapes: its name with the shape, the operator of rows alone, and their width."""
    config, norm = model.config, model.norm.weight
    for name, weight in _weights(model).items():
        yield f"linear {name} {list(weight.shape)}", lambda x, w=weight: operators.linear(x, w), weight.shape[1]
    yield f"swiglu [{config.intermediate_size}]", operators.swiglu, 2 * config.intermediate_size
    for size in (config.hidden_size, config.head_dim):
        scale = norm.new_ones(size)
        yield f"rms_norm [{size}]", lambda x, w=scale: operators.rms_norm(x, w, config.rms_norm_eps), size
    attention = model.layers[0].self_attn
    rope = [torch.full((1, 1, config.head_dim), value, device=norm.device, dtype=norm.dtype) for value in (0.6, 0.8)]

    def heads(x: torch.Tensor) -> torch.Tensor:
        norms, angles = (attention.q_norm, attention.k_norm), [part.repeat(len(x), 1, 1) for part in rope]
        qkv = x.view(len(x), -1, config.head_dim)
        return torch.cat(operators.split_normalise_rotate(qkv, attention.heads, norms, angles), 1)

    yield f"heads {attention.heads}", heads, sum(attention.heads) * config.head_dim


def failures(model, operators: Operators) -> Iterator[str]:
    """Names each operator, with its shape, that gives a row other bits in company than alone."""
    largest = max(weight.numel() for weight in model.parameters())
    sizes = [n for n in AWKWARD if 2 * largest * n * len(FILLS) < MOST_FLOP]
    for name, operator, width in row_wise(model, operators):
        few = name.startswith("linear lm_head") and model.lm_head.weight.numel() > LARGE
        if not same_in_company(operator, width, model.norm.weight, TWO_TILES if few else sizes):
            yield name
    if not sampler_is_row_wise(model.config.vocab_size, model.device):
        yield f"sampler [{model.config.vocab_size}]"


def failure_of_attention(model, make_attention: Callable) -> str | None:
    """An attention's name, with its shape, if it gives a query other bits in company than alone."""
    config = model.config
    if attention_is_prefix_pure(make_attention, config, model.device, model.dtype):
        return None
    return f"attention [{config.num_attention_heads}:{config.num_key_value_heads}, {config.head_dim}]"


def _weights(model) -> dict[str, torch.Tensor]:
    """One weight matrix of each shape, by its layer's name."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            found.setdefault(tuple(module.weight.shape), (name, module.weight))
    return dict(found.values())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of floats as whole numbers, so that NaN equals itself and 0 is not -0."""
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize])


def same_in_company(operator: Callable, width: int, like: torch.Tensor, sizes) -> bool:
    """Whether rows that were computed alone get the same bits at the beginning, in the middle and at the end of batches
    of these sizes, beside ordinary rows, zeros, NaN and infinity."""
    return all(same_bits(got, wanted) for got, wanted in in_company(operator, width, like, sizes))


def in_company(operator: Callable, width: int, like: torch.Tensor, sizes, fills=FILLS) -> Iterator[tuple]:
    """Rows in batches of these sizes, beside rows of these fills (None: ordinary ones), and the same rows alone."""
    chance = torch.Generator().manual_seed(0)
    probes = torch.randn(8, width, generator=chance).to(like)
    alone = torch.cat([operator(row[None].clone()) for row in probes])
    for n in sizes:
        places = sorted({0, 1, 2, n // 3, n // 2, n - 3, n - 2, n - 1} & set(range(n)))
        for fill in fills:
            x = torch.randn(n, width, generator=chance).to(like) if fill is None else probes.new_full((n, width), fill)
            x[places] = probes[: len(places)]
            yield operator(x)[places], alone[: len(places)]


def sampler_is_row_wise(vocab_size: int, device: torch.device) -> bool:
    """Whether cutting to top_k and top_p, and the noise, do the same to a row in any batch."""

    def both(x: torch.Tensor) -> torch.Tensor:
        n = len(x)
        top_k, top_p = (torch.full((n, 1), value, device=device) for value in (vocab_size // 2, 0.9))
        seeds, positions = (torch.full((n, 1), value, device=device) for value in (12345, 67))
        return torch.cat((cut(x, top_k, top_p), gumbel_noise(seeds, positions, vocab_size)), dim=-1)

    return same_in_company(both, vocab_size, torch.zeros(0, device=device), (1, 2, 5))


def attention_is_prefix_pure(make_attention: Callable, config, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a query's output has the same bits however its request was cut into chunks, beside any requests, and
    whatever comes behind it. make_attention: an attention class, or what makes one around a cache."""
    length = 2 * SPLIT + 22
    whole = attend_in_chunks(make_attention, config, device, dtype, [length])
    for chunks, others, block_size in (
        ([length - 12, *[1] * 12], [], 16),
        ([37, 37, 37, length - 111], [3, 70], 16),
        ([1, 7, SPLIT, length - SPLIT - 8], [1, 1, 5, 2 * SPLIT + 1], 4),
        ([SPLIT - 1, *[1] * 4, length - SPLIT - 3], [1, SPLIT, 7], 256),
    ):
        if not same_bits(attend_in_chunks(make_attention, config, device, dtype, chunks, others, block_size), whole):
            return False
    return all(same_bits(got, wanted) for got, wanted in beside_later_tokens(make_attention, config, device, dtype))


def beside_later_tokens(make_attention: Callable, config, device: torch.device, dtype: torch.dtype) -> Iterator[tuple]:
    """The queries before a token whose key and value are NaN or infinite, and the same ones before an ordinary token;
    then all queries, that token's own and later ones too, in other chunks and in one piece."""
    length, place = 2 * SPLIT + 22, SPLIT + 7
    ordinary = attend_in_chunks(make_attention, config, device, dtype, [length])
    for fill in (torch.nan, torch.inf, -torch.inf):
        spoilt, cut = (
            attend_in_chunks(make_attention, config, device, dtype, chunks, spoil=(place, fill))
            for chunks in ([length], [5, SPLIT - 1, 1, 1, 1, length - SPLIT - 7])
        )
        yield spoilt[:place], ordinary[:place]
        yield cut, spoilt


def attend_in_chunks(
    make_attention: Callable,
    config,
    device: torch.device,
    dtype: torch.dtype,
    chunks: list[int],
    others: tuple[int, ...] | list[int] = (),
    block_size: int = 16,
    spoil: tuple[int, float] | None = None,
) -> torch.Tensor:
    """One request's attention, computed chunk by chunk between other requests: [sum(chunks), heads, head_dim].

    Whatever the request is beside and wherever its K/V lie, its own queries, keys and values are the same. others: new
    tokens of a neighbour in each iteration. spoil: a position of the request, and what its key and value are filled
    with. The arena is full of NaN before.
    """
    middle = len(others) // 2  # where the request stands; it has seed 0, wherever that is
    counts = [[*others[:middle], chunk, *others[middle:]] for chunk in chunks]  # new tokens, by iteration and request
    seeds = [*range(1, middle + 1), 0, *range(middle + 1, len(others) + 1)]
    rows = [random_rows(config, sum(n), seed, device, dtype) for n, seed in zip(zip(*counts), seeds)]
    if spoil:
        for part in rows[middle][1:]:
            part[spoil[0]] = spoil[1]
    memory = Blocks(sum(-(-len(q) // block_size) for q, _, _ in rows) + 3, block_size)
    cache = KVCache(replace(config, num_hidden_layers=1), memory.n_blocks, block_size, device, dtype)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    attention = make_attention(cache)
    requests = [Request(str(seed), [0] * len(q)) for seed, (q, _, _) in zip(seeds, rows)]
    out = []
    for plan in (list(zip(requests, n_tokens)) for n_tokens in counts):
        for request, n in plan:
            memory.grow(request, request.computed + n)
        batch = attention.layout(plan, memory, 0, device)
        spans = [slice(request.computed, request.computed + n) for request, n in plan]
        new = (torch.cat([part[span] for part, span in zip(parts, spans)]) for parts in zip(*rows))
        out.append(attention(batch)(0, *new)[batch.starts[middle] : batch.starts[middle + 1]])
        for request, n in plan:
            request.computed += n
    return torch.cat(out)


def random_rows(config, n: int, seed: int, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    """q [n, heads, head_dim], k and v [n, kv_heads, head_dim]"""
    chance = torch.Generator().manual_seed(seed)
    shapes = [(n, heads, config.head_dim) for heads in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
    return [torch.randn(shape, generator=chance).to(device, dtype) for shape in shapes]
