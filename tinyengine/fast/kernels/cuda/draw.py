"""The Gumbel-max trick in Triton: noise and argmax in one pass over the logits. In torch every step of the hash is a
pass of its own over the whole vocabulary, and in int64."""

import torch
import triton
import triton.language as tl

TILE = 4096  # tokens of the vocabulary that one program looks at


def draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """logits [n, vocab] float32, seeds and positions [n, 1] long -> [n], long: what
    `(logits + noise.gumbel_noise(seeds, positions, vocab)).argmax(-1)` gives."""
    n, vocab = logits.shape
    tiles = triton.cdiv(vocab, TILE)
    best = torch.empty(n, tiles, dtype=torch.float32, device=logits.device)
    token = torch.empty(n, tiles, dtype=torch.long, device=logits.device)
    _draw[(n, tiles)](best, token, logits, seeds, positions, logits.stride(0), vocab, TILE=TILE)
    return token.gather(1, best.argmax(-1, keepdim=True))[:, 0]


@triton.jit
def _draw(best, token, logits, seeds, positions, row_stride, vocab, TILE: tl.constexpr):
    """One program: the best of one row's tokens tile * TILE .. tile * TILE + TILE - 1."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    seed, position = tl.load(seeds + row), tl.load(positions + row)
    state = _mix(_mix(_mix(seed.to(tl.uint32)) ^ (seed >> 32).to(tl.uint32)) ^ position.to(tl.uint32))
    ids = tile * TILE + tl.arange(0, TILE)
    bits = _mix(state ^ _mix(ids.to(tl.uint32)))
    uniform = ((bits >> 8).to(tl.float64) + 0.5) / 16777216.0  # strictly between 0 and 1
    noise = (-tl.log(-tl.log(uniform))).to(tl.float32)
    score = tl.load(logits + row * row_stride + ids, mask=ids < vocab, other=float("-inf")) + noise
    value, place = tl.max(score, 0, return_indices=True)
    tl.store(best + row * tl.num_programs(1) + tile, value)
    tl.store(token + row * tl.num_programs(1) + tile, (tile * TILE + place).to(tl.int64))


@triton.jit
def _mix(x):
    """noise._mix in 32 bits, where what it masks away overflows by itself."""
    x = x + 0x9E3779B9
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)
