"""What a step cannot do without: its bare matrix products, the bytes it reads, the operations it does; and how fast
this machine does such things, measured."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch

from tinyengine.fast.attention import side_by_side
from tinyengine.operators import Operators
from tinyengine.trace import Iteration

PAGE = 16  # slots of a block, for transformers as for us

# what a machine does


def seconds(work: Callable[[], object], device: str, repeats: int = 20, in_a_row: int = 1) -> float:
    """The median time of `work` on the device: CUDA events, or the clock on a CPU; the first three do not count.
    in_a_row: so many are launched before the clock waits for them, so that the GPU is never short of work."""
    times = []
    for _ in range(repeats + 3):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(in_a_row):
                work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1000 / in_a_row)
        else:
            started = perf_counter()
            work()
            times.append(perf_counter() - started)
    return median(times[3:])


def copy_bandwidth(device: str, size: int, repeats: int = 20) -> float:
    """Bytes read and written a second by a copy that touches `size` bytes in all: half of them read, half written."""
    source = torch.zeros(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source), device, repeats)


def matrix_rate(device: str, dtype: torch.dtype, size: int, repeats: int = 20) -> float:
    """Floating-point operations a second of one large square product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device, repeats)


# what a step needs


def weight_bytes(model) -> int:
    """Every weight once, also one that is embedding and head; of an embedding that is not, next to nothing is read."""
    unread = 0 if model.config.tie_word_embeddings else model.embed_tokens.weight.nbytes
    weights = {weight.data_ptr(): weight for weight in model.parameters()}  # two parameters may be one tensor
    return sum(weight.nbytes for weight in weights.values()) - unread


def kv_bytes(model) -> int:
    """Of one token's keys and values, all layers."""
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize


def flop_of(model, spans: Sequence[tuple[int, int]], due: int) -> int:
    """Operations of an iteration's products, two for each multiplication. spans: of each request its new tokens, and
    all that it then has; due: rows that get a token. A query meets the keys up to its own position."""
    config, tokens = model.config, sum(count for count, _ in spans)
    layers = sum(weight.numel() for layer in model.layers for weight in layer.parameters() if weight.ndim == 2)
    pairs = sum(count * (2 * length - count + 1) // 2 for count, length in spans)
    attention = 4 * pairs * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    return 2 * tokens * layers + attention + 2 * due * model.lm_head.weight.numel()


class Products:
    """The bare matrix products of iterations, on operands that lie ready. operators: of the engine that ran them, or
    others to compare with."""

    def __init__(self, model, operators: Operators, iterations: Sequence[Iteration]):
        self.model, self.operators, self.iterations = model, operators, iterations
        self.weights = [
            linear.weight
            for layer in model.layers
            for linear in (
                layer.self_attn.qkv_proj,
                layer.self_attn.o_proj,
                layer.mlp.gate_up_proj,
                layer.mlp.down_proj,
            )
        ]
        rows = max(iteration.num_tokens + iteration.padding for iteration in iterations)
        widths = {weight.shape[1] for weight in self.weights}
        self.inputs = {width: torch.randn(rows, width, device=model.device, dtype=model.dtype) for width in widths}
        self.pairs = [self._attention_operands(iteration) for iteration in iterations]

    @torch.inference_mode()
    def linear(self, index: int):
        """The linear layers over all rows, and the logits of the rows that get a token."""
        iteration = self.iterations[index]
        n = iteration.num_tokens + iteration.padding
        for weight in self.weights:
            self.operators.linear(self.inputs[weight.shape[1]][:n], weight)
        due = sum(bool(span.tokens) for span in iteration.spans)
        if due:
            head = self.model.lm_head.weight
            self.operators.linear(self.inputs[head.shape[1]][:due], head)

    @torch.inference_mode()
    def attention(self, index: int):
        """In every layer and of each request, the queries by the keys and the weights by the values."""
        for _ in self.model.layers:
            for queries, keys, values in self.pairs[index]:
                (queries @ keys) @ values

    def _attention_operands(self, iteration: Iteration) -> list[tuple[torch.Tensor, ...]]:
        """Queries, keys and values of an iteration's attention, of the shapes in which torch is given them."""
        counts, lengths = zip(*((span.n_tokens, span.start + span.n_tokens) for span in iteration.spans), strict=True)
        config = self.model.config
        kv_heads, size = config.num_key_value_heads, config.head_dim
        group = config.num_attention_heads // kv_heads
        operands = []
        for requests in side_by_side(counts, lengths, PAGE):
            n, longest = counts[requests[0]], max(lengths[index] for index in requests)
            shape = (len(requests), kv_heads, size, longest)
            keys = torch.zeros(shape, device=self.model.device, dtype=self.model.dtype)
            operands.append((keys.new_zeros(len(requests), kv_heads, group * n, size), keys, keys.transpose(-1, -2)))
        return operands


def products(model, operators: Operators, iterations: Sequence[Iteration]) -> float:
    """Seconds for the bare matrix products of iterations, one after the other."""
    ready = Products(model, operators, iterations)
    started = perf_counter()
    for index in range(len(iterations)):
        ready.linear(index)
        ready.attention(index)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - started
