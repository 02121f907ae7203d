"""What exercises 03 hand to the learner: operations on rows, a loop with a fault in it, and ways to run an answer."""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F

from tinyengine.attention import one_request as attend
from tinyengine.course.checks import ends
from tinyengine.course.plugged import plugged
from tinyengine.inputs import encode
from tinyengine.model.load import load_model
from tinyengine.workload import chat, workload

SLOTS = 96  # of each request of a loop


@cache
def tiny():
    return load_model("tiny", device="cpu")


def engine(**parts):
    """The real engine, stage selective, with these parts of the learner's: flat, attend_each or sample."""
    return plugged(tiny(), "selective", parts, max_num_seqs=3, num_slots=320)


def served(**parts) -> list[list[int]]:
    """The tokens of the course's eight requests, with these parts."""
    return [output.token_ids for output in workload("course").replay(engine(**parts))]


WIDTH = 64
RANDOM = torch.Generator().manual_seed(3)
WEIGHT, EXPERTS = torch.randn(WIDTH, WIDTH, generator=RANDOM) / 8, torch.randn(3, WIDTH, WIDTH, generator=RANDOM) / 8


def rotated(x, positions):
    angle = positions[:, None] / 100 ** torch.linspace(0, 1, WIDTH // 2)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()), -1)


def by_its_expert(x, positions):
    expert = (x @ WEIGHT[:, :3]).argmax(-1)
    return torch.einsum("rd,rde->re", x, EXPERTS[expert])


def by_its_rows(x, positions):
    out = x.clone()
    for expert, row in enumerate((x @ WEIGHT[:, :3]).argmax(0)):
        out[row] += x[row] @ EXPERTS[expert]
    return out


def rounded(x, scale):
    return (x / scale * 7).round() * scale / 7


ROW_WISE = {
    "linear": lambda x, positions: x @ WEIGHT if len(x) > 1 else (x.double() @ WEIGHT.double()).float(),
    "RMSNorm": lambda x, positions: x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt(),
    "softmax over the features": lambda x, positions: x.softmax(-1),
    "SwiGLU": lambda x, positions: F.silu(x) * (x @ WEIGHT),
    "RoPE at the row's position": rotated,
    "4 bits, one scale per row": lambda x, positions: rounded(x, x.abs().amax(-1, keepdim=True)),
    "each row picks its expert": by_its_expert,
}
MEETING = {
    "causal attention": lambda x, positions: attend(*[x.view(len(x), 2, -1)] * 3).flatten(1),
    "softmax over the rows": lambda x, positions: x.softmax(0),
    "sum of all rows so far": lambda x, positions: x.cumsum(0),
    "batch norm in training": lambda x, positions: (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt(),
    "4 bits, one scale for all": lambda x, positions: rounded(x, x.abs().max()),
    "mixed with the row behind": lambda x, positions: x + torch.cat((x[1:], 0 * x[:1])),
    "a little of the mean row": lambda x, positions: x + 0.02 * x.mean(0),
    "each expert picks its row": by_its_rows,
    "RoPE at the row's number": lambda x, positions: rotated(x, torch.arange(len(x))),
}
OPERATIONS = ROW_WISE | MEETING


@dataclass
class Running:
    """A request of exercise 3.5. tokens: prompt and output; of the first `computed` of them keys and values
    [layers, slots, kv_heads, d] hold what the model made. Slots past them hold what an earlier request left."""

    tokens: list
    keys: torch.Tensor
    values: torch.Tensor
    computed: int = 0


def broken_iteration(model, batch):
    """One iteration: each request of the batch gets its next token."""
    starts = [0, *accumulate(len(r.tokens) - r.computed for r in batch)]
    tokens = [token for r in batch for token in r.tokens[r.computed :]]
    positions = [p for r in batch for p in range(r.computed, len(r.tokens))]
    length = max(len(r.tokens) for r in batch)

    def attend_all(layer, q, k, v):
        parts = []
        for r, (start, end) in zip(batch, pairwise(starts)):
            r.keys[layer, r.computed : len(r.tokens)] = k[start:end]
            r.values[layer, r.computed : len(r.tokens)] = v[start:end]
            keys, values = r.keys[layer, :length], r.values[layer, :length]
            parts.append(attend(q[start:end], keys, values))
        return torch.cat(parts)

    hidden = model(torch.tensor(tokens), torch.tensor(positions), attend_all)
    last = torch.tensor(starts[1:]) - 1
    for r, token in zip(batch, model.logits(hidden[last]).argmax(-1).tolist()):
        r.computed = len(r.tokens)
        r.tokens.append(token)


FRANCE, COUNT, HELLO, HOT = (
    "What is the capital of France?", "Count from 1 to 24.", "Say hello to Mia.", "What is the opposite of hot?"
)  # fmt: skip
QUESTIONS = FRANCE, COUNT, HELLO, HOT
BATCHES = {
    "a request alone": ((FRANCE, 0),),
    "requests of one length": ((HELLO, 0), (HELLO, 0)),
    "both prefill": ((COUNT, 0), (HELLO, 0), (FRANCE, 0)),
    "one of each": ((HELLO, 0), (FRANCE, 2), (COUNT, 3), (HOT, 3)),
}
LONGEST = 12  # tokens of an output


class Counted:
    """A model that counts its calls and their rows."""

    def __init__(self, model):
        self.model, self.rows = model, []

    def __call__(self, tokens, *others):
        self.rows.append(len(tokens))
        return self.model(tokens, *others)

    def logits(self, hidden):
        return self.model.logits(hidden)


@torch.inference_mode()
def ran(answer, case):
    """(output tokens of each request, rows of each call of the model) with this `iteration`."""
    joins, model = BATCHES[case] if isinstance(case, str) else case, tiny()
    config, counted, random = model.config, Counted(model), torch.Generator().manual_seed(5)
    shape = config.num_hidden_layers, SLOTS, config.num_key_value_heads, config.head_dim
    prompts = [encode(model, chat(question), "") for question, _ in joins]
    requests = [Running(list(p), *(3 * torch.randn(shape, generator=random) for _ in "kv")) for p in prompts]
    sizes = [len(prompt) + LONGEST for prompt in prompts]
    for now in range(max(first for _, first in joins) + LONGEST):
        batch = [r for r, (_, first), size in zip(requests, joins, sizes) if first <= now and len(r.tokens) < size]
        before = [len(r.tokens) for r in batch]
        if batch:
            ends(answer, counted, batch)
            if [len(r.tokens) - 1 for r in batch] != before:
                raise RuntimeError("each request of the batch must get one token in each iteration")
    return [r.tokens[len(prompt) :] for r, prompt in zip(requests, prompts)], counted.rows


def answers(iteration, *questions) -> list[str]:
    """The texts that these questions get from an `iteration`, all of them in one batch."""
    outputs, _ = ran(iteration, [(question, 0) for question in questions])
    return [tiny().tokenizer.decode(tokens, skip_special_tokens=True) for tokens in outputs]
