"""The referee of exercises 00: bytes of K/V, attention by hand, a loop with its stops, a ridge, a loop to repair."""

import math
from copy import deepcopy

import torch

from tinyengine.attention import one_request
from tinyengine.course.checks import difference, ends, far, number, plain, quote, same
from tinyengine.course.exercise import exercise
from tinyengine.course.phase_pictures import answers, draw_attend, draw_loop, draw_ridge, draw_rows
from tinyengine.course.phases import (
    GPUS,
    ByHand,
    Script,
    Step,
    Watched,
    broken_serve,
    encoded,
    one_thread,
    tensors,
    tiny,
    watch,
)

__all__ = ["GPUS", "MODELS", "Step", "answers", "broken_serve", "check_0_1", "check_0_2", "check_0_3", "check_0_4",
           "check_0_5", "draw_attend", "draw_loop", "draw_ridge", "draw_rows", "encoded", "tiny", "watch"]  # fmt: skip


def first_wrong(runs, place) -> str:
    """A sentence for the first run that gave a wrong number, or nothing. place(case): the case, in words."""
    return next((f"{place(r.case)}: {difference(r.got, r.want)}" for r in runs if not same(r.got, r.want)), "")


# 0.1

MODELS = {  # the fields of each model's config.json that matter here
    "embedded": dict(num_hidden_layers=4, hidden_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                     dtype="float32"),
    "Qwen3-0.6B": dict(num_hidden_layers=28, hidden_size=1024, num_attention_heads=16, num_key_value_heads=8,
                       head_dim=128, dtype="bfloat16"),
    "Qwen3-32B": dict(num_hidden_layers=64, hidden_size=5120, num_attention_heads=64, num_key_value_heads=8,
                      head_dim=128, dtype="bfloat16"),
    "LLaMA-2-70B": dict(num_hidden_layers=80, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8,
                        dtype="float16"),
}  # fmt: skip


def kv_bytes(config, n_tokens):
    """Bytes of the K/V of n_tokens tokens."""
    quotient = config["hidden_size"] // config["num_attention_heads"]
    head_dim = config.get("head_dim") or quotient
    numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    return n_tokens * numbers * getattr(torch, config["dtype"]).itemsize


HEAD_DIM = 'config.get("head_dim") or '
BYTES_MISTAKES = [
    ("query heads", "you count a key for each query head, but several query heads share one K/V head",
     ("num_key_value_heads", "num_attention_heads")),
    ("keys only", "you count the keys and leave out the values, or the other way round", ("2 * config", "config")),
    ("one layer", "you count one layer, but each layer keeps K/V of its own", ('config["num_hidden_layers"] * ', "")),
    ("no head_dim", "you divide hidden_size by the heads although the config says head_dim: it may differ",
     (HEAD_DIM, "")),
    ("hidden size", "a key is not hidden_size numbers: it has num_key_value_heads heads of head_dim numbers",
     ('config["num_key_value_heads"] * head_dim', 'config["hidden_size"]')),
    ("one head", "you count one head of a layer, but a layer has num_key_value_heads of them",
     ('config["num_key_value_heads"] * ', "")),
    ("16 bits", "you take 2 bytes for every dtype: look at config['dtype']",
     ('getattr(torch, config["dtype"]).itemsize', "2")),
    ("numbers", "you count numbers where bytes are asked for", (' * getattr(torch, config["dtype"]).itemsize', "")),
    ("bits", "you give bits: a byte has eight of them", (".itemsize", ".itemsize * 8")),
    ("one token", "you give the bytes of one token: there are n_tokens of them", ("n_tokens * numbers", "numbers")),
]  # fmt: skip


def draw_configs(random):
    def config():
        kv_heads, head_dim, dtype = (
            random.randint(1, 8),
            8 * random.randint(2, 16),
            random.choice(["float32", "float16"]),
        )
        heads = kv_heads * random.randint(2, 8)
        sizes = dict(num_hidden_layers=random.randint(2, 90), num_attention_heads=heads, num_key_value_heads=kv_heads)
        return sizes | dict(hidden_size=heads * 8 * random.randint(2, 16), head_dim=head_dim, dtype=dtype)

    return [(config(), random.randint(2, 5000)) for _ in range(4)]


