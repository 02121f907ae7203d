"""What exercises 03 hand to the learner: operations on rows, a loop with a fault in it, and ways to run an answer."""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise, takewhile

import torch
import torch.nn.functional as F

from tinyengine.attention import one_request as attend
from tinyengine.course.checks import ends, quote
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


# name: ((new rows, keys), ...) of each request
SIZES = {
    "both prefill": ((2, 2), (3, 3)),
    "both decode": ((1, 4), (1, 7), (1, 2)),
    "one of each": ((1, 4), (3, 3), (1, 6), (2, 2)),
    "several rows behind older ones": ((2, 5), (1, 1), (3, 4)),
}


def sizes_of(case):
    """The sizes of a case, which is a name of SIZES or sizes as they are."""
    return SIZES[case] if isinstance(case, str) else case


def attended(answer, case):
    """What the answer gives for a case: float32, 4 heads of queries, 2 of keys and values."""
    sizes = sizes_of(case)
    random = torch.Generator().manual_seed(sum(10 * length + n for n, length in sizes))
    starts = [0, *accumulate(n for n, _ in sizes)]
    q = torch.randn(starts[-1], 4, 8, generator=random)
    keys, values = ([torch.randn(length, 2, 8, generator=random) for _, length in sizes] for _ in "kv")
    return ends(answer, q, starts, keys, values)


def digest(got):
    """A few rounded numbers of each row, which another order of adding up does not change."""
    if not isinstance(got, torch.Tensor) and not (
        isinstance(got, list | tuple) and got and all(isinstance(part, torch.Tensor) for part in got)
    ):
        return [type(got).__name__, quote(got)]
    rows = got if isinstance(got, torch.Tensor) else torch.cat(list(got))
    return [type(got).__name__, list(rows.shape), [round(row.sum().item(), 2) for row in rows]]


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


def middle_row(x, positions):
    out = x.clone()
    out[len(x) // 2] += x.mean(0) * (len(x) > 2)
    return out


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
    "a thousandth of the row before": lambda x, positions: x + 0.001 * x.roll(1, 0),
    "only one row meets the others": middle_row,
    "each expert picks its row": by_its_rows,
    "RoPE at the row's number": lambda x, positions: rotated(x, torch.arange(len(x))),
}
OPERATIONS = ROW_WISE | MEETING


def asked(answer, case):
    """What the answer says of an operation, for five rows."""
    name, seed = case
    random = torch.Generator().manual_seed(seed)
    x, positions = torch.randn(5, WIDTH, generator=random), torch.randperm(20, generator=random)[:5]
    torch.manual_seed(seed)
    return ends(answer, OPERATIONS[name], x, positions)


# name: (temperature, top_p) of each request, in turn
SETTINGS = {
    "temperature 0": ((0.0, 1.0), (0.0, 0.3)),
    "temperature 1, all tokens": ((1.0, 1.0),),
    "temperatures": ((0.5, 1.0), (1.0, 1.0), (2.0, 1.0)),
    "top_p": ((1.0, 0.3), (1.0, 0.6), (1.0, 0.9), (1.0, 0.05)),
    "each with its own": ((0.0, 0.5), (1.3, 0.8), (0.6, 1.0), (2.0, 0.2), (0.9, 0.4)),
}
REQUESTS, VOCABULARY = 30, 16


def batch_of(case):
    """logits, temperature, top_p and noise of 30 requests, from a seed."""
    settings, seed = case
    settings = SETTINGS.get(settings, settings) if isinstance(settings, str) else settings
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(REQUESTS, VOCABULARY, generator=random)
    noise = -(-torch.rand(REQUESTS, VOCABULARY, generator=random).clamp(1e-6, 1 - 1e-6).log()).log()
    own = torch.tensor([settings[row % len(settings)] for row in range(REQUESTS)])
    return logits, own[:, 0], own[:, 1], noise


def drawn_tokens(answer, case):
    torch.manual_seed(case[1])
    return ends(answer, *batch_of(case))


@dataclass
class Running:
    """A request of exercise 3.5. tokens: prompt and output. keys, values [layers, slots, kv_heads, d]: what the model
    has made of the first `computed` tokens."""

    tokens: list
    keys: torch.Tensor
    values: torch.Tensor
    computed: int = 0


def broken_iteration(model, batch):
    """One iteration: each request of the batch gets its next token."""
    tokens, positions, starts = [], [], [0]
    for r in batch:
        length = len(r.tokens)
        tokens += r.tokens[r.computed :]
        positions += range(r.computed, length)
        starts.append(len(tokens))

    def attend_all(layer, q, k, v):
        parts = []
        for r, (start, end) in zip(batch, pairwise(starts)):
            r.keys[layer, r.computed : len(r.tokens)] = k[start:end]
            r.values[layer, r.computed : len(r.tokens)] = v[start:end]
            own = slice(0, length)
            keys, values = r.keys[layer, own], r.values[layer, own]
            parts.append(attend(q[start:end], keys, values))
        return torch.cat(parts)

    hidden = model(torch.tensor(tokens), torch.tensor(positions), attend_all)
    last = torch.tensor(starts[1:]) - 1
    for r, token in zip(batch, model.logits(hidden[last]).argmax(-1).tolist()):
        r.computed = len(r.tokens)
        r.tokens.append(token)


QUESTIONS = LOOKUP, FRANCE, COUNT, HELLO = (
    "Mia: fox. Leo: owl. Ann: cat. Leo?", "What is the capital of France?", "Count from 1 to 24.", "Say hello to Mia."
)  # fmt: skip
BATCHES = {
    "one of each": ((HELLO, 0), (FRANCE, 2), (LOOKUP, 3), (COUNT, 3)),
    "both prefill": ((LOOKUP, 0), (HELLO, 0), (FRANCE, 0)),
    "both of one length": ((FRANCE, 0), (COUNT, 0)),
    "a request alone": ((FRANCE, 0),),
}
LONGEST = 8  # tokens of an output


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
    """(output tokens of each request, rows of each call of the model, `computed` of each) with this `iteration`."""
    joins, model = BATCHES[case] if isinstance(case, str) else case, tiny()
    config, counted, random = model.config, Counted(model), torch.Generator().manual_seed(5)
    shape = config.num_hidden_layers, SLOTS, config.num_key_value_heads, config.head_dim
    prompts = [encode(model, chat(question), "") for question, _ in joins]
    requests = [Running(list(p), *(8 * torch.randn(shape, generator=random) for _ in "kv")) for p in prompts]
    sizes = [len(prompt) + LONGEST for prompt in prompts]
    for now in range(max(first for _, first in joins) + LONGEST):
        batch = [r for r, (_, first), size in zip(requests, joins, sizes) if first <= now and len(r.tokens) < size]
        before = [len(r.tokens) for r in batch]
        if batch:
            ends(answer, counted, batch)
            if [len(r.tokens) - 1 for r in batch] != before:
                raise RuntimeError("each request of the batch must get one token in each iteration")
    outputs = [r.tokens[len(prompt) :] for r, prompt in zip(requests, prompts)]
    return outputs, counted.rows, [r.computed for r in requests]


def answers(iteration, *questions) -> list[str]:
    """The texts that these questions get from an `iteration`, all of them in one batch."""
    outputs, *_ = ran(iteration, [(question, 0) for question in questions])
    ends = set(tiny().eos_token_ids)
    return [tiny().tokenizer.decode(list(takewhile(lambda token: token not in ends, tokens))) for tokens in outputs]
