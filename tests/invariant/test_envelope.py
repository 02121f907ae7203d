"""The self-test of the operators: it lets pass what holds, and names what does not."""

import pytest
import torch

from tinyengine import Engine
from tinyengine.attention import PagedAttention
from tinyengine.invariant import attention, envelope
from tinyengine.invariant.attention import InvariantAttention
from tinyengine.invariant.faults import FAULTS
from tinyengine.invariant.operators import InvariantOperators, pad_rows


def found(model, operators, make_attention=InvariantAttention) -> list[str]:
    with torch.inference_mode():
        return list(envelope.faults(model, operators, make_attention))


def test_the_invariant_operators_pass(tiny):
    assert found(tiny, InvariantOperators()) == []


@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.operators])
def test_a_faulty_operator_is_named_with_its_shape(tiny, fault):
    names = found(tiny, FAULTS[fault].operators(8))
    wanted = "rms_norm [128]" if fault == "split_norm" else "linear layers.0.mlp.gate_up_proj [768, 128]"
    assert wanted in names


@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.attention])
def test_a_faulty_attention_is_named_with_its_shape(tiny, fault):
    assert found(tiny, InvariantOperators(), FAULTS[fault].attention) == ["attention [4:2, 32]"]


def test_plain_attention_is_named(tiny):
    assert "attention [4:2, 32]" in found(tiny, InvariantOperators(), PagedAttention)


class InTorch(InvariantAttention):
    """As where there is no numba, or a dtype that its loops do not take."""

    def __init__(self, cache):
        super().__init__(cache, "torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_in_torch_holds_and_is_right(tiny, dtype):
    arguments = tiny.config, tiny.device, dtype
    with torch.inference_mode():
        assert envelope.attention_is_prefix_pure(InTorch, *arguments)
        got, wanted = (envelope.attend_in_chunks(kind, *arguments, [150, 1]) for kind in (InTorch, PagedAttention))
    torch.testing.assert_close(got, wanted, atol=2e-6 if dtype == torch.float32 else 2e-2, rtol=1e-2)


def test_a_later_token_that_is_not_finite_moves_bits_where_nothing_is_mended(tiny, monkeypatch):
    monkeypatch.setattr(attention, "mended", lambda out, *_: out)
    with torch.inference_mode():
        pairs = list(envelope.beside_later_tokens(InTorch, tiny.config, tiny.device, tiny.dtype))
        assert len(pairs) == 6 and not any(envelope.same_bits(*pair) for pair in pairs[::2])
        assert not envelope.attention_is_prefix_pure(InTorch, tiny.config, tiny.device, tiny.dtype)


def test_an_engine_is_refused_where_nothing_holds(random_model, monkeypatch):
    class Broken(InvariantOperators):
        def swiglu(self, gate_up):
            return super().swiglu(gate_up) + len(gate_up)

    for kind in ("InvariantOperators", "CompiledOperators", "OneProduct"):
        monkeypatch.setattr(envelope, kind, Broken)
    monkeypatch.setattr(envelope, "_tested", {})
    with pytest.raises(RuntimeError, match=r"^swiglu \[96\] depends on the batch here .* use the stage 'chunked'$"):
        Engine(random_model, "invariant", num_slots=64)


def test_a_larger_tile_is_taken_where_the_smallest_does_not_hold(random_model, monkeypatch):
    class Picky(InvariantOperators):
        def linear(self, x, weight):
            return super().linear(x, weight) + (0 if self.tile_rows == 16 else len(x))

    monkeypatch.setattr(envelope, "PackedForOneThread", Picky)  # our own product has no tiles
    for kind in ("InvariantOperators", "CompiledOperators"):
        monkeypatch.setattr(envelope, kind, Picky)
    monkeypatch.setattr(envelope, "_tested", {})
    assert Engine(random_model, "invariant", num_slots=64).operators.tile_rows == 16


def test_it_runs_once_for_an_envelope(random_model, monkeypatch):
    runs = []
    real = envelope.faults
    monkeypatch.setattr(envelope, "_tested", {})
    monkeypatch.setattr(envelope, "faults", lambda *args: runs.append(args) or real(*args))
    for _ in range(3):
        Engine(random_model, "invariant", num_slots=64)
    assert len(runs) == 1


def test_another_thread_count_needs_another_engine(random_model):
    engine = Engine(random_model, "invariant", num_slots=64)
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
