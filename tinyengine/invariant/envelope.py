"""Whether the promise holds here: a self-test of the operators, on this machine and this model's own shapes.

That a product with a multiple of 8 rows has one order of summation is no law, only how the libraries at hand behave.
So before an engine claims invariance, rows are computed alone and in awkward company, and their bits compared. What was
tested is the envelope: weights' shapes, dtype, device, library versions, thread count. Between two envelopes nothing is
promised: another GPU model or thread count may give other bits.
"""

import platform
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tinyengine.attention import KVCache
from tinyengine.batch import flat
from tinyengine.invariant.attention import SPLIT, InvariantAttention
from tinyengine.invariant.operators import TILE_ROWS, InvariantOperators
from tinyengine.memory import Blocks
from tinyengine.operators import Operators
from tinyengine.request import Request
from tinyengine.sampler import cut, gumbel_noise

AWKWARD = (1, 2, 3, 5, 7, 8, 9, 11, 16, 17, 33, 52, 64, 100, 129, 257)  # rows of a batch
FILLS = (None, 0.0, torch.nan, torch.inf)  # what the neighbours of a row may hold
MOST_FLOP = 2e10  # of one weight's test: about half a second
LARGE = 2**25  # numbers in a weight from which each call takes long by itself, however few its rows
TWO_TILES = (2, 9)  # rows that make one tile and two: a large weight is tried with these alone

_tested: dict[tuple, Operators] = {}  # those that hold in an envelope


def envelope(model) -> tuple:
    """What the bits of this model depend on here, beside its tokens."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else platform.processor()
    shapes = tuple(sorted({tuple(weight.shape) for weight in model.parameters()}))
    return shapes, model.dtype, str(model.device), device, torch.__version__, torch.get_num_threads()


def tested_operators(model) -> Operators:
    """torch's operators for the invariant stage, tested on this model's shapes. Its attention computes each query by
    itself, so that there is no company to test it in."""
    return first_that_holds(model, [InvariantOperators(rows * TILE_ROWS) for rows in (1, 2, 4)])


@torch.inference_mode()
def first_that_holds(model, candidates: list[Operators], make_attention: type | None = None) -> Operators:
    """The first of these operators that holds for this model here, beside this attention; tested once per envelope and
    process.

    Raises RuntimeError, naming operator and shape, where a row's bits depend on its batch with each of them.
    """
    key = envelope(model), make_attention, *((type(operators), vars(operators).get("tile_rows")) for operators in candidates)
    if key not in _tested:
        for number, operators in enumerate(candidates):
            fault = next(faults(model, operators, make_attention), None)
            if fault is None:
                _tested[key] = number
                break
        else:
            raise RuntimeError(
                f"{fault} depends on the batch here (torch {torch.__version__}, {torch.get_num_threads()} threads, "
                f"{model.device}, {str(model.dtype).removeprefix('torch.')}), so no invariance can be promised: try "
                "another thread count or dtype, or use the stage 'chunked'"
            )
    return candidates[_tested[key]]


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
        return torch.cat(operators.split_normalise_rotate(x.view(len(x), -1, config.head_dim), attention.heads, norms, angles), 1)

    yield f"heads {attention.heads}", heads, sum(attention.heads) * config.head_dim


def faults(model, operators: Operators, make_attention: type | None) -> Iterator[str]:
    """Names each operator, with its shape, that gives a row other bits in company than alone."""
    config = model.config
    largest = max(weight.numel() for weight in model.parameters())
    sizes = [n for n in AWKWARD if 2 * largest * n * len(FILLS) < MOST_FLOP]
    for name, operator, width in row_wise(model, operators):
        few = name.startswith("linear lm_head") and model.lm_head.weight.numel() > LARGE
        if not same_in_company(operator, width, model.norm.weight, TWO_TILES if few else sizes):
            yield name
    if not sampler_is_row_wise(config.vocab_size, model.device):
        yield f"sampler [{config.vocab_size}]"
    if make_attention and not attention_is_prefix_pure(make_attention, config, model.device, model.dtype):
        yield f"attention [{config.num_attention_heads}:{config.num_key_value_heads}, {config.head_dim}]"


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


def attention_is_prefix_pure(make_attention: type, config, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a query's output has the same bits however its request was cut into chunks, beside whom, and whatever
    comes behind it."""
    config = replace(config, num_hidden_layers=1)
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


def beside_later_tokens(make_attention: type, config, device: torch.device, dtype: torch.dtype) -> Iterator[tuple]:
    """The queries before a token whose key and value are NaN or infinite, and the same ones before an ordinary token;
    then all queries, that token's own and later ones too, in other chunks and in one piece."""
    config = replace(config, num_hidden_layers=1)
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
    make_attention, config, device, dtype, chunks, others=(), block_size: int = 16, spoil: tuple | None = None
) -> torch.Tensor:
    """One request's attention, computed chunk by chunk between other requests: [sum(chunks), heads, head_dim].

    Whatever the request is beside and wherever its K/V lie, its own queries, keys and values are the same. others: new
    tokens of a neighbour in each iteration. spoil: a position of the request, and what its key and value are filled
    with. The arena is full of NaN before.
    """
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    length, most = sum(chunks), max([0, *others]) * len(chunks)
    memory = Blocks((len(others) + 1) * -(-max(length, most) // block_size) + 3, block_size)
    cache = KVCache(config, memory.n_slots // block_size, block_size, device, dtype)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    attention = make_attention(cache)
    streams = []
    for index in range(len(others) + 1):  # the request itself has index 0, and stands in the middle
        chance = torch.Generator().manual_seed(index)
        n = length if index == 0 else others[index - 1] * len(chunks)
        shapes = [(n, width, head_dim) for width in (heads, kv_heads, kv_heads)]
        streams.append([torch.randn(shape, generator=chance).to(device, dtype) for shape in shapes])
    if spoil:
        place, fill = spoil
        for part in streams[0][1:]:
            part[place] = fill
    requests = [Request(str(index), [0] * len(q)) for index, (q, _, _) in enumerate(streams)]
    for request in reversed(requests):
        memory.admit(request, len(request.tokens))
    out = []
    for chunk in chunks:
        order = [*range(1, len(others) // 2 + 1), 0, *range(len(others) // 2 + 1, len(requests))]
        plan = [(requests[index], chunk if index == 0 else others[index - 1]) for index in order]
        for request, n_tokens in plan:
            memory.grow(request, request.computed + n_tokens)
        batch = flat(plan, memory, 0, device)
        spans = [slice(request.computed, request.computed + n) for request, n in plan]
        rows = [torch.cat([streams[i][part][span] for i, span in zip(order, spans)]) for part in range(3)]
        mine = order.index(0)
        start = sum(n for _, n in plan[:mine])
        out.append(attention(batch)(0, *rows)[start : start + chunk])
        for request, n_tokens in plan:
            request.computed += n_tokens
    return torch.cat(out)