def model_and_tokens(case) -> str:
    config, n_tokens = case
    known = next((name for name, fields in MODELS.items() if fields == config), None)
    return f"{known or quote(config)}, {n_tokens:,} token{'s' * (n_tokens != 1)}"


@exercise("0.1", points=3, solution=kv_bytes, mistakes=BYTES_MISTAKES)
def check_0_1(c, answer):
    sizes = {"embedded": 1, "Qwen3-0.6B": 1, "Qwen3-32B": 7, "LLaMA-2-70B": 4096}
    cases = [(MODELS[name], n_tokens) for name, n_tokens in sizes.items()]
    runs = c.cases("it counts", answer, cases, drawn=draw_configs)
    groups = {
        "one token": runs[:2],
        "a config without head_dim": runs[3:4],
        "several tokens": runs[2:3] + runs[4:],
    }
    for name, some in groups.items():
        odd = [run for run in some if isinstance(run.got, float)]
        trouble = first_wrong(some, model_and_tokens)
        if odd and not trouble:
            trouble = f"{model_and_tokens(odd[0].case)}: you have {quote(odd[0].got)}, a float, but bytes are whole"
        c.true(name, not trouble, trouble)


# 0.2: a case is (new tokens, all tokens, query heads, K/V heads, head_dim)


def attend(q, keys, values):
    """Causal attention of the newest n tokens of a request over all its keys."""
    n, length, group = len(q), len(keys), q.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(group, dim=1)  # [length, heads, d]
    values = values.repeat_interleave(group, dim=1)
    scores = torch.einsum("nhd,lhd->hnl", q, keys) / q.shape[2] ** 0.5
    sees = torch.ones(n, length, dtype=torch.bool, device=q.device).tril(length - n)
    weights = scores.masked_fill(~sees, float("-inf")).softmax(dim=2)
    return torch.einsum("hnl,lhd->nhd", weights, values)


MASKED = 'scores.masked_fill(~sees, float("-inf")).softmax(dim=2)'
ATTEND_MISTAKES = [
    ("top left", "your mask is aligned to the top left: the newest query has to see every key",
     ("tril(length - n)", "tril()")),
    ("no mask", "a query sees keys that come after it", (MASKED, "scores.softmax(dim=2)")),
    ("not itself", "a query does not see its own key", ("tril(length - n)", "tril(length - n - 1)")),
    ("one too far", "each query sees one key too many", ("tril(length - n)", "tril(length - n + 1)")),
    ("no scale", "the scores are not divided by the square root of the head's size", (" / q.shape[2] ** 0.5", "")),
    ("scale by d", "you divide the scores by the head's size instead of its square root", (" ** 0.5", "")),
    ("interleaved", "the K/V heads are dealt out in turn, but neighbouring query heads share one",
     ("repeat_interleave(group, dim=1)", "repeat(1, group, 1)")),
    ("first head", "every query head uses the first K/V head",
     ("keys = keys.", "keys = keys[:, :1].expand(-1, keys.shape[1], -1)."),
     ("values = values.", "values = values[:, :1].expand(-1, values.shape[1], -1).")),
    ("over queries", "the softmax goes over the queries instead of the keys", ("softmax(dim=2)", "softmax(dim=1)")),
    ("mask after", "you mask after the softmax, so the weights of a query no longer add up to 1",
     (MASKED, "scores.softmax(dim=2) * sees")),
    ("zeros", "a masked score of 0 still gets a weight in the softmax", ('float("-inf")', "0.0")),
    ("keys twice", "you weigh the keys: what is wanted is the weighted mean of the values",
     ('lhd->nhd", weights, values', 'lhd->nhd", weights, keys')),
]  # fmt: skip

SHAPES = [(4, 4, 1, 1, 8), (1, 1, 1, 1, 4), (1, 5, 2, 2, 8), (2, 6, 2, 2, 4), (5, 5, 4, 2, 8), (6, 6, 6, 2, 4),
          (1, 7, 6, 2, 8), (3, 8, 8, 4, 4)]  # fmt: skip


def attended(answer, case):
    with ByHand(), one_thread():
        return ends(answer, *tensors(case))


