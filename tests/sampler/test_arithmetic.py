"""Each request is sampled by its own parameters, as transformers would, and by nothing that its neighbours do."""

import math

import pytest
import torch
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tinyengine import SamplingParams, sampler
from tinyengine.request import Request
from tinyengine.sampler import choose, cut, gumbel_noise, penalise

VOCAB = 50


def request(prompt=(1, 2, 3), output=(), **params) -> Request:
    made = Request("r", list(prompt), SamplingParams(**{"seed": 0, **params}))
    made.tokens.extend(output)
    return made


def rows(requests: list[Request]) -> list[tuple[Request, int]]:
    """Each wants its next token, as a Batch has it."""
    return [(request, len(request.tokens)) for request in requests]


def logits_of(seed: int, n: int = 1, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(n, vocab, generator=torch.Generator().manual_seed(seed))


def frequencies(logits: torch.Tensor, draws: int = 4000, **params) -> torch.Tensor:
    """How often each token comes out of `logits` [1, vocab], over seeds."""
    drawn = choose(logits.expand(draws, -1), rows([request(seed=seed, **params) for seed in range(draws)]))
    return torch.bincount(drawn, minlength=logits.shape[-1]).double() / draws


def chi_square(observed: torch.Tensor, expected: torch.Tensor, draws: int) -> tuple[float, float]:
    """The statistic over the cells that are expected five times or more, and the value exceeded once in a million."""
    usual = expected * draws >= 5
    statistic = (draws * (observed - expected)[usual].square() / expected[usual]).sum().item()
    degrees = int(usual.sum())
    limit = degrees * (1 - 2 / (9 * degrees) + 4.75 * math.sqrt(2 / (9 * degrees))) ** 3  # Wilson and Hilferty
    return statistic, limit


def test_temperature_zero_takes_the_likeliest_and_of_equals_the_first():
    logits = logits_of(0, n=8)
    logits[3, [7, 40]] = 99.0
    tokens = choose(logits, rows([request()] * 8))
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert tokens[3] == 7


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-40, 1e-45, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy_and_never_nan(temperature):
    logits = logits_of(1, n=6)
    for top_p in (1.0, 0.5):
        tokens = choose(logits, rows([request(temperature=temperature, top_p=top_p, seed=seed) for seed in range(6)]))
        assert tokens.tolist() == logits.argmax(-1).tolist()


def test_a_huge_temperature_makes_all_tokens_equally_likely():
    statistic, limit = chi_square(frequencies(logits_of(2), temperature=1e30), torch.full((VOCAB,), 1 / VOCAB), 4000)
    assert statistic < limit


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_drawn_tokens_follow_softmax_of_the_logits_over_temperature(temperature):
    logits = logits_of(3)
    expected = TemperatureLogitsWarper(temperature)(None, logits).double().softmax(-1)[0]
    statistic, limit = chi_square(frequencies(logits, temperature=temperature), expected, 4000)
    assert statistic < limit
    # and the test would see another temperature
    other = (logits / (temperature * 1.3)).double().softmax(-1)[0]
    statistic, limit = chi_square(frequencies(logits, temperature=temperature), other, 4000)
    assert statistic > limit


def test_the_positions_of_one_seed_draw_as_if_unrelated():
    """One seed, many positions: single tokens and neighbouring pairs both follow the distribution."""
    logits, draws = torch.tensor([[0.0, 0.5, 1.0, 1.5]]), 2500
    requests = [request(prompt=[0] * (position + 1), temperature=1.0, seed=77) for position in range(draws)]
    drawn = choose(logits.expand(draws, -1), rows(requests))
    share = logits.double().softmax(-1)[0]
    pairs = torch.bincount(drawn[:-1] * 4 + drawn[1:], minlength=16).double() / (draws - 1)
    for observed, expected in (
        (torch.bincount(drawn, minlength=4) / draws, share),
        (pairs, share.outer(share).flatten()),
    ):
        statistic, limit = chi_square(observed, expected, draws)
        assert statistic < limit


def test_gumbel_noise_is_gumbel_and_always_finite():
    noise = gumbel_noise(torch.arange(400)[:, None], torch.full((400, 1), 9), 500)
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)  # Euler's constant
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)
    assert len(noise.unique()) > 190_000


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**62, 2**63 - 1])
def test_every_bit_of_a_seed_counts(seed):
    others = [seed ^ (1 << bit) for bit in range(0, 63, 7)]
    seeds = torch.tensor([[value] for value in [seed, *others]])
    noise = gumbel_noise(seeds, torch.zeros_like(seeds), 8)
    assert noise.isfinite().all() and len({tuple(row) for row in noise.tolist()}) == len(noise)


# ---- top_k and top_p -----------------------------------------------------------------------------------------------


def kept(logits: torch.Tensor, top_k: int = 0, top_p: float = 1.0) -> set[int]:
    row = cut(logits, torch.tensor([[top_k or logits.shape[-1]]]), torch.tensor([[top_p]]))[0]
    assert (row[row.isfinite()] == logits[0][row.isfinite()]).all(), "a kept logit has changed"
    return set(row.isfinite().nonzero().flatten().tolist())


