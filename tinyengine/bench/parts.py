"""The parts of a step, wrapped from outside: the engine has no instruments. A timer says how long a part took, a range
of torch's profiler for which part a GPU worked."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from time import perf_counter
from unittest.mock import patch

import torch

from tinyengine import engine as engine_module
from tinyengine import sampler
from tinyengine.engine import Engine
from tinyengine.operators import Operators

LOOP, REST = "the loop", "rest of the model"
LINEAR, ATTENTION = "linear layers", "attention"
OPERATORS = {"linear": LINEAR, "rms_norm": "norms", "swiglu": "SwiGLU", "split_normalise_rotate": "q, k: norms, rope"}
PARTS = (
    *("schedule", "batch", "attention, set-up", LINEAR, "norms", "q, k: norms, rope", "SwiGLU", "K/V write", ATTENTION),
    *(REST, "sampling", "transfer back", "trace", "commit", "outputs", LOOP),
)

Wrap = Callable[[Callable, str], Callable]


class Meter:
    """Time by part: every moment belongs to the innermost part that runs."""

    def __init__(self):
        self.seconds: Counter[str] = Counter()
        self._parts: list[str] = []
        self._since = 0.0

    def wrap(self, work: Callable, part: str) -> Callable:
        @wraps(work)
        def timed(*args, **options):
            self._turn()
            self._parts.append(part)
            try:
                return work(*args, **options)
            finally:
                self._turn()
                self._parts.pop()

        return timed

    def _turn(self):
        now = perf_counter()
        if self._parts:
            self.seconds[self._parts[-1]] += now - self._since
        self._since = now


@contextmanager
def watched(engine: Engine, wrap: Wrap) -> Iterator[Callable]:
    """Within it the engine's parts are wrapped, each under its name of PARTS; gives its step, wrapped too."""
    attention, operators = engine.attention, copy.copy(engine.operators)
    for name in [name for name in vars(Operators) if not name.startswith("_")]:
        setattr(operators, name, wrap(getattr(engine.operators, name), OPERATORS.get(name, name)))
    set_up = wrap(type(attention).__call__, "attention, set-up")

    def attend(self, batch):
        return wrap(set_up(self, batch), ATTENTION)

    with ExitStack() as stack:
        stack.enter_context(patch.object(engine, "operators", operators))
        stack.enter_context(patch.object(type(attention), "__call__", attend))
        for owner, name, part in _places(engine):
            stack.enter_context(patch.object(owner, name, wrap(getattr(owner, name), part)))
        yield wrap(engine.step, LOOP)


def _places(engine: Engine) -> list[tuple[object, str, str]]:
    """Which call, of which object, is which part."""
    # the Triton kernel writes K/V by itself; all others go through the cache
    writer = (engine.attention.kernels, "write_kv") if hasattr(engine.attention, "kernels") else None
    return [
        (engine.scheduler, "schedule", "schedule"),
        (engine.attention, "layout", "batch"),
        (engine.model, "forward", REST),
        (*(writer or (engine.attention.cache, "write")), "K/V write"),
        (sampler, "choose", "sampling"),
        (engine_module, "sample", "transfer back"),  # what is left of it without choose
        *((engine.trace, name, "trace") for name in ("hold", "iteration", "append")),
        (engine.scheduler, "commit", "commit"),
        *((engine.outputs, name, "outputs") for name in ("settle", "put", "deliver")),
    ]


def ranged(work: Callable, part: str) -> Callable:
    """A range of torch's profiler."""

    @wraps(work)
    def in_range(*args, **options):
        with torch.profiler.record_function(part):
            return work(*args, **options)

    return in_range


def gpu_parts(events) -> Counter[str]:
    """The profiler's events -> seconds of kernels and copies by the innermost part in which they were launched."""
    found: Counter[str] = Counter()
    names = {*PARTS, *vars(Operators)}
    for event in events:
        part = event
        while part is not None and part.name not in names:
            part = part.cpu_parent
        for kernel in event.kernels:
            if kernel.name not in names:  # a range appears on the GPU too, around its kernels
                found[part.name if part else LOOP] += kernel.duration / 1e6
    return found