def sight(got):
    """What shows a mistake in an attention: numbers that can be compared, also where some are NaN."""
    return got.nan_to_num(nan=1e6) if isinstance(got, torch.Tensor) else got


def draw_shapes(random):
    found = []
    for _ in range(4):
        n, kv_heads = random.randint(1, 6), random.randint(1, 3)
        found.append((n, n + random.randint(1, 9), kv_heads * random.randint(2, 4), kv_heads, 2 * random.randint(1, 8)))
    return found


def off(run):
    """A sentence for the first number that is wrong, or nothing."""
    n, length, heads, kv_heads, head_dim = run.case
    place = f"{n} new of {length} tokens, query heads: {heads}, K/V heads: {kv_heads}, each of size {head_dim}"
    if not isinstance(run.got, torch.Tensor) or run.got.shape != run.want.shape:
        got = tuple(run.got.shape) if isinstance(run.got, torch.Tensor) else type(run.got).__name__
        return f"{place}: you give {got}, where a tensor of {tuple(run.want.shape)} is needed"
    for query in range(n):
        for head in range(heads):
            if reason := far(plain(run.got[query, head]), plain(run.want[query, head]), 1e-5, 1e-5):
                where = f"token {length - n + query}, query head {head}"
                return f"{place}: the first wrong output is that of {where}, {reason}"
    return ""


def real_tokens(loop, attention, question="Count from 7 to 12."):
    """The tokens that a loop and an attention give with the real model."""
    model = tiny()
    with one_thread():
        step = Step(model, attention)  # attention in plain loops takes many lines, and ends
        return ends(loop, step, encoded(question), 24, model.eos_token_ids, (), lines=2_000_000)


@exercise("0.2", points=6, solution=attend, mistakes=ATTEND_MISTAKES, part=True)
def check_0_2(c, answer):
    runs = c.cases("it attends", answer, SHAPES, attended, sight, draw_shapes)
    groups = {
        "a whole prompt, one head": runs[:2],
        "one new token behind others": runs[2:3],
        "two new tokens behind others": runs[3:4],
        "a whole prompt, query heads that share a K/V head": runs[4:6],
        "new tokens behind others, heads that share": runs[6:],
    }
    troubles = {name: next(filter(None, map(off, some)), "") for name, some in groups.items()}
    for name, trouble in troubles.items():
        c.true(name, not trouble, trouble)
    if any(troubles.values()):
        return c.wait("the real model")
    differ = "with your attention the model writes other tokens"
    right = real_tokens(generate, attend)
    c.equal("the real model", lambda: real_tokens(generate, answer), right, because=lambda *_: differ)


# 0.3


def generate(step, prompt, max_tokens, eos, stop):
    """The output of one request: a list of tokens."""
    outputs, tokens, positions = [], list(prompt), list(range(len(prompt)))
    while True:
        token = step(tokens, positions)
        if token in stop:
            return outputs
        outputs.append(token)
        if token in eos or len(outputs) == max_tokens:
            return outputs
        tokens, positions = [token], [positions[-1] + 1]


LAST = "if token in eos or len(outputs) == max_tokens"
NEXT = "tokens, positions = [token], [positions[-1] + 1]"
LOOP_MISTAKES = [
    ("eos left out", "an end-of-sequence token ends the output and belongs to it: append it",
     ("if token in stop:", "if token in stop or token in eos:")),
    ("stop kept", "a stop token ends the output and does not belong to it",
     ("if token in stop:", "if token in stop:\n            outputs.append(token)")),
    ("no eos", "you go on after an end-of-sequence token", ("token in eos or ", "")),
    ("no stop", "you go on after a stop token", ("if token in stop:", "if False:")),
    ("one too many", "you write one token more than max_tokens", ("== max_tokens", "== max_tokens + 1")),
    ("one too few", "you write one token less than max_tokens: the step that reads the prompt gives the first one",
     ("len(outputs) == max_tokens", "len(outputs) + 1 >= max_tokens")),
    ("prompt counts", "max_tokens limits the output, and you count the prompt with it",
     ("len(outputs) == max_tokens", "len(prompt) + len(outputs) >= max_tokens")),
    ("one step more", "you call step once more than needed: the last token is not read",
     ("        if token in eos", "        if len(outputs) == max_tokens:\n"
      "            step([token], [positions[-1] + 1])\n        if token in eos")),
    ("all again", "each step reads all tokens again, but the cache has the K/V of the earlier ones",
     (NEXT, "tokens, positions = tokens + [token], positions + [positions[-1] + 1]")),
    ("from 0", "the positions of new tokens begin at 0 again",
     (NEXT, "tokens, positions = [token], [len(outputs) - 1]")),
    ("a step late", "the position of each new token is one too large",
     (NEXT, "tokens, positions = [token], [len(prompt) + len(outputs)]")),
    ("same position", "each new token comes at the position of the one before it",
     ("[positions[-1] + 1]", "[positions[-1]]")),
    ("last step", "the position of a new token counts the tokens of the last step only, not all that were read",
     (NEXT, "tokens, positions = [token], [len(positions)]")),
    ("with the prompt", "you return the prompt with the output", ("return outputs", "return list(prompt) + outputs")),
    ("last of prompt", "you read the last token of the prompt again: the step before it gave a newer one",
     ("= [token], [positions[-1] + 1]", "= [prompt[-1]], [positions[-1] + 1]")),
]  # fmt: skip

