"""Random noise without a state: a hash of (seed, position, token id)."""

import torch


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
