"""The self-test: it lets pass what holds, and names what does not."""

import pytest
import torch

from tinyengine import Engine
from tinyengine.attention import PagedAttention
from tinyengine.fast import invariant as fast_invariant
from tinyengine.fast.invariant import InvariantByLoops, InvariantByTorch
from tinyengine.fast.splits import InSplits
from tinyengine.invariant import envelope
from tinyengine.invariant.attention import InvariantAttention
from tinyengine.invariant.operators import InvariantOperators, pad_rows
from tinyengine.invariant.sabotage import FAULTS

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def failures(model, operators) -> list[str]:
    with torch.inference_mode():
        return list(envelope.failures(model, operators))


def failure_of_attention(model, make_attention) -> str | None:
    with torch.inference_mode():
        return envelope.failure_of_attention(model, make_attention)


def test_the_invariant_operators_pass(tiny):
    assert failures(tiny, envelope.tested_operators(tiny)) == []  # 8 rows are not enough on every CPU


@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.operators])
def test_a_faulty_operator_is_named_with_its_shape(tiny, fault):
    wanted = "rms_norm [128]" if fault == "split_norm" else "linear layers.0.mlp.gate_up_proj [768, 128]"
    assert wanted in failures(tiny, FAULTS[fault].operators(8))


@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.attention])
def test_a_faulty_attention_is_named_with_its_shape(tiny, fault):
    def faulty(cache):
        return FAULTS[fault].attention(InvariantByTorch(cache))

    assert failure_of_attention(tiny, faulty) == "attention [4:2, 32]"


def test_plain_attention_is_named(tiny):
    assert failure_of_attention(tiny, PagedAttention) == "attention [4:2, 32]"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [InvariantAttention, InvariantByTorch, InvariantByLoops])
def test_the_invariant_attentions_hold(tiny, kind, dtype):
    if kind is InvariantByLoops and dtype != torch.float32:
        pytest.skip("the loops take float32")
    with torch.inference_mode():
        assert envelope.attention_is_prefix_pure(kind, tiny.config, tiny.device, dtype)


def test_a_later_token_that_is_not_finite_moves_bits_where_nothing_is_mended(tiny, monkeypatch):
    monkeypatch.setattr(InSplits, "_mend", lambda *_: None)
    with torch.inference_mode():
        pairs = list(envelope.beside_later_tokens(InvariantByTorch, tiny.config, tiny.device, tiny.dtype))
        assert len(pairs) == 6 and not any(envelope.same_bits(*pair) for pair in pairs[::2])
    assert failure_of_attention(tiny, InvariantByTorch)


@pytest.mark.parametrize("fast", [True, False])
def test_an_engine_is_refused_where_nothing_holds(random_model, monkeypatch, fast):
    class Broken(InvariantOperators):
        def __init__(self, *_):
            super().__init__()

        def swiglu(self, gate_up):
            return super().swiglu(gate_up) + len(gate_up)

    monkeypatch.setattr(fast_invariant if fast else envelope, "OneProduct" if fast else "InvariantOperators", Broken)
    monkeypatch.setattr(fast_invariant, "PaddedLoops", Broken)  # on a processor that has no product of ours
    monkeypatch.setattr(envelope, "tested", {})
    with pytest.raises(RuntimeError, match=r"^swiglu \[96\] depends on the batch here .* use the stage 'chunked'$"):
        Engine(random_model, "invariant", num_slots=64, fast=fast)


def test_an_engine_is_refused_where_its_attention_does_not_hold(random_model, monkeypatch):
    monkeypatch.setattr(InvariantByLoops, "__call__", PagedAttention.__call__)
    monkeypatch.setattr(envelope, "tested", {})
    with pytest.raises(RuntimeError, match=r"^attention \[8:2, 16\] depends on the batch here"):
        Engine(random_model, "invariant", num_slots=64)


@pytest.mark.parametrize("fast", [True, False])
def test_a_larger_tile_is_taken_where_the_smallest_does_not_hold(random_model, monkeypatch, fast):
    class Picky(InvariantOperators):
        def __init__(self, tile_rows, *_):
            super().__init__(tile_rows)

        def linear(self, x, weight):
            return super().linear(x, weight) + (0 if self.tile_rows == 16 else len(x))

    monkeypatch.setattr(fast_invariant, "PackedForOneThread", Picky)  # our own product has no tiles
    monkeypatch.setattr(fast_invariant if fast else envelope, "PaddedLoops" if fast else "InvariantOperators", Picky)
    monkeypatch.setattr(envelope, "tested", {})
    assert Engine(random_model, "invariant", num_slots=64, fast=fast).operators.tile_rows == 16


def test_it_runs_once_for_an_envelope(random_model, monkeypatch):
    runs = []
    operators, attention = envelope.failures, envelope.failure_of_attention
    monkeypatch.setattr(envelope, "tested", {})
    monkeypatch.setattr(envelope, "failures", lambda *args: runs.append("operators") or operators(*args))
    monkeypatch.setattr(envelope, "failure_of_attention", lambda *args: runs.append("attention") or attention(*args))
    Engine(random_model, "invariant", num_slots=64)
    once = list(runs)
    assert once.count("attention") == 1
    for _ in range(2):
        Engine(random_model, "invariant", num_slots=64)
    assert runs == once


@pytest.mark.parametrize("fast", [True, False])
def test_another_thread_count_needs_another_engine(random_model, fast):
    engine = Engine(random_model, "invariant", num_slots=64, fast=fast)
    engine.add_request([1, 2, 3])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        with pytest.raises(RuntimeError, match=f"{before + 1} threads, but this engine was made with {before}"):
            engine.step()
    finally:
        torch.set_num_threads(before)
    engine.step()


@pytest.mark.parametrize(("n", "padded"), [(1, 8), (8, 8), (9, 16), (0, 0)])
def test_rows_are_padded_to_full_tiles_with_zeros(n, padded):
    x = torch.ones(n, 3)
    assert pad_rows(x, 8).shape == (padded, 3) and pad_rows(x, 8).sum() == 3 * n