def kept_by_transformers(logits: torch.Tensor, top_k: int = 0, top_p: float = 1.0) -> set[int]:
    for warper in ([TopKLogitsWarper(top_k)] if top_k else []) + ([TopPLogitsWarper(top_p)] if top_p < 1 else []):
        logits = warper(None, logits)
    return set(logits[0].isfinite().nonzero().flatten().tolist())


@pytest.mark.parametrize("top_k", [0, 1, 2, 10, VOCAB - 1, VOCAB])
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_top_k_and_top_p_keep_what_transformers_keeps(top_k, top_p):
    for seed in range(10):
        logits = logits_of(seed, scale=1.0 + seed % 3)
        assert kept(logits, top_k, top_p) == kept_by_transformers(logits, top_k, top_p)


@pytest.mark.parametrize(
    ("top_p", "survivors"),
    [
        (1e-46, {1}),
        (1e-9, {1}),
        (0.49, {1}),
        (0.5, {1}),  # reached exactly: the next token is not needed
        (0.51, {1, 3}),  # the token that crosses the border is kept
        (0.75, {1, 3}),
        (0.76, {1, 3, 0}),
        (0.875, {1, 3, 0}),
        (1.0, {0, 1, 2, 3}),
    ],
)
def test_the_token_that_crosses_top_p_is_kept_and_no_more(top_p, survivors):
    logits = torch.tensor([[0.125, 0.5, 0.125, 0.25]]).log2() * math.log(2)
    assert kept(logits, top_p=top_p) == survivors
    if top_p not in (0.76, 0.875):  # two tokens are equal there, and transformers keeps the other one
        assert kept_by_transformers(logits, top_p=max(top_p, 1e-9)) == survivors


def test_top_k_keeps_exactly_k_of_equal_tokens_the_first():
    assert kept(torch.zeros(1, 6), top_k=2) == {0, 1}


def test_top_p_counts_only_what_top_k_has_left():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert kept(logits, top_k=2, top_p=0.57) == {0}  # of two tokens the first has 0.4 / 0.7
    assert kept(logits, top_k=2, top_p=0.58) == {0, 1}


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.7}, {"top_k": 5, "top_p": 0.8, "temperature": 2.0}])
def test_only_kept_tokens_are_drawn_in_their_proportion(params):
    logits, params = logits_of(4), {"temperature": 1.0, **params}
    warped = TemperatureLogitsWarper(params["temperature"])(None, logits)
    if "top_k" in params:
        warped = TopKLogitsWarper(params["top_k"])(None, warped)
    if "top_p" in params:
        warped = TopPLogitsWarper(params["top_p"])(None, warped)
    expected, observed = warped.double().softmax(-1)[0], frequencies(logits, **params)
    assert set(observed.nonzero().flatten().tolist()) <= set(expected.nonzero().flatten().tolist())
    statistic, limit = chi_square(observed, expected, 4000)
    assert statistic < limit


def test_a_request_without_limits_draws_from_everything_beside_one_with_limits(monkeypatch):
    """The running sum rounds to 1 before its end: top_p = 1 must cut nothing there, as if the request were alone."""
    logits = logits_of(5, scale=10).expand(2, -1)
    assert not cut(logits[:1], torch.tensor([[VOCAB]]), torch.tensor([[1.0]])).isfinite().all(), "no such case"
    results = []
    monkeypatch.setattr(sampler, "cut", lambda *args: results.append(cut(*args)) or results[-1])
    choose(logits, rows([request(temperature=1.0), request(temperature=1.0, top_p=0.5)]))
    assert results[0][0].isfinite().all() and not results[0][1].isfinite().all()


# ---- Repetition penalty --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 10.0])
def test_repetition_penalty_is_that_of_transformers(penalty, dtype):
    logits, seen = logits_of(6, n=2).to(dtype), [[3, 9, 3, 17], [0, 49, 5, 5]]
    requests = [request(prompt=s[:2], output=s[2:], repetition_penalty=penalty) for s in seen]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor(seen), logits.to(torch.float32, copy=True))
    before = logits.clone()
    assert penalise(logits, rows(requests)).equal(expected)
    assert logits.equal(before), "the model's logits were changed in place"


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_row_before_the_end_of_the_text_knows_only_what_stands_before_it(length):
    """A row behind a guess, or before one: penalty and noise are those of a text that ends there."""
    text, logits = [3, 9, 3, 17], logits_of(7)
    whole, part = (request(prompt=tokens, repetition_penalty=1.5) for tokens in (text, text[:length]))
    assert penalise(logits, [(whole, length)]).equal(penalise(logits, rows([part])))
    drawn = [request(prompt=text, temperature=3.0, seed=seed) for seed in range(40)]
    alone = [request(prompt=text[:length], temperature=3.0, seed=seed) for seed in range(40)]
    wanted = [(one, length) for one in drawn]
    assert choose(logits.expand(40, -1), wanted).equal(choose(logits.expand(40, -1), rows(alone)))
