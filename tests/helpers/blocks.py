"""What the tests of blocks share, with a prefix cache and without: requests that are taken in, grow and compute."""

from tinyengine.memory import Blocks
from tinyengine.request import Request, SamplingParams


def request(name: str, tokens: list[int] | int, output: int = 9) -> Request:
    return Request(name, list(range(tokens)) if isinstance(tokens, int) else tokens, SamplingParams(max_tokens=output))


def admit(memory: Blocks, one: Request, computed: int | None = None) -> Request:
    """Takes the request in, gives it the blocks of all its tokens, and computes them, or the first `computed`."""
    assert memory.admit(one) and memory.grow(one, len(one.tokens))
    one.computed = len(one.tokens) if computed is None else computed
    return one


def found(memory: Blocks, one: Request) -> int:
    """Takes the request in, and says how many of its tokens the cache had."""
    assert memory.admit(one)
    return one.computed
