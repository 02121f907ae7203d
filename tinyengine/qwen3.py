"""Qwen3 on a stream of tokens. All but attention treats rows one by one, so only `attend` knows of requests.

Source: the Qwen3 technical report (arXiv 2505.09388); names as in transformers' Qwen3ForCausalLM.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tinyengine.attention import Attend
from tinyengine.operators import TORCH, Operators, Rope


@dataclass(frozen=True)
class Config:
    """The numbers that shape the model, named as in its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor, operators: Operators) -> torch.Tensor:
        return operators.rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Projections, per-head norms and rotary positions; the meeting of rows is left to `attend`.

    heads: how many heads of queries, of keys and of values.
    """

    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.heads = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        # q, k and v in one product: three small ones cost more than one large one
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.heads) * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, rope: Rope, attend: Attend, operators: Operators) -> torch.Tensor:
        qkv = operators.linear(x, self.qkv_proj.weight).view(len(x), -1, self.head_dim)
        q, k, v = operators.split_normalise_rotate(qkv, self.heads, (self.q_norm, self.k_norm), rope)
        out = attend(self.layer, q, k, v).flatten(1)  # [R, heads * head_dim]
        return operators.linear(out, self.o_proj.weight)  # [R, hidden]


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, operators: Operators) -> torch.Tensor:
        gate_up = operators.linear(x, self.gate_up_proj.weight)  # [R, 2 * intermediate]
        return operators.linear(operators.swiglu(gate_up), self.down_proj.weight)


class Layer(nn.Module):
    def __init__(self, config: Config, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor, rope: Rope, attend: Attend, operators: Operators) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x, operators), rope, attend, operators)
        return x + self.mlp(self.post_attention_layernorm(x, operators), operators)


class Qwen3(nn.Module):
    """forward: tokens [R] and positions [R], long, and an attend -> hidden states [R, hidden].
    logits: hidden [n, hidden] -> [n, vocab]. Both take the operators to compute with from their caller.

    `tokenizer`, `eos_token_ids` and `folder` come with the weights (tinyengine.model.load); a bare model has none.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.tokenizer = None
        self.eos_token_ids: tuple[int, ...] = ()
        self.folder: Path | None = None
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self._rope: Rope | None = None

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend, operators: Operators = TORCH
    ) -> torch.Tensor:
        cos, sin = self.rope_tables()
        rope = cos[positions, None], sin[positions, None]  # [R, 1, head_dim]: the same for every head
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, rope, attend, operators)
        return self.norm(x, operators)

    def logits(self, hidden: torch.Tensor, operators: Operators = TORCH) -> torch.Tensor:
        return operators.linear(hidden, self.lm_head.weight)

    def rope_tables(self) -> Rope:
        """cos and sin of every position's angles, [max positions, head_dim], made once. In float32 up to the end: in
        bf16 the angle of position 257 would be that of position 256."""
        if self._rope is None or (self._rope[0].dtype, self._rope[0].device) != (self.dtype, self.device):
            config = self.config
            exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=self.device).float()
            frequency = 1.0 / config.rope_theta ** (exponent / config.head_dim)  # [head_dim / 2]
            position = torch.arange(config.max_position_embeddings, device=self.device).float()
            angle = torch.outer(position, frequency).repeat(1, 2)  # [positions, head_dim]
            self._rope = angle.cos().to(self.dtype), angle.sin().to(self.dtype)
        return self._rope
