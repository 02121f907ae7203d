"""Exercises 00: each mistake of the referee's tables, run as a learner's answer, loses points and is told by its
sentence; right answers written in other ways get all points; odd ones are told in a sentence."""

import inspect

import pytest
import torch
from helpers.course import Audit

from tinyengine import SamplingParams
from tinyengine.attention import one_request
from tinyengine.course.phases import Script, Step, broken_serve, encoded, read_once, tiny, watch
from tinyengine.course.referees import two_phases
from tinyengine.workload import workload

CHECKS = (
    two_phases.check_0_1,
    two_phases.check_0_2,
    two_phases.check_0_3,
    two_phases.check_0_4,
    two_phases.check_0_5,
)

RIGHT = {
    "0.1 number by number": """
        def kv_bytes(config, n_tokens):
            size = {"float32": 4, "float16": 2, "bfloat16": 2}[config["dtype"]]
            if "head_dim" in config:
                d = config["head_dim"]
            else:
                d = config["hidden_size"] // config["num_attention_heads"]
            total = 0
            for layer in range(config["num_hidden_layers"]):
                for kind in ("key", "value"):
                    total += config["num_key_value_heads"] * d * size
            return n_tokens * total
    """,
    "0.1 tensors that are measured": """
        def kv_bytes(config, n_tokens):
            d = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
            one = torch.empty(2, config["num_key_value_heads"], d, dtype=getattr(torch, config["dtype"]))
            return one.nbytes * config["num_hidden_layers"] * n_tokens
    """,
    "0.2 query by query": """
        def attend(q, keys, values):
            out, share = torch.zeros_like(q), q.shape[1] // keys.shape[1]
            for i in range(len(q)):
                last = len(keys) - len(q) + i + 1
                for head in range(q.shape[1]):
                    scores = keys[:last, head // share] @ q[i, head] / math.sqrt(q.shape[2])
                    out[i, head] = torch.softmax(scores, 0) @ values[:last, head // share]
            return out
    """,
    "0.2 grouped heads, positions compared, exp and sum": """
        def attend(q, keys, values):
            n, heads, d = q.shape
            length, kv_heads, _ = keys.shape
            q = q.view(n, kv_heads, heads // kv_heads, d).permute(1, 2, 0, 3)  # [kv_heads, group, n, d]
            scores = q @ keys.permute(1, 2, 0)[:, None] * d**-0.5
            later = torch.arange(length)[None] > torch.arange(length - n, length)[:, None]
            scores = scores.masked_fill(later, -1e30)
            weights = (scores - scores.max(-1, keepdim=True).values).exp()
            weights = weights / weights.sum(-1, keepdim=True)
            out = weights @ values.transpose(0, 1)[:, None]
            return out.permute(2, 0, 1, 3).reshape(n, heads, d)
    """,
    "0.3 a for loop over what may come": """
        def generate(step, prompt, max_tokens, eos, stop):
            output, new, first = [], prompt, 0
            for _ in range(max_tokens):
                token = step(new, range(first, first + len(new)))
                if token in stop:
                    break
                output += [token]
                if token in eos:
                    break
                first, new = first + len(new), [token]
            return output
    """,
    "0.3 recursion, tuples": """
        def generate(step, prompt, max_tokens, eos, stop):
            def rest(new, positions, left):
                token = step(new, positions)
                if token in stop:
                    return ()
                if token in eos or left == 1:
                    return (token,)
                return (token, *rest((token,), (positions[-1] + 1,), left - 1))

            return rest(tuple(prompt), tuple(range(len(prompt))), max_tokens)
    """,
    "0.4 counted up": """
        def ridge(weights, bytes_per_weight, kv_per_row, bandwidth, flops):
            def waits(rows):
                reading = (weights * bytes_per_weight + rows * kv_per_row) / bandwidth
                return reading > 2 * weights * rows / flops

            if 2 * weights / flops <= kv_per_row / bandwidth:
                return float("inf")
            rows = 1
            while waits(rows):
                rows += 1
            return rows
    """,
    "0.4 in bytes and operations": """
        def ridge(weights, bytes_per_weight, kv_per_row, bandwidth, flops):
            bytes_while_a_row_is_computed = 2 * weights * bandwidth / flops
            spare = bytes_while_a_row_is_computed - kv_per_row
            if spare <= 0:
                return math.inf
            rows, rest = divmod(weights * bytes_per_weight, spare)
            return int(rows) + (rest > 0)
    """,
    "0.5 one step less": """
        def serve(model, prompts, max_tokens):
            answers = []
            for prompt in prompts:
                step = two_phases.Step(model, one_request)
                outputs = [step(prompt, range(len(prompt)))]
                while len(outputs) < max_tokens and outputs[-1] not in model.eos_token_ids:
                    outputs.append(step(outputs[-1:], [len(prompt) + len(outputs) - 1]))
                answers.append(outputs)
            return answers
    """,
    "0.5 a list that grows": """
        def serve(model, prompts, max_tokens):
            def answer(prompt):
                kept, tokens, computed = {}, list(prompt), 0
                while len(tokens) < len(prompt) + max_tokens:
                    def attend(layer, q, k, v):
                        old = kept.get(layer)
                        kept[layer] = (k, v) if old is None else (torch.cat([old[0], k]), torch.cat([old[1], v]))
                        return one_request(q, *kept[layer])

                    positions = torch.arange(computed, len(tokens))
                    hidden = model(torch.tensor(tokens[computed:]), positions, attend)
                    computed = len(tokens)
                    tokens.append(int(model.logits(hidden)[-1].argmax()))
                    if tokens[-1] in model.eos_token_ids:
                        break
                return tokens[len(prompt):]

            return [answer(prompt) for prompt in prompts]
    """,
}
ODD = {  # what a learner wrote: points, and what the grader says
    "0.1 text": (
        "def kv_bytes(config, n_tokens):\n    return '2048'",
        0,
        "one token: embedded, 1 token: you have '2048', a str, where an int is needed",
    ),
    "0.1 bytes with a fraction": (
        """
        def kv_bytes(config, n_tokens):
            d = config.get("head_dim") or config["hidden_size"] / config["num_attention_heads"]
            numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * d
            return n_tokens * numbers * getattr(torch, config["dtype"]).itemsize
        """,
        2,
        "a config without head_dim: LLaMA-2-70B, 4,096 tokens: you have 1342177280.0, a float, but bytes are whole",
    ),
    "0.1 a misspelt field": (
        "def kv_bytes(config, n_tokens):\n    return config['layers']",
        0,
        "KeyError: 'layers' at line 2 of your cell",
    ),
    "0.2 torch's own attention": (
        "def attend(q, keys, values):\n    return one_request(q, keys, values)",
        0,
        "you call scaled_dot_product_attention: write attention by hand",
    ),
    "0.2 heads first": (
        "def attend(q, keys, values):\n    return q.transpose(0, 1)",
        0,
        "you give (2, 1, 8), where a tensor of (1, 2, 8) is needed",
    ),
    "0.2 nothing": ("def attend(q, keys, values):\n    q.sum()", 0, "your code gave None"),
    "0.3 a loop without a step": (
        "def generate(step, prompt, max_tokens, eos, stop):\n    while True:\n        pass",
        0,
        "a loop never ends",
    ),
    "0.3 steps without an end": (
        "def generate(step, prompt, max_tokens, eos, stop):\n    while True:\n        step(prompt, [0])",
        0,
        "and no stop ends the loop",
    ),
    "0.4 always never": (
        "def ridge(weights, bytes_per_weight, kv_per_row, bandwidth, flops):\n    return math.inf",
        0,
        "where no number of rows is enough: you give math.inf for every case",
    ),
    "0.4 a division by 0": (
        two_phases.check_0_4.source(next(m for m in two_phases.check_0_4.mistakes if m.name == "equal")),
        2,
        "where it never catches up: ZeroDivisionError: float division by zero at line 5 of your cell",
    ),
    "0.4 a sentence": (
        "def ridge(weights, bytes_per_weight, kv_per_row, bandwidth, flops):\n    return 'never'",
        0,
        "you have 'never', a str",
    ),
    "0.5 the package's engine": (
        "def serve(model, prompts, max_tokens):\n    return [[] for prompt in prompts]",
        0,
        "it starts right, and with 0 items it is too short",
    ),
    "0.5 words": (
        "def serve(model, prompts, max_tokens):\n    return ['68' for prompt in prompts]",
        0,
        "you give ['68', '68'], where a list of tokens for each of 2 prompts is needed",
    ),
    "0.5 a model that is no model": (
        "def serve(model, prompts, max_tokens):\n    return model.generate(prompts)",
        0,
        "has no attribute 'generate'",
    ),
}


