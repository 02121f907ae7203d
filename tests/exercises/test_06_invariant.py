"""Exercises 06: each mistake of the referee's tables, run as a learner's answer, loses points and is told by its
sentence; right answers written in other ways get all points; odd ones are told in a sentence."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.course import Audit, solutions

from tinyengine.course import in_chunks, suspects, yours
from tinyengine.course.referees import invariant
from tinyengine.course.small_device import SmallDevice, in_parts, moved_bits, numbers, product, sum_of_rows
from tinyengine.course.suspects import FAULTS, Suspect
from tinyengine.invariant.attention import one_query
from tinyengine.verify.checks import cases
from tinyengine.verify.watch import Scenario

CHECKS = tuple(getattr(invariant, f"check_6_{number}") for number in range(1, 5))
SOLUTIONS = solutions("06_invariant")


def changed(name, *changes):
    """A solution, written in another way."""
    text = SOLUTIONS[name]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def compared_by(same):
    """A test of many companies that compares by this expression."""
    return f"""
def is_invariant(run):
    texts = [[(7 * number + n) % 50 for number in range(n)] for n in (100, 47, 31, 18, 33)]
    texts += [texts[0][:64], texts[0][:20]]
    right = [run([text])[0] for text in texts]
    found = True
    for settings in ({{}}, dict(budget=5), dict(budget=1), dict(caching=True), dict(slots=128)):
        for order in (range(len(texts)), range(len(texts))[::-1]):
            for index, logits in zip(order, run([texts[index] for index in order], **settings)):
                found &= bool({same})
    return found
