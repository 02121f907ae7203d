"""From logits to tokens, each request by its own parameters, all in one batch.

The noise of a token is a hash of (seed, position, token id). So a request with a seed gets the same tokens alone, in
any batch, in any row, and after a preemption.
"""

from collections.abc import Callable

import torch

from tinyengine.batch import Batch
from tinyengine.noise import gumbel_noise
from tinyengine.request import Request
from tinyengine.scheduler import Tokens


def gumbel_max(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Samples from softmax(logits): logits [n, vocab], seeds [n, 1], positions [n, 1] -> tokens [n].

    The Gumbel-max trick: the argmax of log-probability + Gumbel noise is a sample, with no running sum over the
    vocabulary and no generator that batch neighbours would share.
    """
    return (logits + gumbel_noise(seeds, positions, logits.shape[-1])).argmax(-1)


def sample(logits: torch.Tensor, batch: Batch, draw: Callable = gumbel_max) -> Tokens:
    """logits [len(batch.wanted), vocab] -> what each request of the plan gets, as Scheduler.commit wants it."""
    chosen: dict[Request, list[int]] = {}
    for (request, _), token in zip(batch.wanted, choose(logits, batch.wanted, draw).tolist()):
        chosen.setdefault(request, []).append(token)
    tokens = []
    for request, _ in batch.plan:
        if request not in chosen or request.finished:  # a chunk that is not the last, or aborted while the model ran
            tokens.append(None)
        else:
            tokens.append(accept(request, chosen[request]) if request.guesses else chosen[request][0])
    return tokens


def accept(request: Request, chosen: list[int]) -> list[int]:
    """The tokens that a request keeps. chosen[i] is the model's choice behind its text and the first i of `guesses`.
    Kept are all up to the first that differs from what stands in its place, or that ends the request, and that one."""
    place = len(request.tokens) - request.guesses
    for token in chosen:
        is_right = place < len(request.tokens) and token == request.tokens[place]
        place += 1
        if not is_right or request.reason_to_finish(place):
            break
    return chosen[: place - len(request.tokens) + request.guesses]


def choose(logits: torch.Tensor, wanted: list[tuple[Request, int]], draw: Callable = gumbel_max) -> torch.Tensor:
    """logits [n, vocab] of n rows -> their next tokens [n], long. wanted: as in a Batch."""
    if any(request.params.repetition_penalty != 1.0 for request, _ in wanted):
        logits = penalise(logits, wanted)
    tokens = logits.argmax(-1)
    drawn = [row for row, (request, _) in enumerate(wanted) if request.params.temperature > 0]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        tokens[rows] = draw_each(logits[rows], [wanted[row] for row in drawn], draw)
    return tokens


def penalise(logits: torch.Tensor, wanted: list[tuple[Request, int]]) -> torch.Tensor:
    """Divides the positive logits of tokens that a request has already seen by its penalty, and multiplies the negative
    ones (CTRL, arXiv 1909.05858, section 4.1; prompt and output count, as in vLLM and transformers). In float32, or
    neighbours in bf16 would become equal."""
    logits = logits.to(torch.float32, copy=True)
    for row, (request, length) in zip(logits, wanted):
        if request.params.repetition_penalty != 1.0:
            seen = torch.tensor(sorted(set(request.tokens[:length])), device=logits.device)
            penalty = torch.tensor(request.params.repetition_penalty, device=logits.device)
            row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    return logits


def draw_each(logits: torch.Tensor, wanted: list[tuple[Request, int]], draw: Callable) -> torch.Tensor:
    """Samples each row from softmax(logits / temperature), cut to top_k and top_p: logits [n, vocab] -> [n]."""
    params, vocab = [request.params for request, _ in wanted], logits.shape[-1]

    def column(numbers: list, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.tensor(numbers, dtype=dtype, device=logits.device)[:, None]  # [n, 1]

    # The best logit becomes 0 first: divided by a very small temperature it must not become infinite.
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / column([one.temperature for one in params], torch.float32)
    if any(one.top_k > 0 or one.top_p < 1.0 for one in params):
        top_k = [min(one.top_k, vocab) if one.top_k > 0 else vocab for one in params]
        # infinite where there is no limit: the running sum may round to 1 before the last token
        top_p = [one.top_p if one.top_p < 1.0 else torch.inf for one in params]
        logits = cut(logits, column(top_k), column(top_p, torch.float32))
    return draw(logits, column([one.seed for one in params]), column([length for _, length in wanted]))


def cut(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keeps the top_k [n, 1] likeliest tokens and of those the smallest set that reaches probability top_p [n, 1].

    The token that crosses top_p is kept: without it the set would not reach it, and a top_p below the first token's
    probability would leave nothing. Source: nucleus sampling, arXiv 1904.09751.
    """
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)  # stable: of equals the lower id comes first
    rank = torch.arange(logits.shape[-1], device=logits.device)
    ordered = ordered.masked_fill(rank >= top_k, -torch.inf)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability  # what the likelier tokens reach without this one
    # rank 0 always stays: rounding may put `before` at 1e-8 where top_p is smaller still
    ordered = ordered.masked_fill((before >= top_p) & (rank > 0), -torch.inf)
    return torch.empty_like(logits).scatter_(-1, index, ordered)
