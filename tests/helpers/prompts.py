"""Seven requests of all lengths, and what is done with every engine."""

import random

from tinyengine import SamplingParams

RNG = random.Random(4)
PROMPTS = [[RNG.randrange(300) for _ in range(length)] for length in (9, 1, 23, 4, 40, 2, 15)]
LIMITS = [SamplingParams(max_tokens=most, ignore_eos=True) for most in (6, 12, 3, 9, 1, 16, 5)]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


def ids(outputs) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def drain(engine) -> list:
    tokens = []
    while engine.has_unfinished():
        tokens += engine.step()
    return tokens
