"""The "hot" case: weights so large that a last bit decides about tokens. On a trained model the best token leads by so
far that an engine which is not invariant mostly says the same words; here it does not."""

from dataclasses import dataclass, replace

import torch

from tinyengine.qwen3 import Config, Qwen3
from tinyengine.verify.checks import cases
from tinyengine.verify.watch import Count, Scenario, Subject, compare

STD = 0.08


@dataclass(frozen=True)
class Hot:
    """Of `requests`, how many got other tokens in the batch than alone, and how many moved any bit before that."""

    requests: int
    flipped: int
    moved: int


def hot_model(config: Config, dtype: torch.dtype, seed: int = 0) -> Qwen3:
    """Random weights of standard deviation STD, on the CPU."""
    torch_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = Qwen3(config).requires_grad_(False)
    for weight in model.parameters():
        weight.normal_(0, STD) if weight.ndim == 2 else weight.fill_(1.0)
    torch.set_rng_state(torch_state)
    return model.to(dtype)


def run(model: Qwen3, stage: str, requests: int = 64, tokens: int = 64, fast: bool = True, **options) -> Hot:
    """Serves the requests in one batch under a budget, and each alone; compares tokens and bits."""
    subject = Subject(model, stage, fast=fast)
    lengths = [5 + 3 * number for number in range(requests)]
    batch = [replace(case, params=replace(case.params, max_tokens=tokens)) for case in cases(subject, lengths)]
    engine = subject.run(Scenario(batch, {"max_num_batched_tokens": 256} | options))
    flipped = moved = 0
    for number, case in enumerate(batch):
        seen, alone = engine.seen[f"r{number}"], subject.alone(case)
        flipped += seen.tokens != alone.tokens
        count = Count()
        compare(seen, alone, count)
        moved += not count.holds
    return Hot(requests, flipped, moved)


def compared(config: Config, dtype: torch.dtype, fast: bool = True) -> dict[str, Hot]:
    """The stage before, which promises no bits, and the one that does, on one hot model of this shape."""
    model = hot_model(config, dtype)
    return {stage: run(model, stage, fast=fast) for stage in ("chunked", "invariant")}


def sentence(stage: str, hot: Hot) -> str:
    return (
        f"{stage}: of {hot.requests} requests, {hot.flipped} get other tokens in a batch than alone, and {hot.moved} "
        "other bits before that"
    )
