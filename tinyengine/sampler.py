"""From logits to tokens, each request by its own parameters, all in one batch.

Randomness has no state: the noise of a token is a hash of (seed, position, token id). So a request with a seed gets
the same tokens alone, in any batch, in any row, and after a preemption.
"""

from array import array

import torch

from tinyengine.batch import Batch, on_device, to_device
from tinyengine.kernels import has_triton
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Tokens


def sample(logits: torch.Tensor, batch: Batch) -> Tokens:
    """logits [len(batch.due), vocab] -> what each request of the plan gets, as Scheduler.commit wants it."""
    return batch.per_plan(choose(logits, batch.due_requests, batch.guessed).tolist())


def choose(logits: torch.Tensor, requests: list[Request], guessed: list[int] | None = None) -> torch.Tensor:
    """logits [n, vocab] of n rows -> their next tokens [n], long.

    requests: whose row it is. guessed: how many of the request's guesses the row takes for true; 0 if None.
    """
    texts = [_text(request, n) for request, n in zip(requests, guessed or [0] * len(requests), strict=True)]
    if any(request.params.repetition_penalty != 1.0 for request in requests):
        logits = penalise(logits, requests, texts)
    drawn = [row for row, request in enumerate(requests) if request.params.temperature > 0]
    tokens = logits.argmax(-1)
    if drawn:
        positions = [len(texts[row]) for row in drawn]
        return _draw(logits, tokens, drawn, [requests[row].params for row in drawn], positions)
    return tokens


def _text(request: Request, guessed: int) -> list[int]:
    return request.tokens + request.draft[:guessed] if guessed else request.tokens


def penalise(logits: torch.Tensor, requests: list[Request], texts: list[list[int]]) -> torch.Tensor:
    """Divides the positive logits of tokens that a request has already seen by its penalty, and multiplies the negative
    ones (CTRL, arXiv 1909.05858, section 4.1; prompt and output count, as in vLLM and transformers). texts: the tokens
    that each row has seen. In float32, or neighbours in bf16 would become equal."""
    logits = logits.to(torch.float32, copy=True)
    rows, seen, penalties = [], [], array("f")
    for row, request in enumerate(requests):
        if request.params.repetition_penalty != 1.0:
            own = sorted(set(texts[row]))
            rows += [row] * len(own)
            seen += own
            penalties.extend([request.params.repetition_penalty] * len(own))
    if not rows:
        return logits
    rows, seen = on_device([rows, seen], logits.device)  # [all seen tokens of all rows]
    penalties = to_device(torch.frombuffer(penalties, dtype=torch.float32), logits.device)
    scores = logits[rows, seen]
    logits[rows, seen] = torch.where(scores > 0, scores / penalties, scores * penalties)
    return logits


def _draw(
    logits: torch.Tensor, greedy: torch.Tensor, rows: list[int], params: list[SamplingParams], positions: list[int]
) -> torch.Tensor:
    """Samples `rows` from softmax(logits / temperature), cut to top_k and top_p, by their parameters, for tokens at
    `positions`; the others keep what `greedy` says: logits [n, vocab], greedy [n] -> [n]."""
    vocab = logits.shape[-1]
    top_k = [min(own.top_k, vocab) if own.top_k > 0 else vocab for own in params]
    # infinite where there is no limit: the running sum may round to 1 before the last token
    top_p = [own.top_p if own.top_p < 1.0 else torch.inf for own in params]
    seeds = [own.seed for own in params]
    # two copies to the device for all of it, and none of them waits for the model
    where, *whole = on_device([rows, top_k, seeds, positions], logits.device)
    top_k, seeds, positions = (column[:, None] for column in whole)  # [rows, 1]
    floats = torch.tensor([[own.temperature for own in params], top_p], dtype=torch.float32)
    temperature, top_p = to_device(floats, logits.device)[:, :, None]

    is_cut = any(own.top_k > 0 or own.top_p < 1.0 for own in params)
    drawn = (logits if len(rows) == len(logits) else logits[where]).float()
    # The best logit becomes 0 first: divided by a very small temperature it must not become infinite.
    drawn = (drawn - drawn.amax(-1, keepdim=True)) / temperature
    if is_cut:
        drawn = cut(drawn, top_k, top_p)
    # The Gumbel-max trick: the argmax of log-probability + Gumbel noise is a sample, with no running sum over the
    # vocabulary and no generator that batch neighbours would share.
    if has_triton(logits.device):
        from tinyengine.kernels.draw import draw  # imported here: Triton is an extra that a CPU does not need

        return greedy.index_copy(0, where, draw(drawn, seeds, positions))
    return greedy.index_copy(0, where, (drawn + gumbel_noise(seeds, positions, vocab)).argmax(-1))


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


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Standard Gumbel noise for token ids 0 .. vocab - 1: seeds [n, 1], positions [n, 1] -> float32 [n, vocab].

    A function of (seed, position, token id) and of nothing else.
    """
    low, high = seeds & 0xFFFFFFFF, seeds >> 32
    state = _mix(_mix(_mix(low) ^ high) ^ positions)  # [n, 1]
    bits = _mix(state ^ _mix(torch.arange(vocab, device=seeds.device)))  # [n, vocab]
    uniform = ((bits >> 8).double() + 0.5) / 2**24  # strictly between 0 and 1
    return (-(-uniform.log()).log()).float()


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The 32-bit finaliser of MurmurHash3, on int64 tensors: each input bit flips each output bit half of the time."""
    x = (x + 0x9E3779B9) & 0xFFFFFFFF  # or 0 would stay 0
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)
