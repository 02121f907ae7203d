"""Exercises 04: each mistake of the referee's tables, run as a learner's answer, loses points and is told by its
sentence; right answers written in other ways get all points; odd ones are told in a sentence."""

from types import FunctionType

import pytest
import torch
from helpers.course import Audit, solutions

from tinyengine.attention import paged_attention
from tinyengine.course import paging as given
from tinyengine.course import tiles
from tinyengine.course.referees import paged
from tinyengine.course.watch import serve
from tinyengine.memory import Blocks
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.request import Request

CHECKS = tuple(getattr(paged, f"check_4_{number}") for number in range(1, 7))
SOLUTIONS = solutions("04_paged")


def changed(name, *changes):
    """A solution, written in another way."""
    text = SOLUTIONS[name]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


RIGHT = {
    "4.1 block by block, from the other end": """
        class MyBlocks(Blocks):
            def take(self, n_blocks):
                taken = []
                while len(taken) < n_blocks:
                    taken.append(self.free.pop())
                return taken

            def grow(self, request, n_slots):
                wanted = len(request.table)
                while wanted * self.block_size < n_slots:
                    wanted += 1
                if wanted - len(request.table) > len(self.free):
                    return False
                for block in self.take(wanted - len(request.table)):
                    request.table.append(block)
                return True

            def release(self, request):
                if self.holders.pop(request.request_id, None) is not None:
                    while request.table:
                        self.free.appendleft(request.table.pop())
    """,
    "4.1 with the package's missing()": changed(
        "MyBlocks",
        ("-(-n_slots // self.block_size) - len(request.table)", "self.missing(request, n_slots)"),
        ("self.free += request.table", "self.free.extend(reversed(request.table))"),
    ),
    "4.2 a comprehension": """
        def slot_mapping(chunks, block_size):
            return [
                table[p // block_size] * block_size + p % block_size
                for table, first, count in chunks
                for p in range(first, first + count)
            ]
    """,
    "4.2 all slots of a request, cut": """
        def slot_mapping(chunks, block_size):
            stream = torch.empty(0, dtype=torch.long)
            for table, first, count in chunks:
                slots = torch.tensor(table)[:, None] * block_size + torch.arange(block_size)
                stream = torch.cat([stream, slots.flatten()[first : first + count]])
            return stream
    """,
    "4.3 the mask as a condition, and an output that is filled row by row": changed(
        "paged_attention",
        (".masked_fill(behind, -torch.inf)", " + torch.where(behind, -torch.inf, 0.0)"),
        (
            "out[start:end] = sums / total",
            "for row in range(start, end):\n            out[row] = (sums / total)[row - start]",
        ),
    ),
    "4.3 query by query": """
        def paged_attention(q, keys, values, cu_seqlens_q, seqused_k, block_table):
            out, size, group = torch.zeros(q.shape), keys.shape[1], q.shape[1] // keys.shape[2]
            for r in range(len(seqused_k)):
                start, end, length = int(cu_seqlens_q[r]), int(cu_seqlens_q[r + 1]), int(seqused_k[r])
                for row in range(start, end):
                    seen = length - (end - 1 - row)
                    best, total, sums = torch.full((q.shape[1],), -torch.inf), 0, 0
                    for first in range(0, seen, size):
                        block = int(block_table[r, first // size])
                        k, v = keys[block, : seen - first], values[block, : seen - first]
                        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
                        scores = (k * q[row]).sum(-1) / q.shape[2] ** 0.5
                        higher = torch.maximum(best, scores.amax(0))
                        factor, weights = (best - higher).exp(), (scores - higher).exp()
                        total = total * factor + weights.sum(0)
                        sums = (sums * factor[:, None] if first else 0) + (weights[:, :, None] * v).sum(0)
                        best = higher
                    out[row] = sums / total[:, None]
            return out
    """,
    "4.4 a plan at the end, and an index": """
        class MyPaged(Scheduler):
            def schedule(self):
                index = 0
                while index < len(self.running):
                    if self.memory.grow(self.running[index], len(self.running[index].tokens)):
                        index += 1
                    else:
                        self.preempt(self.running[-1])
                while self.waiting and len(self.running) < self.max_num_seqs and self.memory.admit(self.waiting[0]):
                    joining = self.waiting.popleft()
                    assert self.memory.grow(joining, len(joining.tokens))
                    self.running.append(joining)
                return [(request, request.gap) for request in self.running]

            def preempt(self, request):
                request.computed = 0
                self.waiting.appendleft(self.running.pop())
                self.memory.release(request)
    """,
    "4.4 no admission in a step that preempts": changed(
        "MyPaged",
        ("plan = []", "plan, waited = [], len(self.waiting)"),
        ("while self.waiting and", "while self.waiting and len(self.waiting) <= waited and"),
    ),
    "4.5 another order": changed(
        "my_kernel",
        ("        slot = block * SIZE + place\n", ""),
        ("(slot * KV_HEADS + head // GROUP)[:, None]", "((block * SIZE + place) * KV_HEADS + head // GROUP)[:, None]"),
    ),
    "4.5 the products by columns": changed(
        "my_kernel",
        ("k = tl.load(keys + at, mask=real[:, None]", "k = tl.load(keys + tl.trans(at), mask=real[None, :]"),
        ("tl.sum(k * query[None, :], 1)", "tl.sum(k * query[:, None], 0)"),
    ),
    "4.6 how many blocks may be taken, first": """
        def cached_prefix(tokens, block_size, block_of):
            most, found, before = (len(tokens) - 1) // block_size, [], b""
            for index in range(most):
                before = fingerprint(before, tokens[index * block_size : (index + 1) * block_size])
                block = block_of.get(before)
                if block is None:
                    return found
                found.append(block)
            return found
    """,
    "4.6 recursion, and a tuple": """
        def cached_prefix(tokens, block_size, block_of, before=b""):
            if len(tokens) <= block_size:
                return ()
            key = fingerprint(before, tokens[:block_size])
            if key not in block_of:
                return ()
            return (block_of[key], *cached_prefix(tokens[block_size:], block_size, block_of, key))
    """,
}  # fmt: skip
GROW = SOLUTIONS["MyPaged"].split("        plan = []\n")[1].split("        while self.waiting")[0]
JOIN_FIRST = changed(
    "MyPaged",
    (GROW, ""),
    ("            plan.append((request, request.gap))\n        return plan\n", GROW + "        return plan\n"),
)
ODD = {  # what a learner wrote: points, and what the grader says
    "4.1 the package's own": (
        "class MyBlocks(Blocks):\n    def grow(self, request, n_slots):\n        return super().grow(request, n_slots)",
        0,
        "you call the package's own grow: write yours",
    ),
    "4.2 no return": (SOLUTIONS["slot_mapping"].replace("return slots", "slots"), 0, "did you forget to return?"),
    "4.3 heads in a row": (
        SOLUTIONS["paged_attention"].replace("return out", "return out.flatten(1)"),
        0,
        "which is not q's shape",
    ),
    "4.3 no correction": (
        SOLUTIONS["paged_attention"].replace("(best - higher).exp(), ", "torch.ones_like(best), "),
        3,
        "the older sums stay as they are when a larger score comes",
    ),
    "4.3 an axis too few": (
        SOLUTIONS["paged_attention"].replace("weights.sum(-1, keepdim=True)", "weights.sum(-1)"),
        0,
        "the sum of the weights has lost an axis",
    ),
    "4.4 names": (
        "class MyPaged(Scheduler):\n    def schedule(self):\n        return [self.memory.admit('r0')]",
        0,
        "memory.admit() is given a str, but a request is needed",
    ),
    "4.4 those that wait come first": (
        JOIN_FIRST,
        4,
        "joins and is preempted in the same iteration: those that run come first",
    ),
    "4.5 a name that is not there": (
        SOLUTIONS["my_kernel"].replace("scores = ", "score = "),
        0,
        "scores",
    ),
    "4.5 an offset that is far too large": (
        SOLUTIONS["my_kernel"].replace("block * SIZE + place", "1_000_000 * block * SIZE + place"),
        0,
        "a pointer outside of the tensor",
    ),
    "4.5 a method of a tile": (
        SOLUTIONS["my_kernel"].replace("tl.sum(k * query[None, :], 1)", "(k * query[None, :]).sum(1)"),
        0,
        "use tl.sum(x, 1)",
    ),
    "4.6 words": ("def cached_prefix(tokens, block_size, block_of):\n    return 'none'", 0, "you give 'none'"),
}