class TestTwoPhases(Audit):
    stem, checks, right, odd = "00_two_phases", CHECKS, RIGHT, ODD


def test_attend_is_the_one_part_of_the_learners_engine():
    assert [check.name for check in CHECKS if check.part] == ["attend"]


def test_the_eight_requests_get_the_same_tokens_by_hand_and_by_torch():
    prompts = [tiny().tokenizer.encode(item.prompt) for item in workload("course").items]
    outputs = [
        [two_phases.generate(Step(tiny(), attend), prompt, 64, tiny().eos_token_ids, ()) for prompt in prompts]
        for attend in (two_phases.attend, one_request)
    ]
    assert outputs[0] == outputs[1] and sum(map(len, outputs[0])) == 122


# What the notebook says, measured.


def test_the_bytes_worked_by_hand_and_published():
    one = {name: two_phases.kv_bytes(config, 1) for name, config in two_phases.MODELS.items()}
    assert one == {"embedded": 2_048, "Qwen3-0.6B": 114_688, "Qwen3-32B": 262_144, "LLaMA-2-70B": 327_680}
    cache = Step(tiny(), None, slots=10)
    assert cache.keys.nbytes + cache.values.nbytes == 10 * one["embedded"]


@pytest.mark.parametrize("n, wanted", [(1, [3]), (2, [2, 3]), (4, [1, 1.5, 2, 3])])
def test_the_attention_worked_by_hand(n, wanted):
    values = torch.tensor([1.0, 2.0, 3.0, 6.0])[:, None, None]
    out = two_phases.attend(torch.zeros(n, 1, 1), torch.zeros(4, 1, 1), values)
    assert torch.allclose(out.flatten(), torch.tensor(wanted, dtype=torch.float32))


