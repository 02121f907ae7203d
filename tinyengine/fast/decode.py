"""Decode steps on a CPU as one compiled call (`kernels.cpu.decode`).

With a few rows the model's arithmetic takes about as long as the Python that asks for it, or less. What a CUDA graph is
for a GPU (`graphs`), this is for a CPU: a step is one call, and gives the same bits.
"""

import numpy as np
import torch

from tinyengine.batch import Batch
from tinyengine.fast.attention import FEW_QUERIES, ByLoops
from tinyengine.fast.forward import Forward
from tinyengine.qwen3 import Layer


def why_not(engine) -> str | None:
    """What keeps an engine's decode steps from being one call, as a sentence; None where nothing does."""
    if not isinstance(engine.attention, ByLoops):
        return f"{type(engine.attention).__name__} is not a loop"
    if not hasattr(engine.operators, "by_one_thread"):
        return f"{type(engine.operators).__name__} does not multiply by the product of our own"
    from tinyengine.fast.kernels.cpu.linear import WIDTH  # needs numba

    matrices = [matrix for layer in engine.model.layers for matrix in _matrices(layer).values()]
    if not matrices or any(len(matrix) < WIDTH for matrix in matrices):
        return f"a matrix has less than {WIDTH} columns, so that its product is written beside its place first"
    return None


class DecodeInOneCall(Forward):
    """The model on small batches: no request has more than FEW_QUERIES new tokens, and one thread computes them all at
    least as fast as several."""

    def __init__(self, engine):
        from tinyengine.fast.kernels.cpu import decode  # needs numba

        super().__init__(engine)
        self._kernel = decode
        self._arena = engine.attention.cache.keys.numpy(), engine.attention.cache.values.numpy()
        self._weights = self._all_weights(engine.model, engine.operators)

    def suits(self, batch: Batch) -> bool:
        return max(batch.counts) <= FEW_QUERIES and self.engine.operators.one_thread_is_best(len(batch.tokens))

    def run(self, batch: Batch) -> torch.Tensor:
        rows = batch.tokens, batch.positions, batch.slot_mapping
        where = batch.cu_seqlens_q, batch.seqused_k, batch.block_table
        try:
            hidden = self._kernel.hidden_states(self._weights, *(part.numpy() for part in rows + where), *self._arena)
        except IndexError:  # again, layer by layer, where the error says what was out of range
            return self.otherwise(batch)
        return torch.from_numpy(hidden)[batch.last]

    def _all_weights(self, model, operators):
        config, layers = model.config, model.layers
        norms = {
            "input_norm": [layer.input_layernorm.weight for layer in layers],
            "q_norm": [layer.self_attn.q_norm.weight for layer in layers],
            "k_norm": [layer.self_attn.k_norm.weight for layer in layers],
            "post_attention_norm": [layer.post_attention_layernorm.weight for layer in layers],
        }
        packed = {
            name: [operators.packed(_matrices(layer)[name]).data_ptr() for layer in layers]
            for name in _matrices(layers[0])
        }
        cos, sin = model.rope_tables()
        return self._kernel.Weights(
            embedding=model.embed_tokens.weight.detach().numpy(),
            **{name: torch.stack(weights).detach().numpy() for name, weights in norms.items()},
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