class TestPaged(Audit):
    stem, checks, right, odd = "04_paged", CHECKS, RIGHT, ODD
    seeds = 2


# What the notebooks say, measured.


def test_the_pool_worked_by_hand():
    steps = paged.POOLS[0]
    played = given.Played(paged.MyBlocks, steps)
    tables = [(granted, table, free) for _, granted, table, free in played.seen[:5]]
    assert tables == [
        (True, "[0, 1]", "[2, 3, 4]"), (True, "[2]", "[3, 4]"), (True, "[0, 1]", "[3, 4]"),
        (True, "[0, 1, 3]", "[4]"), (False, "[2]", "[4]"),
    ]  # fmt: skip
    assert played.seen[5][2] == "[4, 0, 1, 3]" and played.seen[-1][1:] == [True, "[2, 4, 0]", "[1, 3]"]


def test_the_slots_worked_by_hand():
    assert paged.slot_mapping(*paged.CHUNKS[1]) == [13, 30, 36, 37, 38, 39, 8]


def test_the_schedule_worked_by_hand():
    sizes, max_num_seqs, n_blocks = paged.CASES["small"]
    trace = serve(paged.MyPaged(Blocks(n_blocks, 4), max_num_seqs), sizes)
    assert [{span.request_id: span.n_tokens for span in step.spans} for step in trace.iterations] == [
        {"r0": 3, "r1": 5, "r2": 2}, {"r0": 1, "r1": 1, "r2": 1}, {"r0": 1, "r1": 1}, {"r0": 1, "r1": 1}, {"r0": 1},
        {"r0": 1}, {"r1": 9, "r3": 1}, {"r1": 1, "r3": 1},
    ]  # fmt: skip


