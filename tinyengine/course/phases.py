"""One request alone: a step over a K/V cache, a step that is played, a loop with a fault; for lesson 00."""

from collections.abc import Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from time import perf_counter

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from tinyengine.attention import one_request
from tinyengine.course.checks import plain

# bytes a second, and dense bf16 operations a second; NVIDIA's data sheets of the SXM boards
GPUS = {"A100": (2.039e12, 312e12), "H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12)}


class Step:
    """One forward pass of a model over a K/V cache of its own: step(tokens, positions) -> the next token, greedily.

    attend(q, keys, values): a function of one layer. slots: K/V slots of the cache. slot: where the first token's K/V
    go; at its position, unless a fault is wanted.
    """

    def __init__(self, model, attend, slots: int = 256):
        config = model.config
        shape = (config.num_hidden_layers, slots, config.num_key_value_heads, config.head_dim)
        self.model, self.attend = model, attend
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int], positions: Sequence[int], slot: int | None = None) -> int:
        first = positions[0] if slot is None else slot
        end = first + len(tokens)

        def attend(layer, q, k, v):
            self.keys[layer, first:end], self.values[layer, first:end] = k, v
            return self.attend(q, self.keys[layer, :end], self.values[layer, :end])

        hidden = self.model(torch.tensor(tokens), torch.tensor(positions), attend)
        return self.model.logits(hidden[-1:]).argmax().item()


def read_once(step):
    """The loop of lesson 00 that reads each token once: loop(prompt, n_outputs) -> the output."""

    def loop(prompt, n_outputs, step=step):
        outputs = []
        while len(outputs) < n_outputs:
            new = outputs[-1:] or prompt
            first = len(prompt) + len(outputs) - len(new)
            outputs.append(step(new, range(first, first + len(new))))
        return outputs

    return loop


def watch(model, loop, *args):
    """(what loop(*args) gives, the rows of each forward pass of the model, the seconds up to the next one)"""
    rows, began = [], []

    def note(_, inputs):
        rows.append(len(inputs[0]))
        began.append(perf_counter())

    hook = model.register_forward_pre_hook(note)
    try:
        outputs = loop(*args)
    finally:
        hook.remove()
    return outputs, rows, [end - start for start, end in pairwise([*began, perf_counter()])]


class Script:
    """A step without a model: it gives these tokens, one a call, and notes what it was given."""

    def __init__(self, *tokens):
        self.tokens, self.calls = tokens, []

    def __repr__(self):
        return f"<step: {', '.join(map(str, self.tokens[:6]))}, ...>"

    def __call__(self, tokens, positions):
        self.calls.append((plain(list(tokens)), plain(list(positions))))
        if len(self.calls) > len(self.tokens):
            raise RuntimeError(f"step is called {len(self.calls)} times, and no stop ends the loop")
        return self.tokens[len(self.calls) - 1]


class ByHand(TorchFunctionMode):
    """Refuses torch's own attention."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.scaled_dot_product_attention:
            raise ValueError("you call scaled_dot_product_attention: write attention by hand")
        return function(*args, **(kwargs or {}))


class Watched:
    """A model that notes the positions of each forward pass."""

    def __init__(self, model):
        self.model, self.steps = model, []

    def __call__(self, tokens, positions, attend):
        self.steps.append(positions.tolist())
        return self.model(tokens, positions, attend)

    def __getattr__(self, name):
        return getattr(self.model, name)


def broken_serve(model, prompts, max_tokens):
    """A list of tokens for each prompt; all requests use the same K/V slots in turn."""
    config, answers = model.config, []
    shape = config.num_hidden_layers, 128, config.num_key_value_heads, config.head_dim
    keys, values = torch.zeros(shape), torch.zeros(shape)

    def step(new, first):
        end = first + len(new)

        def attend(layer, q, k, v):
            keys[layer, first:end], values[layer, first:end] = k, v
            return one_request(q, keys[layer, :end], values[layer, :end])

        hidden = model(torch.tensor(new), torch.arange(first, end), attend)
        return model.logits(hidden[-1:]).argmax().item()

    for prompt in prompts:
        outputs, new, first = [], prompt, 0
        while len(outputs) < max_tokens:
            outputs.append(step(new, first))
            if outputs[-1] in model.eos_token_ids:
                break
            new, first = outputs[-1:], len(prompt) + len(outputs)
        answers.append(outputs)
    return answers


@contextmanager
def one_thread():
    """So small a model is slower with two, and much slower where another program has the second core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def tiny():
    from tinyengine import load_model  # imported here: its tokenizer takes seconds

    return load_model("tiny", device="cpu")


def encoded(question: str) -> list[int]:
    """The token ids of a question in the embedded model's chat form."""
    from tinyengine.workload import chat

    return tiny().tokenizer.encode(chat(question))


def tensors(case):
    """q, keys and values of this shape, always the same."""
    n, length, heads, kv_heads, head_dim = case
    draw = torch.Generator().manual_seed(hash(case))
    shapes = (n, heads, head_dim), (length, kv_heads, head_dim), (length, kv_heads, head_dim)
    return [torch.randn(shape, generator=draw) for shape in shapes]
