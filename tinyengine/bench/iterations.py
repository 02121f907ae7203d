"""Seconds of an iteration by its tokens, measured: what a token budget is chosen from (`tinyengine.budget`)."""

import random
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from time import perf_counter

from tinyengine.budget import ALIGN
from tinyengine.engine import Engine
from tinyengine.params import SamplingParams

SIZES = (16, 17, 32, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 513)  # n and n + 1 show the steps of tiles


def profile(
    model,
    sizes: tuple[int, ...] = SIZES,
    *,
    context: int = 1024,
    decodes: int = 8,
    decode_context: int | None = None,
    repeats: int = 7,
    seed: int = 0,
) -> list[tuple[int, float]]:
    """Times real iterations of an engine with this model: [(tokens, seconds), ...], the median of each size.

    An iteration of n tokens is `decodes` decodes and one chunk of the rest, behind `context` tokens (decodes behind
    `decode_context`, the same if None): attention makes a token dearer the more lies before it, so take what requests
    reach. The sizes take turns, so that a machine that slows down meanwhile slows all of them.

    Raises ValueError for a size that leaves no chunk, or that reaches past the model's positions.
    """
    context -= context % ALIGN  # whole blocks, which the prefix cache can give
    decode_context = context if decode_context is None else decode_context
    steps = 2 + (repeats + 1) * len(sizes)
    _check_sizes(model, sizes, context, decodes, decode_context + steps)
    rng = random.Random(seed)

    def words(n: int) -> list[int]:
        return [rng.randrange(model.config.vocab_size) for _ in range(n)]

    room = 2 * context + decodes * (decode_context + steps + 2 * ALIGN) + 2 * (max(sizes) + ALIGN)
    options = {"num_slots": room, "block_size": ALIGN, "enable_prefix_caching": True}
    engine = Engine(model, "paged", max_num_seqs=decodes + 1, **options)  # it takes every prompt whole
    before = words(context)
    engine.generate([before + words(1)], SamplingParams(max_tokens=1))  # from here on the cache has it
    for _ in range(decodes):
        engine.add_request(words(decode_context + 1), SamplingParams(max_tokens=steps, ignore_eos=True))
    engine.step()
    return _in_turns(engine, [lambda size=size: before + words(size - decodes) for size in sizes], repeats)


def _in_turns(engine: Engine, prompts: list[Callable[[], list[int]]], repeats: int) -> list[tuple[int, float]]:
    """Seconds of the iteration that takes in a prompt, for each kind of prompt, by the iteration's tokens."""
    times = defaultdict(list)
    for turn in range(repeats + 1):
        for prompt in prompts:
            engine.add_request(prompt(), SamplingParams(max_tokens=1))
            started = perf_counter()
            engine.step()
            if turn:  # the first one warms caches and thread pools up
                times[engine.trace.iterations[-1].num_tokens].append(perf_counter() - started)
    return [(tokens, median(seconds)) for tokens, seconds in sorted(times.items())]


def _check_sizes(model, sizes: tuple[int, ...], context: int, decodes: int, decoded: int):
    if not sizes or min(sizes) <= decodes:
        raise ValueError(f"sizes are {sizes}, but beside {decodes} decodes each must be at least {decodes + 1}")
    positions, reached = model.config.max_position_embeddings, 1 + max(context + max(sizes) - decodes, decoded)
    if reached > positions:
        raise ValueError(
            f"contexts, sizes and repeats reach position {reached}, but the model has {positions}: take fewer"
        )
