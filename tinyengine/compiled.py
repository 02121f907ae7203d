"""Decode steps on a CPU as one compiled call (`kernels.decode`).

With a few rows the model's arithmetic takes hardly longer than the Python that asks for it, nine times in every layer.
What a CUDA graph is for a GPU (`graphs`), this is for a CPU: a step is one call, and its tokens are the same.
"""

from operator import attrgetter

import numpy as np
import torch

from tinyengine.attention import FEW, PagedAttention, PerRequest
from tinyengine.batch import Batch
from tinyengine.invariant import Invariant
from tinyengine.invariant.compiled import OneProduct
from tinyengine.operators import Operators, PackedForOneThread
from tinyengine.qwen3 import Layer, Qwen3


def suits(model: Qwen3, attention, operators: Operators) -> bool:
    """Whether all that an engine computes with is compiled: weights are packed for one thread, and loops read K/V."""
    if type(operators) not in (PackedForOneThread, OneProduct):
        return False
    has_loops = attention.cache.loops and getattr(attention, "backend", "numba") == "numba"
    if type(attention) not in (PerRequest, PagedAttention, Invariant) or not has_loops:
        return False
    from tinyengine.kernels.linear import WIDTH  # imported here: it needs numba

    return all(matrix.shape[0] >= WIDTH for layer in model.layers for matrix in _matrices(layer).values())


class CompiledDecode:
    """The model on batches of few rows, for an engine whose parts suit."""

    def __init__(self, model: Qwen3, attention, operators: PackedForOneThread | OneProduct):
        from tinyengine.kernels import cpu, decode  # imported here: they need numba

        self._cpu, self._decode = cpu, decode
        self._attention, self._operators = attention, operators
        self._num_threads = torch.get_num_threads()
        self._parameters = list(model.parameters())
        # What is read by its address is kept, or that place in memory could be given to what comes after it.
        self._kept = [parameter.detach() for parameter in self._parameters]
        self._state = self._weights_now()
        self._arena = attention.cache.keys.numpy(), attention.cache.values.numpy()
        self._weights = self._all_weights(model)

    def suits(self, batch: Batch, attention, operators: Operators) -> bool:
        """Whether no request has more new tokens than are best done one by one, nor all together more than one thread
        should do; and attention, operators, weights and threads are still those that this was made for: what somebody
        has put in their place is to be heard."""
        if attention is not self._attention or operators is not self._operators:
            return False
        if torch.get_num_threads() != self._num_threads:
            return False
        are_few = max(batch.counts) <= FEW and operators.is_best_for(len(batch.tokens))
        return are_few and self._weights_now() == self._state

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The hidden states of the rows whose next token is wanted, [len(batch.due), hidden].

        Raises IndexError for a slot or a block that the arena does not have.
        """
        queries = self._cpu.Queries(batch, FEW)
        integers = (tensor.numpy() for tensor in (batch.tokens, batch.positions, batch.slot_mapping))
        places = queries.block_size, queries.table, queries.requests, queries.rows, queries.seen
        try:
            hidden = self._decode.hidden_states(self._weights, self._decode.Rows(*integers, *places), *self._arena)
        except IndexError:
            raise self._cpu.outside_of(self._arena[0].shape[1], batch.slot_mapping, queries) from None
        return torch.from_numpy(hidden)[batch.last]

    def _weights_now(self) -> list[int]:
        """How often each weight was written to, as far as torch knows, and where it is."""
        return [*map(attrgetter("_version"), self._parameters), *map(torch.Tensor.data_ptr, self._parameters)]

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