"""


RIGHT = {
    "6.1 many rows, always": """
        def invariant_sum(x):
            return F.pad(x, (0, 0, 0, max(0, 64 - len(x)))).sum(-1)[: len(x)]
    """,
    "6.1 a third dimension of pieces": """
        def invariant_sum(x):
            pieces = F.pad(x, (0, -x.shape[1] % 32)).view(len(x), -1, 32).sum(2)
            total = torch.zeros(len(x), dtype=x.dtype)
            for piece in pieces.unbind(1):
                total += piece
            return total
    """,
    "6.1 with a piece of no numbers": """
        def invariant_sum(x):
            total = x[:, :0].sum(-1)
            for start in range(0, x.shape[1], 32):
                total = total + x[:, start : start + 32].sum(-1)
            return total
    """,
    "6.2 tile by tile, the last one filled up": """
        def linear(x, weight, tile=8):
            out = []
            for part in x.split(tile):
                full = torch.zeros(tile, x.shape[1])
                full[: len(part)] = part
                out.append((full @ weight.T)[: len(part)])
            return torch.cat(out)
    """,
    "6.2 copies of the last row": """
        def linear(x, weight, tile=8):
            rows = len(x)
            more = x[-1:].expand((tile - rows % tile) % tile, -1)
            return torch.einsum("rk,ok->ro", torch.cat([x, more]), weight)[:rows]
    """,
    "6.3 each split a softmax, weighed at the end": """
        def fixed_split_attention(q, keys, values, split=128, tile=8):
            (n, heads, d), (length, kv_heads, _) = q.shape, keys.shape
            rows = -(-n // tile) * tile
            query = torch.zeros(rows, heads, d)
            query[:n] = q
            position = torch.arange(rows) + length - n
            parts, sizes = [], []
            for start in range(0, length, split):
                k, v = torch.zeros(split, kv_heads, d), torch.zeros(split, kv_heads, d)
                k[: length - start], v[: length - start] = keys[start:][:split], values[start:][:split]
                k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
                scores = torch.einsum("nhd,khd->hnk", query, k) * d**-0.5
                hidden = torch.arange(split) + start > position[:, None]
                scores = scores.masked_fill(hidden, -1e30)
                parts.append(torch.einsum("hnk,khd->hnd", scores.softmax(-1), v))
                sizes.append(scores.logsumexp(-1, keepdim=True))
            largest = torch.stack(sizes).amax(0)
            shares = [(size - largest).exp() for size in sizes]
            out = sum(share * part for share, part in zip(shares, parts)) / sum(shares)
            return out.transpose(0, 1)[:n]
    """,
    "6.3 head by head, the query heads of a K/V head as rows": """
        def fixed_split_attention(q, keys, values, split=128, tile=8):
            (n, heads, d), (length, kv_heads, _) = q.shape, keys.shape
            group, out = heads // kv_heads, torch.empty_like(q)
            position = torch.arange(length - n, length).repeat_interleave(group)
            for head in range(kv_heads):
                own = slice(head * group, (head + 1) * group)
                rows = q[:, own].reshape(n * group, d) / d**0.5
                rows = torch.cat([rows, torch.zeros(-len(rows) % tile, d)])
                seen = torch.cat([position, torch.full((len(rows) - n * group,), length)])[:, None]
                best = torch.full((len(rows), 1), -1e30)
                total, sums = torch.zeros(len(rows), 1), torch.zeros(len(rows), d)
                for start in range(0, length, split):
                    k, v = torch.zeros(split, d), torch.zeros(split, d)
                    here = min(split, length - start)
                    k[:here], v[:here] = keys[start : start + here, head], values[start : start + here, head]
                    scores = (rows @ k.T).masked_fill(torch.arange(start, start + split) > seen, -torch.inf)
                    higher = torch.maximum(best, scores.max(-1, keepdim=True).values)
                    weights = torch.exp(scores - higher)
                    total = total * torch.exp(best - higher) + torch.sum(weights, -1, keepdim=True)
                    sums = sums * torch.exp(best - higher) + torch.matmul(weights, v)
                    best = higher
                out[:, own] = (sums / total)[: n * group].view(n, group, d)
            return out
    """,
    "6.3 tile by tile of queries": changed(
        "fixed_split_attention",
        (
            "    n, length = len(q), len(keys)\n",
            "    if len(q) > tile:\n        older = len(keys) - len(q)\n        return torch.cat([\n"
            "            fixed_split_attention(part, keys[: end], values[: end], split, tile)\n"
            "            for part in [q[first : first + tile] for first in range(0, len(q), tile)][:1]\n"
            "            for end in [older + tile]\n        ] + [\n"
            "            fixed_split_attention(q[tile:], keys, values, split, tile)\n        ])\n"
            "    n, length = len(q), len(keys)\n",
        ),
    ),
    "6.4 one thing after the other": """
        def is_invariant(run):
            import random

            draw = random.Random(3)
            texts = [[draw.randrange(50) for _ in range(n)] for n in (90, 47, 31, 18, 33)]
            texts += [texts[0][:64] + [1, 2, 3], texts[0][:20]]
            right = [run([text], slots=400)[0] for text in texts]
            for settings in ({}, {"budget": 5}, {"budget": 1}, {"caching": True}, {"slots": 128}):
                for order in (range(len(texts)), range(len(texts))[::-1]):
                    got = run([texts[index] for index in order], **settings)
                    for index, logits in zip(order, got):
                        if (logits != right[index]).any():
                            return False
            return True
    """,
    "6.4 whole numbers of the bits, and pairs": """
        def is_invariant(run):
            def bits(logits):
                return logits.view(torch.int32).tolist()

            text = list(range(50)) * 2
            prompts = [text[n : 2 * n + 40] for n in range(1, 5)] + [text[:80], text[:33], text[:31]]
            alone = {tuple(prompt): bits(run([prompt])[0]) for prompt in prompts}
            batches = [prompts, prompts[::-1], *zip(prompts, prompts[1:])]
            settings = [{}, dict(budget=3), dict(budget=33), dict(budget=1), dict(caching=True), dict(slots=160)]
            same = True
            for batch in batches:
                for setting in settings:
                    together = run([list(prompt) for prompt in batch], **setting)
                    same &= [bits(logits) for logits in together] == [alone[tuple(prompt)] for prompt in batch]
            return torch.tensor(same)
    """,
}  # fmt: skip
ODD = {  # what a learner wrote: points, and what the grader says
    "6.1 no return": (SOLUTIONS["invariant_sum"].replace("return total", "total"), 0, "did you forget to return?"),
    "6.1 NumPy": (
        "def invariant_sum(x):\n    return x.numpy().sum(1)",
        0,
        "the small device has no numpy(): use sum()",
    ),
    "6.1 a list": (
        SOLUTIONS["invariant_sum"].replace("return total", "return total.tolist()"),
        0,
        "where a tensor of shape [1] is needed",
    ),
    "6.1 one number": (
        "def invariant_sum(x):\n    return x.sum()",
        0,
        "goes along one dimension: name it, as in x.sum(-1)",
    ),
    "6.2 turned": (
        SOLUTIONS["linear"].replace("[:rows]", "[:rows].T"),
        0,
        "where a tensor of shape [1, 6] is needed",
    ),
    "6.3 torch's own": (
        "def fixed_split_attention(q, keys, values, split=128, tile=8):\n"
        "    return F.scaled_dot_product_attention(q, keys, values)",
        0,
        "the small device has no scaled_dot_product_attention()",
    ),
    "6.3 heads in a row": (
        SOLUTIONS["fixed_split_attention"].replace("[:n]", "[:n].flatten(1)"),
        0,
        "which is not q's shape",
    ),
    "6.4 words": ("def is_invariant(run):\n    return 'yes'", 0, "you have 'yes', where True or False is needed"),
    "6.4 a token that is none": (
        "def is_invariant(run):\n    return bool(run([[99]]))",
        0,
        "prompt 0 has 1 tokens from 99 to 99",
    ),
    "6.4 no room": ("def is_invariant(run):\n    return bool(run([[1] * 40], slots=16))", 0, "ValueError"),
    "6.4 for ever": (
        "def is_invariant(run):\n    while True:\n        run([[1]])",
        0,
        "has run one engine 150 times",
    ),
    "6.1 number by number": (
        "def invariant_sum(x):\n    total = x[:, 0]\n    for column in range(1, x.shape[1]):\n"
        "        total = total + x[:, column]\n    return total",
        4,
        "right bits, but you never use the device",
    ),
    "6.1 exactly": (
        "def invariant_sum(x):\n    import math\n\n    return torch.tensor([math.fsum(row) for row in x.tolist()])",
        4,
        "right bits, but you never use the device",
    ),
    "6.2 column by column": (
        "def linear(x, weight, tile=8):\n    out = torch.zeros(len(x), len(weight))\n"
        "    for column in range(x.shape[1]):\n        out = out + x[:, column, None] * weight[:, column]\n"
        "    return out",
        5,
        "right bits, but you never use the device",
    ),
    "6.3 no cuts": (
        "def fixed_split_attention(q, keys, values, split=128, tile=8):\n    group = q.shape[1] // keys.shape[1]\n"
        "    k, v = (x.repeat_interleave(group, 1) for x in (keys, values))\n"
        "    scores = torch.einsum('qhd,khd->hqk', q, k) / q.shape[2] ** 0.5\n"
        "    mask = torch.ones(len(q), len(k)).tril(len(k) - len(q)) == 0\n"
        "    return torch.einsum('hqk,khd->qhd', scores.masked_fill(mask, float('-inf')).softmax(-1), v)",
        2,
        "you do not cut at all",
    ),
    "6.4 no return": (
        "def is_invariant(run):\n    torch.equal(run([[1]])[0], run([[1], [2]])[0])",
        0,
        "did you forget to return?",
    ),
    "6.4 a prompt and another one": (
        "def is_invariant(run):\n    one, two = run([[1] * 20, [2] * 20])\n    return torch.equal(one, two)",
        0,
        "is each prompt compared with itself?",
    ),
    "6.4 tokens": (compared_by("(logits.argmax(-1) == right[index].argmax(-1)).all()"), 1, "you compare tokens"),
    "6.4 a tolerance": (
        compared_by("(logits - right[index]).abs().max() < 1e-5"),
        2,
        "you compare with a tolerance: compare bits",
    ),
    "6.4 few at once": (
        "def is_invariant(run):\n    one, two = [1] * 30, [2] * 30\n"
        "    return torch.equal(run([one])[0], run([one, two])[0])",
        0,
        "alone too: what you compare moved alike",
    ),
    "6.4 one pair": (
        "def is_invariant(run):\n    one, two = [1] * 90, [2] * 5\n"
        "    return torch.equal(run([one])[0], run([one, two])[0])",
        1,
        "in none of your 2 runs are 4 requests computed at once",
    ),
}


class TestInvariant(Audit):
    stem, checks, right, odd = "06_invariant", CHECKS, RIGHT, ODD


# The small device.


def test_the_small_device_adds_in_the_order_that_its_source_says():
    x = numbers(3, 75)
    for rows in (1, 3):
        cuts = np.array_split(np.arange(75), 64 // rows)
        for row in x[:rows].numpy():
            total = np.float32(0)
            for cut in cuts:
                part = np.float32(0)
                for number in row[cut]:
                    part = np.float32(part + number)
                total = np.float32(total + part)
            with SmallDevice():
                got = x[:rows].sum(-1)
            assert total in got.numpy()


@pytest.mark.parametrize("rows", [1, 3, 8, 9])
def test_a_row_of_a_product_is_cut_by_the_tile_that_it_lies_in(rows):
    x, weight = numbers(rows, 20), numbers(5, 20, seed=1)
    got = product(x, weight.T)
    for row in range(rows):
        parts = 4 if row < rows // 8 * 8 else 8 if rows == 1 else 2
        assert not moved_bits(got[row], in_parts(x[row] * weight, parts))


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y: x.sum(-1),
        lambda x, y: torch.sum(x, 1, keepdim=True),
        lambda x, y: x.mean(dim=0),
        lambda x, y: x.softmax(-1),
        lambda x, y: F.log_softmax(x, dim=0),
        lambda x, y: torch.logsumexp(x, (0,)),
        lambda x, y: x @ y.T,
        lambda x, y: x[0] @ y.T,
        lambda x, y: x @ y[0],
        lambda x, y: x[0] @ y[0],
        lambda x, y: F.linear(x.view(3, 3, 40), y, y[:, 0]),
        lambda x, y: torch.bmm(x.view(3, 3, 40), y.view(3, 40, 2)),
        lambda x, y: torch.einsum("rk,ok->or", x, y),
        lambda x, y: torch.einsum("rhd,khd->hrk", x.view(9, 4, 10), y.view(6, 4, 10)),
        lambda x, y: torch.exp(x).log() + x.sigmoid(),
    ],
)
def test_the_small_device_computes_what_torch_computes(operation):
    x, y = numbers(9, 40), numbers(6, 40, seed=1)
    with SmallDevice():
        got = operation(x, y)
    want = operation(x, y)
    assert got.shape == want.shape and torch.allclose(got, want, atol=1e-4)


@pytest.mark.parametrize(
    "operation", [lambda x: x.cumsum(-1), lambda x: x.sum(), lambda x: torch.einsum("ij->", x), lambda x: x.norm()]
)
def test_the_small_device_says_what_it_cannot_do(operation):
    with SmallDevice(), pytest.raises(TypeError, match="the small device"):
        operation(numbers(2, 3))


def test_its_numbers_are_the_same_everywhere():
    assert [int(number * 2**22) for number in numbers(3)] == [-62804, 4500015, -6904203]


# What the notebook says, measured.


def test_the_sum_worked_by_hand():
    row = torch.tensor([[16777216.0, 1.0, 1.0, -16777216.0]])
    assert in_parts(row, 1).item() == 0 and in_parts(row, 2).item() == 1 and math.fsum(row[0].tolist()) == 2


def test_rows_of_up_to_32_numbers_have_one_order_and_longer_ones_have_not():
    for n, same in ((32, True), (75, False)):
        x = numbers(100, n)
        assert (not moved_bits(sum_of_rows(x)[:20], torch.cat([sum_of_rows(row[None]) for row in x[:20]]))) == same


def test_four_companies_of_a_row_have_three_results():
    x, weight = numbers(9, 20), numbers(6, 20, seed=1)
    first = [product(x[:rows], weight.T)[0].tolist() for rows in (1, 5, 8, 9)]
    assert first[2] == first[3] and first[0] != first[1] != first[2] != first[0]


@pytest.mark.parametrize("length", [1, 13, 127, 128, 129, 300])
def test_attention_in_fixed_splits_is_near_the_definition_and_the_same_in_chunks(length):
    q, keys, values = in_chunks.request(length)
    got = invariant.fixed_split_attention(q, keys, values)
    for position in {0, length // 2, length - 1}:
        want = one_query(q[position], keys[: position + 1], values[: position + 1])
        assert torch.allclose(got[position], want, atol=1e-5)
    with SmallDevice():
        parts = in_chunks.request(length)
        one, two = (
            in_chunks.cut(invariant.fixed_split_attention, parts, chunks, split=32)
            for chunks in ([length], [1] * min(3, length) + [length - 3] * (length > 3))
        )
    assert not moved_bits(one, two)


def test_where_the_package_refuses_the_stage_an_answer_is_graded_all_the_same(monkeypatch):
    right = in_chunks.served()
    in_chunks.refusal.cache_clear()

    def refuse(model):
        raise RuntimeError("linear depends on the batch here")

    monkeypatch.setattr(in_chunks, "tested_operators", refuse)
    monkeypatch.setattr(in_chunks.Invariant, "operators", staticmethod(refuse))
    try:
        assert in_chunks.served(fixed_split_attention=invariant.fixed_split_attention) == right
        assert in_chunks.moved_logits([[5, 6, 7]]).endswith(" logits moved (linear depends on the batch here)")
    finally:
        in_chunks.refusal.cache_clear()


def test_a_request_alone_has_no_fault_that_needs_company():
    for name in ("crowd", "place", "chunk", "long", "hit", "preempt"):
        suspect = Suspect(name)
        suspect([[1] * 90])
        assert not suspect.shown, name


def test_the_right_engine_gives_the_same_bits_whatever_happens():
    prompts = [[7 * number % 50 for number in range(n)] for n in (100, 30, 33, 80, 1)]
    alone = [Suspect()([prompt])[0] for prompt in prompts]
    for settings in ({}, {"budget": 1}, {"budget": 9}, {"slots": 112}, {"caching": True}):
        together = Suspect()(prompts, **settings)
        assert all(torch.equal(one, two) for one, two in zip(alone, together)), settings
    assert torch.equal(Suspect()([[*prompts[1], int(alone[1][0].argmax())]])[0][:-1], alone[1][1:])
    assert not torch.equal(Suspect(seed=1)([prompts[0]])[0], alone[0])


def test_a_fault_moves_what_it_says():
    sizes = {"bit": [], "small": [], "token": []}
    for name, fault in FAULTS.items():
        logits = suspects.made_up(0, (1, 2, 3))
        moved = suspects.other(logits, fault.size)
        sizes[fault.size].append(name)
        assert (moved != logits).sum() == (2 if fault.size == "token" else 1)
        assert (moved.argmax() == logits.argmax()) == (fault.size != "token")
        assert np.allclose(moved, logits, rtol=1e-5) == (fault.size == "bit")
    assert len(sizes["bit"]) == 6 and sizes["small"] == ["place"] and sizes["token"] == ["crowd"]


def test_the_scoreboards_last_column_is_counted_of_the_learners_parts(monkeypatch):
    calls = []

    def restless(q, keys, values):
        calls.append(len(q))
        return invariant.fixed_split_attention(q, keys, values) * (1 + 1e-6 * len(calls))

    if in_chunks.refusal():
        pytest.skip(in_chunks.refusal())
    three = Scenario(cases(yours.Yours(in_chunks.tiny()), (1, 17, 40), new=2))
    for function, moves in ((invariant.fixed_split_attention, False), (restless, True)):
        parts = {"fixed_split_attention": function, "sample": lambda logits, *settings: logits.argmax(-1)}
        monkeypatch.setattr(yours, "parts_of", lambda stage, parts=parts: parts)
        count = yours.Yours(in_chunks.tiny()).against_alone(three)
        assert (count.differing > 0) == moves and count.compared > 6 * in_chunks.tiny().config.vocab_size