@pytest.mark.parametrize(
    "most, eos, stop, output, steps", [(5, [2], [], [8, 9, 2], 3), (5, [], [2], [8, 9], 3), (2, [2], [], [8, 9], 2)]
)
def test_the_loop_worked_by_hand(most, eos, stop, output, steps):
    step = Script(8, 9, 2)
    assert two_phases.generate(step, [5, 6, 7], most, eos, stop) == output
    assert step.calls == [([5, 6, 7], [0, 1, 2]), ([8], [3]), ([9], [4])][:steps]


def test_the_ridges_worked_by_hand():
    assert [two_phases.ridge(10, 2, kv, 20, 100) for kv in (0, 2, 4)] == [5, 10, float("inf")]


def test_the_broken_loop_has_the_fault_that_its_mistake_says():
    unchanged = two_phases.check_0_5.source(two_phases.check_0_5.mistakes[0])
    assert inspect.getsource(broken_serve) == unchanged.replace("def serve", "def broken_serve")


def test_the_broken_loop_answers_alone_and_fails_behind_another():
    first, second = encoded("Count from 7 to 31."), encoded("Count from 40 to 60.")
    assert broken_serve(tiny(), [second], 24) == two_phases.serve(tiny(), [second], 24)
    behind = broken_serve(tiny(), [first, second], 24)[1]
    assert tiny().tokenizer.decode(behind).startswith("4 5 6")


@pytest.mark.parametrize("case", two_phases.SERVES)
def test_the_fault_shows_in_the_tokens_of_each_case(case):
    assert two_phases.served(broken_serve, case)[0] != two_phases.served(two_phases.serve, case)[0]


def test_the_repaired_loop_gives_the_tokens_of_transformers():
    from tinyengine.oracle import Oracle

    oracle, questions = Oracle(tiny().folder), ("Count from 7 to 31.", "What is 23 + 45?", "Count from 40 to 46.")
    alone = [oracle.generate(encoded(question), SamplingParams(max_tokens=24)) for question in questions]
    assert two_phases.serve(tiny(), [encoded(question) for question in questions], 24) == alone


def test_a_loop_is_watched_pass_by_pass():
    model, prompt = tiny(), encoded("Say hello to Mia.")
    outputs, rows, seconds = watch(model, read_once(Step(model, one_request)), prompt, 4)
    assert model.tokenizer.decode(outputs) == "Hello Mia.<|end|>"
    assert rows == [len(prompt), 1, 1, 1] and len(seconds) == 4 and min(seconds) > 0
    assert watch(model, lambda: 5) == (5, [], [])