LOOPS = [
    (Script(8, 9, 10, 11, 12, 13), [5, 6, 7], 3, (2,), ()),
    (Script(8, 2, 10, 11, 12, 13, 14, 15), [5, 6, 7, 4], 5, (2,), ()),
    (Script(8, 9, 10, 11, 12, 13, 14, 15), [5, 6], 5, (2,), (10, 20)),
    (Script(8, 9, 10, 11, 12), [5], 1, (2, 3), (9,)),
    (Script(20, 9, 10, 11, 12, 13), [5, 6], 4, (), (20,)),
]


def looped(answer, case):
    step, *rest = deepcopy(case)
    outputs = ends(answer, step, *rest)
    return None if outputs is None else (outputs, step.calls)


def draw_loops(random):
    found = []
    for _ in range(4):
        length, most = random.randint(1, 6), random.randint(2, 8)
        script = [random.choice([*range(8, 30), 2, 7]) for _ in range(most + length + 4)]
        found.append((Script(*script), random.sample(range(30, 60), length), most, (2, 3), (7,)))
    return found


def loop_case(case) -> str:
    step, prompt, max_tokens, eos, stop = case
    gives = ", ".join(map(str, step.tokens[:6]))
    return f"prompt {prompt}, max_tokens {max_tokens}, eos {list(eos)}, stop {list(stop)}, step gives {gives}, ..."


def wrong_output(run) -> str:
    got, want = plain(run.got[0]), run.want[0]
    if same(got, want):
        return ""
    return f"{loop_case(run.case)}: your output is {quote(got)}: {difference(got, want)}"


def wrong_call(run) -> str:
    got, want = run.got[1], run.want[1]
    for place, (mine, right) in enumerate(zip(got, want), 1):
        if not same(mine, right):
            return f"{loop_case(run.case)}: your call {place} is step({quote(mine[0])}, {quote(mine[1])})"
    often = "too often" if len(got) > len(want) else "too seldom"
    return f"{loop_case(run.case)}: you call step {len(got)} times, {often}" if len(got) != len(want) else ""


@exercise("0.3", points=5, solution=generate, mistakes=LOOP_MISTAKES)
def check_0_3(c, answer):
    runs = c.cases("it ends", answer, LOOPS, looped, drawn=draw_loops)
    outputs, calls = (next(filter(None, map(told, runs)), "") for told in (wrong_output, wrong_call))
    c.true("the output", not outputs, outputs, points=2)
    c.true("tokens and positions that step was given", not calls, calls, points=2)
    if outputs or calls:
        return c.wait("the real model")
    c.equal("the real model", lambda: real_tokens(answer, one_request), lambda: real_tokens(generate, one_request))


# 0.4


def ridge(weights, bytes_per_weight, kv_per_row, bandwidth, flops):
    """The fewest rows whose computing takes as long as their reading, or math.inf."""
    reading = weights * bytes_per_weight / bandwidth  # seconds, once for all rows
    gain = 2 * weights / flops - kv_per_row / bandwidth  # seconds per row
    return math.ceil(reading / gain) if gain > 0 else math.inf