def test_the_look_up_finds_what_the_package_finds():
    for tokens, size, texts in [case for case in paged.LOOKUPS.values() if not any(map(is_word, case[2]))]:
        memory = CachedBlocks(30, size) if size != 3 else None
        for number, text in enumerate(texts):
            owner = Request(f"t{number}", text)
            memory.admit(owner)
            memory.grow(owner, len(text))
            owner.computed = len(text)
            memory.release(owner)
        request = Request("new", tokens)
        assert len(memory.cached_prefix(request)) == len(paged.looked_up(paged.cached_prefix, (tokens, size, texts)))


def is_word(text):
    return isinstance(text, str)


@pytest.mark.parametrize("case", given.SIZES)
def test_attention_block_by_block_is_the_definition(case):
    arguments = given.over_blocks(case)
    assert torch.allclose(paged.paged_attention(*arguments), paged_attention(*arguments), atol=1e-5)


@pytest.mark.skipif(bool(tiles.missing()), reason=tiles.missing() or "there")
@pytest.mark.parametrize("lengths", paged.LENGTHS)
def test_the_kernel_of_the_lesson_is_held_to_the_definition(lengths):
    q, keys, values, starts, used, table = given.over_blocks(tuple((1, length) for length in lengths))
    defined = paged_attention(q, keys, values, starts, used, table)
    assert torch.allclose(tiles.decode(q, keys, values, used, table), defined, atol=1e-5)


@pytest.mark.skipif(bool(tiles.missing()), reason=tiles.missing() or "there")
def test_a_kernel_shares_no_name_with_the_interpreter():
    names = {"tl": tiles.tl, "interpreter_semantic": 5, "np": 5, "ast": 5}
    kernel = FunctionType(paged.my_kernel.__code__, names, "my_kernel")
    kernel.__annotations__ = paged.my_kernel.__annotations__
    assert (paged.tiled(kernel, (5,)) - paged.tiled(paged.my_kernel, (5,))).abs().max() == 0
    assert set(names) - {"__builtins__"} == {"tl", "interpreter_semantic", "np", "ast"}


def test_without_triton_the_kernel_is_not_attempted_and_the_sentence_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(tiles, "triton", None)
    paged.check_4_5(paged.my_kernel)
    said = capsys.readouterr().out
    assert "0 of 4 points" in said and "to do" in said and "pip install 'tinyengine[kernels]'" in said
