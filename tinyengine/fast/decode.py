"""Decode steps on a CPU as one compiled call (`kernels.decode`).

With a few rows the model's arithmetic takes about as long as the Python that asks for it, or less. What a CUDA graph is
for a GPU (`graphs`), this is for a CPU: a step is one call, and gives the same bits.
"""

from collections.abc import Callable

import numpy as np
import torch

from tinyengine.attention import FEW, PagedAttention, PerRequest
from tinyengine.batch import Batch
from tinyengine.invariant import Invariant
from tinyengine.invariant.compiled import OneProduct
from tinyengine.operators import Operators, PackedForOneThread, state
from tinyengine.qwen3 import Layer, Qwen3


def can_serve(model: Qwen3, attention, operators: Operators) -> bool:
    """Whether all that an engine computes with is compiled: weights are packed for one thread, and loops read K/V."""
    if type(operators) not in (PackedForOneThread, OneProduct):
        return False
    has_loops = attention.cache.loops and getattr(attention, "backend", "numba") == "numba"
    if type(attention) not in (PerRequest, PagedAttention, Invariant) or not has_loops:
        return False
    from tinyengine.kernels.linear import WIDTH  # imported here: it needs numba

    matrices = [matrix for layer in model.layers for matrix in _matrices(layer).values()]
    # a product of fewer columns is written beside its place first
    return bool(matrices) and all(len(matrix) >= WIDTH for matrix in matrices)


class CompiledDecode:
    """The model on batches of few rows, for an engine of parts that it can serve.

    run: the model layer by layer. It is asked where an index is out of bounds, and says of what.
    """

    def __init__(
        self,
        run: Callable[[Batch], torch.Tensor],
        model: Qwen3,
        attention,
        operators: PackedForOneThread | OneProduct,
    ):
        from tinyengine.kernels import cpu, decode  # imported here: they need numba

        self._cpu, self._decode = cpu, decode
        self._run = run
        self._model, self._attention, self._operators = model, attention, operators
        self._num_threads = torch.get_num_threads()
        self._holders = [module._parameters for module in model.modules() if module._parameters]
        # What was copied is kept, or its place in memory could be given to a weight that comes after it, and that would
        # pass for it.
        self._kept = [weight.detach() for weight in model.parameters()]
        self._state = self._state_now()
        self._cache = attention.cache
        self._arena = self._cache.keys.numpy(), self._cache.values.numpy()
        self._weights = self._all_weights(model)

    def suits(self, batch: Batch, model: Qwen3, attention, operators: Operators) -> bool:
        """Whether no request has more new tokens than are best done one by one, nor all together more than one thread
        should do; and model, weights, attention, operators and threads are still those that this was made for: what
        somebody has put in their place is to be heard."""
        if model is not self._model or attention is not self._attention or operators is not self._operators:
            return False
        if max(batch.counts) > FEW or not operators.is_best_for(len(batch.tokens)):
            return False
        if torch.get_num_threads() != self._num_threads or attention.cache is not self._cache:
            return False
        return self._state_now() == self._state

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The hidden states of the rows whose next token is wanted, [len(batch.due), hidden]."""
        queries = self._cpu.Queries(batch, FEW)
        rows = (tensor.numpy() for tensor in (batch.tokens, batch.positions, batch.slot_mapping))
        try:
            hidden = self._decode.hidden_states(self._weights, *rows, queries.places, *self._arena)
        except IndexError:
            return self._run(batch)[batch.last]
        return torch.from_numpy(hidden)[batch.last]

    def _state_now(self) -> list[tuple[int, int]]:
        return [state(weight) for own in self._holders for weight in own.values() if weight is not None]

    def _all_weights(self, model: Qwen3):
        config, layers = model.config, model.layers
        norms = {
            "input_norm": [layer.input_layernorm.weight for layer in layers],
            "q_norm": [layer.self_attn.q_norm.weight for layer in layers],
            "k_norm": [layer.self_attn.k_norm.weight for layer in layers],
            "post_attention_norm": [layer.post_attention_layernorm.weight for layer in layers],
        }
        packed = {
            name: [self._operators.packed(_matrices(layer)[name]).data_ptr() for layer in layers]
            for name in _matrices(layers[0])
        }
        cos, sin = model.rope_tables()
        return self._decode.Weights(
            embedding=model.embed_tokens.weight.detach().numpy(),
            **{name: torch.stack(own).detach().numpy() for name, own in norms.items()},
            **{name: np.array(addresses) for name, addresses in packed.items()},
            norm=model.norm.weight.detach().numpy(),
            eps=config.rms_norm_eps,
            cos=cos.numpy(),
            sin=sin.numpy(),
            heads=config.num_attention_heads,
            intermediate=config.intermediate_size,
        )


def _matrices(layer: Layer) -> dict[str, torch.Tensor]:
    return {
        "qkv_proj": layer.self_attn.qkv_proj.weight,
        "o_proj": layer.self_attn.o_proj.weight,
        "gate_up_proj": layer.mlp.gate_up_proj.weight,
        "down_proj": layer.mlp.down_proj.weight,
    }