GAIN = "2 * weights / flops - kv_per_row / bandwidth"
NEVER = " if gain > 0 else math.inf"
RIDGE_MISTAKES = [
    ("one operation", "you count one operation per weight and row: a multiplication and an addition are two",
     ("2 * weights", "weights")),
    ("weights, not bytes", "you read each weight as one byte: it has bytes_per_weight", (" * bytes_per_weight", "")),
    ("no K/V", "you leave out the K/V: each row reads kv_per_row of its own", (GAIN, "2 * weights / flops")),
    ("K/V once", "you read the K/V once for all rows, but each row has its own",
     ("bytes_per_weight / bandwidth", "bytes_per_weight / bandwidth + kv_per_row / bandwidth"),
     (" - kv_per_row / bandwidth", "")),
    ("rounded down", "you round down: with that many rows, reading still takes longer", ("math.ceil", "math.floor")),
    ("not rounded", "a number of rows is a whole number: round up", ("math.ceil(reading / gain)", "reading / gain")),
    ("equal", "you divide by 0 where each row reads exactly as long as it computes: more rows never help there",
     (NEVER, " if gain >= 0 else math.inf")),
    ("one more", "where both take equally long, computing has caught up: you ask for one row more",
     ("math.ceil(reading / gain)", "math.floor(reading / gain) + 1")),
    ("never", "where each row reads longer than it computes, more rows never help: that is math.inf",
     (NEVER, " if gain else math.inf")),
    ("weights per row", "every weight is read once for all rows, not once a row",
     ("math.ceil(reading / gain)", "(1 if gain >= reading else math.inf)")),
    ("K/V is computed", "the K/V of a row makes reading longer, not computing", ("flops - kv", "flops + kv")),
    ("upside down", "you divide computing by reading: more bytes to read need more rows, not fewer",
     ("math.ceil(reading / gain)", "math.ceil(gain / reading)")),
]  # fmt: skip

RIDGES = [
    (10, 2, 0, 20, 80),
    (10, 2, 2, 20, 100),
    (0.6e9, 2, 0, *GPUS["H100"]),
    (32.8e9, 1, 0, *GPUS["A100"]),
    (32.8e9, 2, 262_144 * 300, *GPUS["H200"]),
]
NO_RIDGES = [(10, 2, 9, 20, 100), (32.8e9, 2, 262_144 * 2_000, *GPUS["H200"]), (10, 2, 4, 20, 100)]


def draw_ridges(random):
    """Sizes at random with a ridge that is far from a border between two whole numbers."""
    found = []
    while len(found) < 6:
        weights, bandwidth = random.randint(1, 70) * 1e9, random.randint(1, 8) * 1e12
        flops = bandwidth * random.randint(60, 400)
        kv = random.choice([0, 0.3, 0.6, 0.9]) * 2 * weights * bandwidth / flops
        case = (weights, random.choice([1, 2, 4]), kv, bandwidth, flops)
        exact = weights * case[1] / bandwidth / (2 * weights / flops - kv / bandwidth)
        if 0.1 < exact % 1 < 0.9:
            found.append(case)
    return found


@exercise("0.4", points=3, solution=ridge, mistakes=RIDGE_MISTAKES)
def check_0_4(c, answer):
    def sight(got):
        return "never" if got == math.inf else got  # of infinities no difference can be taken

    def sizes(case):
        names = "weights", "bytes_per_weight", "kv_per_row", "bandwidth", "flops"
        return ", ".join(f"{name} {number(value)}" for name, value in zip(names, case))

    runs = c.cases("where computing catches up", answer, RIDGES, view=sight, drawn=draw_ridges)
    for name, some in (
        ("without K/V", [run for run in runs if not run.case[2]]),
        ("with K/V", [run for run in runs if run.case[2]]),
    ):
        trouble = first_wrong(some, sizes)
        c.true(name, not trouble, trouble)
    never = c.cases("where it never catches up", answer, NO_RIDGES, view=sight)
    trouble = first_wrong(never, sizes)
    if all(run.got == math.inf for run in runs):
        trouble = "you give math.inf for every case"
    c.true("where no number of rows is enough", not trouble, trouble)


# 0.5


def serve(model, prompts, max_tokens):
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
            new, first = outputs[-1:], first + len(new)
        answers.append(outputs)
    return answers


AFTER = "outputs[-1:], first + len(new)"
LATE = (AFTER, "outputs[-1:], len(prompt) + len(outputs)")
REPAIR_MISTAKES = [
    ("unchanged", "the fault is still in it: compare the positions of each step with the table in hint 1", LATE),
    ("cleared", "you clear the K/V for each request, which hides the fault and does not repair it", LATE,
     ("outputs, new, first = [], prompt, 0",
      "outputs, new, first = [], prompt, 0\n        keys.zero_(), values.zero_()")),
    ("one back", "a new token overwrites the K/V of the token before it",
     (AFTER, "outputs[-1:], first + len(new) - 1")),
    ("one further", "the step behind the prompt writes into the prompt: it moves on by one position, whatever was read",
     (AFTER, "outputs[-1:], first + 1")),
    ("from 0", "the positions of new tokens begin at 0 again",
     ("torch.arange(first, end)", "torch.arange(end - first)")),
    ("no cache", "the tokens are right, but each step computes all of them again", (AFTER, "[*prompt, *outputs], 0")),
    ("itself", "a new token does not see its own key", ("[layer, :end]", "[layer, : max(len(new), end - 1)]")),
    ("no end", "the loop goes on after an end-of-sequence token",
     ("if outputs[-1] in model.eos_token_ids", "if False")),
    ("end left out", "the end-of-sequence token belongs to the output",
     ("                break", "                outputs.pop()\n                break")),
    ("first row", "the next token is taken from the first row of a step, not from its last",
     ("hidden[-1:]", "hidden[:1]")),
    ("one too few", "an output has one token less than it may",
     ("while len(outputs) < max_tokens", "while len(outputs) < max_tokens - 1")),
]  # fmt: skip


@torch.inference_mode()
def served(answer, case):
    """(the tokens of each question, the positions that were computed, in order)"""
    questions, max_tokens = case
    model = Watched(tiny())
    with one_thread():
        answers = ends(answer, model, [encoded(question) for question in questions], max_tokens)
    return None if answers is None else (answers, [position for step in model.steps for position in step])


SERVES = [
    (("Count from 7 to 19.", "Count from 40 to 60."), 16),
    (("Count from 7 to 15.", "Count from 40 to 46.", "Say hello to Mia."), 10),
]


def draw_serves(random):
    number = random.randint
    return [
        (
            (
                f"Count from {number(5, 30)} to {number(45, 60)}.",
                f"What is {number(11, 49)} + {number(11, 49)}?",
                f"Count from {number(30, 40)} to {number(42, 46)}.",
            ),
            number(8, 16),
        )
    ]


ONCE = "each token is computed once, at its position"


def wrong_answer(run) -> str:
    (questions, _), got = run.case, plain(run.got[0])
    if not isinstance(got, list) or [type(tokens) for tokens in got] != [list] * len(questions):
        return f"you give {quote(got)}, where a list of tokens for each of {len(questions)} prompts is needed"
    for place, (question, mine, right) in enumerate(zip(questions, got, run.want[0]), 1):
        if not same(mine, right):
            return f"prompt {place} of {len(questions)}, {question!r}, gets {quote(mine)}: {difference(mine, right)}"
    return ""


def wrong_positions(run) -> str:
    got, want = run.got[1], run.want[1]
    if got == want:
        return ""
    index = next((i for i, (mine, right) in enumerate(zip(got, want)) if mine != right), min(len(got), len(want)))
    before = f"after position {got[index - 1]}" if index else "at first"
    now = f"position {got[index]} is computed" if index < len(got) else "nothing more is computed"
    return f"for {', '.join(map(repr, run.case[0]))}: {before} {now}"


@exercise("0.5", points=4, solution=serve, mistakes=REPAIR_MISTAKES)
def check_0_5(c, answer):
    runs = c.cases("it serves", answer, SERVES, served, drawn=draw_serves)
    answers, positions = (next(filter(None, map(told, runs)), "") for told in (wrong_answer, wrong_positions))
    c.true("each answer is that of its request alone", not answers, answers, points=2)
    if answers and positions:
        return c.wait(ONCE)
    c.true(ONCE, not positions, positions, points=2)
