"""The referee of exercises 04: a pool of blocks, slots of new tokens, attention block by block, a scheduler that
preempts, a kernel, and the look-up of a prefix cache."""

import time
from itertools import pairwise

import torch

from tinyengine.course import paging, tiles
from tinyengine.course.checks import Endless, ends, every_second, quote
from tinyengine.course.exercise import exercise
from tinyengine.course.paging import Paging, Played, fingerprint
from tinyengine.course.tiles import tl
from tinyengine.course.watch import keeps
from tinyengine.memory import Blocks
from tinyengine.scheduler import Scheduler


def in_the_engine(c, **parts):
    """One line of the check, of one point."""
    told = "with it a request gets other tokens than alone"
    c.equal("the real engine gives the tokens of each request alone", lambda: paging.served(**parts), paging.served,
            because=lambda *_: told)  # fmt: skip


# 4.1: (steps, n_blocks)
POOLS = [
    ([("grow", "a", 5), ("grow", "b", 4), ("grow", "a", 8), ("grow", "a", 9), ("grow", "b", 12), ("end", "a"),
      ("grow", "b", 12)], 5),
    ([("grow", "a", 10), ("grow", "b", 9), ("grow", "a", 3), ("end", "b"), ("grow", "a", 24), ("end", "a"),
      ("grow", "c", 24)], 6),
    ([("grow", "a", 4), ("grow", "b", 4), ("end", "a"), ("grow", "b", 13), ("grow", "b", 9), ("end", "b"),
      ("grow", "c", 16)], 4),
]  # fmt: skip


class MyBlocks(Blocks):
    """A pool of blocks, given out one by one as requests grow."""

    def take(self, n_blocks):
        """Takes that many blocks out of self.free: a list of their numbers."""
        return [self.free.popleft() for _ in range(n_blocks)]

    def grow(self, request, n_slots):
        """Gives what the first n_slots positions lack; or changes nothing: False."""
        lacks = -(-n_slots // self.block_size) - len(request.table)
        if lacks > len(self.free):
            return False
        request.table += self.take(max(0, lacks))
        return True

    def release(self, request):
        """Takes all blocks of the request back; one that holds none stays as it is."""
        if request.request_id in self.holders:
            del self.holders[request.request_id]
            self.free += request.table
            request.table = []


LACKS = "-(-n_slots // self.block_size) - len(request.table)"
GROW = "request.table += self.take(max(0, lacks))"
BLOCKS_MISTAKES = [
    ("rounded down", "you round the blocks down: the last one may be needed only in part", ("-(-n_slots //",
     "(n_slots //"), ("self.block_size) -", "self.block_size) -")),
    ("one more", "a request gets a block more than it needs where its last one is just full",
     ("-(-n_slots // self.block_size)", "(n_slots // self.block_size + 1)")),
    ("slots", "you count slots, and blocks are needed", ("-(-n_slots // self.block_size)", "n_slots")),
    ("anew", "you do not count the blocks that the request has already", (" - len(request.table)", "")),
    ("replaced", "the new blocks take the place of the older ones: the table only grows", ("table +=", "table =")),
    ("one by one", "a request gets one block, however many it lacks", ("self.take(max(0, lacks))",
     "self.take(min(1, max(0, lacks)))")),
    ("not all or nothing", "you give what is left although it is not enough: all, or nothing",
     ("return False", "lacks = len(self.free)")),
    ("exact", "as many free blocks as are lacking are enough", ("lacks > len", "lacks >= len")),
    ("shrinks", "you take blocks back where a request asks for fewer positions than it has",
     (GROW, "request.table += self.take(max(0, lacks))\n        while lacks < 0:\n            lacks += 1\n"
      "            self.free.append(request.table.pop())")),
    ("not taken", "the blocks that you give stay in self.free, and the next request gets them too",
     ("[self.free.popleft() for _ in range(n_blocks)]", "list(self.free)[:n_blocks]")),
    ("no True", "grow() gives the blocks, and does not return True", ("        return True", "        return None")),
    ("no guard", "release() fails for a request that self.holders does not have: such a one stays as it is",
     ("        if request.request_id in self.holders:\n    ", "        if True:\n    ")),
    ("never back", "the blocks of a request that has ended are not put back into self.free",
     ("            self.free += request.table\n", "")),
    ("table stays", "a request that has ended still has its table", ("            request.table = []\n", "")),
    ("last lost", "the last block of a request that has ended does not come back",
     ("self.free += request.table", "self.free += request.table[:-1]")),
    ("holder stays", "self.holders still has a request that has ended",
     ("            del self.holders[request.request_id]\n", "")),
    ("one list", "a list of blocks stands in self.free, where each block belongs",
     ("self.free += request.table", "self.free.append(request.table)")),
]  # fmt: skip


def draw_pools(random):
    """Requests that grow and end in a small pool."""
    cases = []
    for _ in range(5):
        steps, there = [], {}
        for _ in range(16):
            name = random.choice("abcd")
            if name in there and random.random() < 0.25:
                steps.append(("end", name))
                del there[name]
            else:
                there[name] = there.get(name, 0) + random.randint(1, 7)
                steps.append(("grow", name, there[name]))
        cases.append((steps, random.randint(4, 8)))
    return cases


def played_view(played):
    return [played.faults, played.seen]


@exercise("4.1", points=5, solution=MyBlocks, mistakes=BLOCKS_MISTAKES, part=True)
def check_4_1(c, answer):
    runs = c.cases("the pool runs", answer, POOLS, Played, played_view, draw_pools)
    faults = {rule: next((run.got.faults[rule] for run in runs if rule in run.got.faults), "") for rule in Played.rules}
    gives = not (faults["grants"] or faults["books"])  # else the other rules hold for nothing
    for rule, name in Played.rules.items():
        if faults[rule] or gives:
            c.true(name, not faults[rule], faults[rule])
    if any(faults.values()):
        return c.wait("the rest")
    in_the_engine(c, MyBlocks=answer)


# 4.2: (chunks, block_size)
CHUNKS = [
    ([([12, 5, 3], 9, 1)], 4),
    ([([12, 5, 3], 9, 1), ([7], 2, 1), ([9, 2], 0, 5)], 4),
    ([([3, 1], 0, 5), ([0, 6], 5, 3)], 4),
    ([([4, 2, 9], 7, 10), ([1, 0], 0, 9)], 8),
]


def slot_mapping(chunks, block_size):
    """The K/V slot of each new token of a batch, in the order of the stream."""
    slots = []
    for table, first, count in chunks:
        for position in range(first, first + count):
            block = table[position // block_size]
            slots.append(block * block_size + position % block_size)
    return slots


BLOCK = "block = table[position // block_size]"
SLOT_MISTAKES = [
    ("from 0", "you begin at position 0: older tokens of the request stand before its new ones",
     ("range(first, first + count)", "range(count)")),
    ("one piece", "you count on from the first block, but the blocks of a request lie anywhere",
     ("block * block_size + position % block_size", "table[0] * block_size + position")),
    ("positions", "you give positions, and the table says in which slots they lie",
     ("block * block_size + position % block_size", "position")),
    ("blocks", "you give blocks, and slots are needed", ("block * block_size + position % block_size", "block")),
    ("not times", "block b begins at slot b * block_size", ("block * block_size +", "block +")),
    ("first slots", "you give the first slot of each block", (" + position % block_size", "")),
    ("place in the chunk", "the offset in a block goes by the position, not by the place in the chunk",
     ("+ position % block_size", "+ (position - first) % block_size")),
    ("table by chunk", "the entry of the table goes by the position, not by the place in the chunk",
     (BLOCK, "block = table[(position - first) // block_size]")),
    ("first table", "all requests use the first one's table",
     (BLOCK, "block = chunks[0][0][min(position // block_size, len(chunks[0][0]) - 1)]")),
    ("swapped", "quotient and remainder are swapped: the quotient chooses the block",
     (BLOCK, "block = table[position % block_size % len(table)]"), ("+ position % block_size",
      "+ position // block_size")),
    ("all", "you give the slots of all tokens of a request: only the new ones are written",
     ("range(first, first + count)", "range(first + count)")),
    ("one more", "you give one slot too many for each request", ("first + count)", "first + count + 1)"),
     (BLOCK, "block = table[min(position // block_size, len(table) - 1)]")),
    ("nested", "you give a list per request, where one list for the stream is needed",
     ("for table, first, count in chunks:", "for table, first, count in chunks:\n        slots.append([])"),
     ("slots.append(block", "slots[-1].append(block")),
]  # fmt: skip


def draw_chunks(random):
    number, cases = random.randint, []
    for _ in range(5):
        size, free, chunks = random.choice((2, 4, 8)), random.sample(range(40), 40), []
        for _ in range(number(1, 4)):
            first, count = number(0, 12), number(1, 9)
            need = -(-(first + count) // size)
            chunks.append(([free.pop() for _ in range(need)], first, count))
        cases.append((chunks, size))
    return cases


@exercise("4.2", points=3, solution=slot_mapping, mistakes=SLOT_MISTAKES)
def check_4_2(c, answer):
    runs = c.cases("it maps", answer, CHUNKS, drawn=draw_chunks)
    c.agree("a decode", runs[:1])
    c.agree("a batch worked by hand", runs[1:2])
    c.agree("other batches", runs[2:])


# 4.3


def paged_attention(q, keys, values, cu_seqlens_q, seqused_k, block_table):
    """Causal attention over K/V in blocks, one block at a time -> [N, heads, d]."""
    out, size = torch.empty_like(q), keys.shape[1]
    group = q.shape[1] // keys.shape[2]  # query heads that share a K/V head
    starts, lengths = cu_seqlens_q.tolist(), seqused_k.tolist()
    each = zip(pairwise(starts), lengths, block_table.tolist())
    for (start, end), length, table in each:
        query = q[start:end] / q.shape[2] ** 0.5  # [n, heads, d]
        position = torch.arange(length - (end - start), length)[:, None, None]
        best = torch.full((*query.shape[:2], 1), -torch.inf)  # [n, heads, 1]
        total, sums = torch.zeros_like(best), torch.zeros_like(query)
        for first in range(0, length, size):
            here = min(size, length - first)  # slots of this block that hold K/V
            block = table[first // size]
            k = keys[block][:here].repeat_interleave(group, dim=1)  # [here, heads, d]
            v = values[block][:here].repeat_interleave(group, dim=1)
            scores = torch.einsum("nhd,khd->nhk", query, k)
            behind = torch.arange(first, first + here) > position
            scores = scores.masked_fill(behind, -torch.inf)
            higher = torch.maximum(best, scores.amax(-1, keepdim=True))
            shrink, weights = (best - higher).exp(), (scores - higher).exp()
            total = total * shrink + weights.sum(-1, keepdim=True)
            sums = sums * shrink + torch.einsum("nhk,khd->nhd", weights, v)
            best = higher
        out[start:end] = sums / total
    return out


def gathered(q, keys, values, cu_seqlens_q, seqused_k, block_table):
    out, size = torch.empty_like(q), keys.shape[1]
    each = zip(pairwise(cu_seqlens_q.tolist()), seqused_k.tolist(), block_table)
    for (start, end), length, table in each:
        blocks, n = table[: -(-length // size)], end - start
        k, v = (x[blocks].flatten(0, 1)[:length].repeat_interleave(2, dim=1) for x in (keys, values))
        scores = torch.einsum("nhd,khd->nhk", q[start:end], k) / q.shape[2] ** 0.5
        seen = torch.ones(n, length, dtype=torch.bool).tril(length - n)[:, None]
        out[start:end] = torch.einsum("nhk,khd->nhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)
    return out


ATTENTION_MISTAKES = [
    ("gathered", "you copy all blocks of a request together: go block by block", gathered),
    ("no mask", "a prompt's rows see the tokens behind them", (".masked_fill(behind, -torch.inf)", "")),
    ("top left", "your mask lets a new row see its place in the chunk only: older tokens stand before it",
     ("torch.arange(length - (end - start), length)", "torch.arange(end - start)")),
    ("not itself", "a row does not see its own key", ("first + here) > position", "first + here) >= position")),
    ("whole block", "the last block is read whole: the slots behind the last key hold anything",
     ("here = min(size, length - first)", "here = size")),
    ("last block", "the last block is left out", ("range(0, length, size)", "range(0, length - size, size)")),
    ("no shrink", "the older sums stay as they are when a larger score comes: both have to be corrected",
     ("shrink, weights = (best - higher).exp(), ", "shrink, weights = torch.ones_like(best), ")),
    ("only values", "you correct the sum of the values, and not the sum of the weights",
     ("total = total * shrink", "total = total")),
    ("only weights", "you correct the sum of the weights, and not the sum of the values",
     ("sums = sums * shrink", "sums = sums")),
    ("weights' axis", "the sum of the weights has lost an axis: `total` is [n, heads, 1]",
     ("weights.sum(-1, keepdim=True)", "weights.sum(-1)")),
    ("largest's axis", "the largest score has lost an axis: `best` is [n, heads, 1]",
     ("scores.amax(-1, keepdim=True)", "scores.amax(-1)")),
    ("older best", "you weigh a block by the largest score of the blocks before it: its own scores count too",
     ("(scores - higher).exp()", "(scores - best).exp()")),
    ("last weights", "you divide by the weights of the last block only", ("total * shrink + weights", "weights")),
    ("last values", "the result has the values of the last block only", ("sums = sums * shrink +", "sums =")),
    ("inverted", "the correction is upside down: older sums shrink when a larger score comes",
     ("(best - higher).exp()", "torch.where(best > -torch.inf, higher - best, best).exp()")),
    ("no best", "no score is subtracted, and exp() of a large one is infinite",
     ("torch.maximum(best, scores.amax(-1, keepdim=True))", "torch.zeros_like(best)"),
     ("best - higher", "higher - higher")),
    ("best stays", "the largest score is not kept from block to block", ("            best = higher\n", "")),
    ("one piece", "you read blocks that lie one behind the other: the table says where they are",
     ("block = table[first // size]", "block = min(table[0] + first // size, len(keys) - 1)")),
    ("first table", "all requests read the first one's blocks", ("block = table[first // size]",
     "block = block_table[0][first // size % len(block_table[0])]")),
    ("no scale", "the scores are not divided by the square root of the head's size", (" / q.shape[2] ** 0.5", "")),
    ("other heads", "query heads share the wrong K/V head: the first `group` of them share the first one",
     (".repeat_interleave(group, dim=1)", ".repeat(1, group, 1)")),
    ("swapped", "keys and values are swapped", ("k = keys[", "k = values["), ("v = values[", "v = keys[")),
]  # fmt: skip


ATTENTION_POINTS = dict(zip(paging.SIZES, (2, 1, 1, 0, 1)))


def draw_sizes(random):
    number = random.randint

    def size():
        rows = number(1, 3)
        return rows, rows + number(0, 12)

    return [tuple(size() for _ in range(number(1, 4))) for _ in range(3)]


def wrong_row(run) -> str:
    """The first row that is off by more than rounding, in a sentence; "" where none is."""
    sizes, (got, _), (want, _) = paging.sizes_of(run.case), run.got, run.want
    bad = [row for row, by in enumerate((got.float() - want).abs().flatten(1).amax(1).tolist()) if not by < 1e-4]
    if not bad:
        return ""
    told = ", ".join(f"{n} new of {length} tokens" for n, length in sizes)
    what = "is not a number (NaN)" if got[bad[0]].isnan().any() else "is off"
    return f"requests with {told}, blocks of {paging.SIZE}: row {bad[0]} {what}"


@exercise("4.3", points=7, solution=paged_attention, mistakes=ATTENTION_MISTAKES, part=True)
def check_4_3(c, answer):
    runs = c.cases("it attends", answer, paging.SIZES, paging.attended, paging.digest, draw_sizes)
    odd = next((run.got[0] for run in runs if getattr(run.got[0], "shape", None) != run.want[0].shape), None)
    shape = f"a tensor of shape {list(odd.shape)}" if isinstance(odd, torch.Tensor) else quote(odd)
    if not c.true("one tensor, of the shape of q", odd is None, f"you have {shape}, which is not q's shape", points=0):
        return c.wait("the rest")
    right = []
    for (name, points), run in zip(ATTENTION_POINTS.items(), runs):
        trouble = wrong_row(run)
        right.append(c.true(name, not trouble, trouble, points=points))
    most = max(run.got[1] for run in runs)
    told = f"you copy {most} blocks of keys or values at once"
    in_place = right[0] and c.true("no more than one block at a time", most <= 1, told)
    trouble = next(filter(None, map(wrong_row, runs[len(paging.SIZES) :])), "")
    if not all(right) or not c.true("drawn sizes", not trouble, trouble, points=0):
        return c.wait("the rest")
    return in_the_engine(c, paged_attention=answer) if in_place else c.wait("the real engine")


# 4.4: name: (sizes, max_num_seqs, n_blocks)
CASES = {
    "small": ([(3, 6), (5, 6), (2, 2), (1, 2)], 3, 4),
    "roomy": ([(4, 6), (4, 2), (4, 3), (9, 1), (4, 5), (4, 2)], 3, 20),
    "two grow": ([(4, 9), (4, 9), (4, 9)], 3, 4),
    "long head": ([(2, 7), (14, 3), (1, 3), (1, 2), (3, 4)], 3, 5),
    "tight": ([(6, 10), (2, 4), (8, 9), (1, 3), (5, 9), (2, 2), (9, 6), (3, 1)], 4, 6),
    "all begin small": ([(1, 12), (1, 12), (1, 12), (1, 12)], 4, 5),
}


class MyPaged(Scheduler):
    """Blocks on demand: the newest request gives way where one is missing."""

    def schedule(self):
        """This iteration's [(request, n_tokens), ...]; [] when nothing can run."""
        plan = []
        while len(plan) < len(self.running):
            request = self.running[len(plan)]
            if self.memory.grow(request, len(request.tokens)):
                plan.append((request, request.gap))
            else:
                self.preempt(self.running[-1])
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self.memory.admit(request):
                break
            self.running.append(self.waiting.popleft())
            self.memory.grow(request, len(request.tokens))
            plan.append((request, request.gap))
        return plan

    def preempt(self, request):
        """Its blocks go back; it waits in front, to compute all its tokens anew."""
        self.running.remove(request)
        self.memory.release(request)
        request.computed = 0
        self.waiting.appendleft(request)


NEWEST = "self.preempt(self.running[-1])"
PLAN = "            plan.append((request, request.gap))\n        return plan"
LOOP = """while len(plan) < len(self.running):
            request = self.running[len(plan)]
            if self.memory.grow(request, len(request.tokens)):
                plan.append((request, request.gap))
            else:
                self.preempt(self.running[-1])
"""
FOR = """for request in self.running:
            while not self.memory.grow(request, len(request.tokens)):
                self.preempt(self.running[-1])
            plan.append((request, request.gap))
"""
REFUSED = "if not self.memory.admit(request):\n                break"
PAGED_MISTAKES = [
    ("itself", "you preempt the request that lacks a block: the newest gives way", (NEWEST, "self.preempt(request)")),
    ("oldest", "you preempt the oldest request: the newest gives way", (NEWEST,
     "self.preempt(self.running[0])\n                plan = plan[1:]")),
    ("oldest, planned", "you preempt the oldest request, which is in the plan already: the newest gives way",
     (NEWEST, "self.preempt(self.running[0])")),
    ("oldest, in a for", "you preempt the oldest request, and your loop goes through a batch that becomes shorter: "
     "the newest gives way", (LOOP, FOR.replace("running[-1]", "running[0]"))),
    ("all", "you preempt everybody behind the request that lacks a block: one at a time, until there is one",
     (NEWEST, "for other in self.running[:len(plan):-1] or [request]:\n                    self.preempt(other)")),
    ("for", "the batch becomes shorter while your loop goes through it, and who was preempted is planned all the same",
     (LOOP, FOR)),
    ("skipped", "a request that lacks a block is left out of the plan, and nobody gives way",
     (NEWEST, "return plan")),
    ("to the end", "a preempted request goes to the end of the queue: it was there first", ("appendleft", "append")),
    ("computed stays", "`computed` of a preempted request stays, but its K/V are gone",
     ("        request.computed = 0\n", "")),
    ("keeps blocks", "a preempted request keeps its blocks", ("        self.memory.release(request)\n", "")),
    ("lost", "a preempted request is not put back into the queue", ("self.waiting.appendleft(request)", "pass")),
    ("cut", "a preempted request loses what it has written: prompt and output are computed anew",
     ("request.computed = 0", "request.computed = 0\n        del request.tokens[request.num_prompt_tokens :]")),
    ("no blocks", "a newcomer is admitted and gets no blocks: grow() gives them", ("            self.memory.grow("
     "request, len(request.tokens))\n            plan", "            plan")),
    ("not admitted", "you give a newcomer blocks and never ask memory.admit()", (REFUSED,
     "if not self.memory.grow(request, len(request.tokens)):\n                break")),
    ("reserves", "a newcomer gets the blocks of its longest output: that is a reservation again",
     ("self.memory.grow(request, len(request.tokens))\n            plan",
      "self.memory.grow(request, request.max_slots)\n            plan")),
    ("by gap", "grow() wants the number of all tokens so far, not of the new ones",
     ("if self.memory.grow(request, len(request.tokens))", "if self.memory.grow(request, request.gap)")),
    ("prompt only", "one that comes back computes its output anew as well: plan its gap",
     (PLAN, PLAN.replace("request.gap", "request.num_prompt_tokens"))),
    ("one by one", "one request joins per iteration, however many batch slots and blocks are free",
     (PLAN, PLAN.replace("\n        return", "\n            break\n        return"))),
    ("too many", "you admit one request too many: a batch slot must be free before a request joins",
     ("< self.max_num_seqs", "<= self.max_num_seqs")),
    ("overtakes", "a smaller request overtakes one that does not fit: all behind that one wait",
     ("request = self.waiting[0]\n            if not self.memory.admit(request):",
      "request = next(filter(self.memory.admit, self.waiting), None)\n            if request is None:"),
     ("self.running.append(self.waiting.popleft())",
      "self.waiting.remove(request)\n            self.running.append(request)")),
    ("no return", "schedule() makes a plan and does not return it", ("        return plan", "        plan = None")),
]  # fmt: skip


def run(scheduler_class, case):
    return Paging(scheduler_class, CASES[case] if isinstance(case, str) else case, named=case)


@exercise("4.4", points=8, solution=MyPaged, mistakes=PAGED_MISTAKES, part=True)
def check_4_4(c, answer):
    runs = c.cases("schedule() runs", answer, CASES, run, Paging.behaviour, paging.draw_cases)
    if not keeps(c, runs, lambda case: run(answer, case)):
        return c.wait("the rest")
    slow = next((run for run in runs if run.got.late), runs[0])
    c.true("a request joins as soon as it can", not slow.got.late, slow.got.late, points=2)
    in_the_engine(c, MyPaged=answer)


# 4.5


def my_kernel(
    out, q, keys, values, seqused_k, block_table, most_blocks,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One program: one head of one request's newest token, over all its keys."""
    request, head = tl.program_id(0), tl.program_id(1)
    dim, place = tl.arange(0, DIM), tl.arange(0, SIZE)
    row = (request * KV_HEADS * GROUP + head) * DIM + dim
    query = tl.load(q + row) / tl.sqrt(DIM + 0.0)  # [DIM]
    length = tl.load(seqused_k + request)
    best, total, sums = -float("inf"), 0.0, tl.zeros([DIM], tl.float32)
    for tile in range(0, tl.cdiv(length, SIZE)):
        block = tl.load(block_table + request * most_blocks + tile)
        real = tile * SIZE + place < length
        slot = block * SIZE + place
        at = (slot * KV_HEADS + head // GROUP)[:, None] * DIM + dim[None, :]
        k = tl.load(keys + at, mask=real[:, None], other=0.0)  # [SIZE, DIM]
        v = tl.load(values + at, mask=real[:, None], other=0.0)
        scores = tl.where(real, tl.sum(k * query[None, :], 1), -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 0))
        shrink, weights = tl.exp(best - higher), tl.exp(scores - higher)
        total = total * shrink + tl.sum(weights, 0)
        sums = sums * shrink + tl.sum(weights[:, None] * v, 0)
        best = higher
    tl.store(out + row, sums / total)


KERNEL_MISTAKES = [
    ("no table", "you read block 0, 1, 2, ...: the table says where a request's blocks are",
     ("block = tl.load(block_table + request * most_blocks + tile)", "block = tile")),
    ("first row", "all requests read the first row of the table",
     ("block_table + request * most_blocks + tile", "block_table + tile")),
    ("no mask", "slots behind the last key are read, or count as keys",
     ("tile * SIZE + place < length", "place < SIZE")),
    ("within the block", "you compare the place in the block with the length, where the position is needed",
     ("tile * SIZE + place < length", "place < length")),
    ("zero scores", "a slot behind the last key has score 0, which is a weight like any other: it must have none",
     ('tl.where(real, tl.sum(k * query[None, :], 1), -float("inf"))', "tl.sum(k * query[None, :], 1)")),
    ("other heads", "query heads share the wrong K/V head: the first GROUP of them share the first one",
     ("head // GROUP)", "head % KV_HEADS)")),
    ("first head", "all query heads read the first K/V head", (" + head // GROUP)", ")")),
    ("block", "you forget that a block has SIZE slots", ("block * SIZE + place", "block + place")),
    ("no shrink", "the older sums stay as they are when a larger score comes",
     ("tl.exp(best - higher), ", "1.0, ")),
    ("only values", "you correct the sum of the values, and not the sum of the weights",
     ("total = total * shrink", "total = total")),
    ("best stays", "the largest score is not kept from tile to tile", ("        best = higher\n", "")),
    ("keys twice", "you sum keys where values are needed", ("weights[:, None] * v", "weights[:, None] * k")),
    ("swapped axes", "a score is a sum over the numbers of a key, so over the other axis",
     ("tl.sum(k * query[None, :], 1)", "tl.sum(k * query[None, :], 0)")),
]  # fmt: skip
LENGTHS = [(3,), (8,), (5, 2), (10,)]


def tiled(answer, lengths):
    """What a kernel gives for one new token of each of these requests, in blocks of 4."""
    q, keys, values, _, seqused_k, table = paging.over_blocks(tuple((1, length) for length in lengths))
    began = time.thread_time()

    def look(now, waited):  # to count the lines of the interpreter would take ten times as long
        if max(now - began, waited) > 5:
            raise Endless("your kernel was stopped after 5 s: look for a loop that never ends")

    with every_second(look):
        return tiles.decode(q, keys, values, seqused_k, table, kernel=answer)


def draw_lengths(random):
    return [tuple(random.randint(1, 12) for _ in range(2))]


def sums_of_heads(got):
    return [[round(head.sum().item(), 2) for head in row] for row in got]


def wrong_head(run) -> str:
    """The first head of a request that is off by more than rounding, in a sentence; "" where none is."""
    off = (run.got - run.want).abs().amax(-1)
    bad = [tuple(at) for at in (~(off < 1e-4)).nonzero().tolist()]
    if not bad:
        return ""
    request, head = bad[0]
    what = "is not a number (NaN)" if run.got[bad[0]].isnan().any() else "is off"
    return f"requests of {', '.join(map(str, run.case))} tokens, blocks of 4: head {head} of request {request} {what}"


@exercise("4.5", points=4, solution=my_kernel, mistakes=KERNEL_MISTAKES)
def check_4_5(c, answer):
    if tiles.missing():
        c._record("the kernel", 4, tiles.missing(), "not attempted")
        return
    runs = c.cases("the kernel runs", answer, LENGTHS, tiled, sums_of_heads, draw_lengths)
    troubles = list(map(wrong_head, runs))
    names = "one block, not full", "two full blocks", "two requests", "other lengths"
    for name, own in zip(names, (troubles[:1], troubles[1:2], troubles[2:3], troubles[3:])):
        trouble = next(filter(None, own), "")
        c.true(name, not trouble, trouble)


# 4.6: (tokens, block_size, texts that are cached)
LOOKUPS = {
    "nothing is cached": ([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, []),
    "a beginning": ([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, [[1, 2, 3, 4]]),
    "two blocks": ([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, [[1, 2, 3, 4, 5, 6, 7, 8]]),
    "all of it, but one token": ([1, 2, 3, 4, 5, 6, 7, 8], 4, [[1, 2, 3, 4, 5, 6, 7, 8]]),
    "a longer text": ([1, 2, 3, 4, 5, 6], 2, [[1, 2, 3, 4, 5, 6, 7, 8]]),
    "the same block behind another text": ([1, 2, 3, 4, 5, 6, 7], 2, [[9, 9, 3, 4, 5, 6], [1, 2]]),
    "twice the same block": ([5, 5, 5, 5, 5], 2, [[5, 5, 5, 5]]),
    "one missing in the middle": ([1, 2, 3, 4, 5, 6, 7], 2, [[1, 2, 3, 4, 5, 6], "but not the block 3 4"]),
    "a short prompt": ([1, 2], 4, [[1, 2, 3, 4]]),
}


def cached_prefix(tokens, block_size, block_of):
    """The cached blocks that a request with these tokens can begin with, in order."""
    cached, key = [], b""
    for first in range(0, len(tokens) - block_size, block_size):
        key = fingerprint(key, tokens[first : first + block_size])
        if key not in block_of:
            break
        cached.append(block_of[key])
    return cached


PREFIX_MISTAKES = [
    ("nothing left", "where all blocks are cached you leave no token to compute, and then there are no logits",
     ("len(tokens) - block_size, block_size", "len(tokens) - block_size + 1, block_size")),
    ("too careful", "you leave a whole block to compute, where one token is enough",
     ("len(tokens) - block_size, block_size", "len(tokens) - 2 * block_size, block_size")),
    ("no chain", "you hash a block's own tokens only: the same block behind another text has other K/V",
     ("fingerprint(key, ", 'fingerprint(b"", ')),
    ("whole text", "only the first block is found: a hash is of a block's own tokens, behind the hash before it",
     ("tokens[first : first + block_size]", "tokens[: first + block_size]")),
    ("goes on", "behind a block that is missing you go on: its K/V would be missing in the middle",
     ("break", "continue")),
    ("count", "you give how many blocks are cached, and not which", ("return cached", "return len(cached)")),
    ("hashes", "you give the hashes: the blocks are filed under them", ("append(block_of[key])", "append(key)")),
    ("token by token", "you hash at each token: blocks are hashed one behind the other",
     ("len(tokens) - block_size, block_size)", "len(tokens) - block_size)")),
    ("from the end", "the blocks are in the wrong order", ("return cached", "return cached[::-1]")),
]  # fmt: skip


def looked_up(answer, case):
    """What the answer finds in a cache with these texts; their blocks are 20, 21, ..., in order."""
    tokens, size, texts = LOOKUPS[case] if isinstance(case, str) else case
    block_of = {}
    for text in texts:
        if isinstance(text, str):  # evicted: the second block
            del block_of[list(block_of)[1]]
            continue
        key = b""
        for first in range(0, len(text) - size + 1, size):
            key = fingerprint(key, text[first : first + size])
            block_of.setdefault(key, 20 + len(block_of))
    return ends(answer, list(tokens), size, dict(block_of))


def draw_lookups(random):
    cases = []
    for _ in range(6):
        size, text = random.choice((2, 3, 4)), [random.randint(1, 3) for _ in range(random.randint(1, 20))]
        other = text[: random.randint(0, len(text))] + [random.randint(1, 3) for _ in range(random.randint(0, 6))]
        cases.append((text, size, [other, [random.randint(1, 3) for _ in range(9)]]))
    return cases


@exercise("4.6", points=4, solution=cached_prefix, mistakes=PREFIX_MISTAKES)
def check_4_6(c, answer):
    runs = c.cases("it looks up", answer, LOOKUPS, looked_up, drawn=draw_lookups)
    told = {name: run for name, run in zip(LOOKUPS, runs)}
    groups = {
        "what is cached is found": ["a beginning", "two blocks", "twice the same block"],
        "a token is left to compute": ["all of it, but one token", "a longer text", "a short prompt"],
        "no block of another text": ["the same block behind another text", "nothing is cached"],
    }
    for line, names in groups.items():
        wrong = next((name for name in names if plain_list(told[name].got) != told[name].want), "")
        c.true(line, not wrong, of_look_up(told[wrong]) if wrong else "")
    rest = [told["one missing in the middle"], *runs[len(LOOKUPS) :]]
    wrong = next((run for run in rest if plain_list(run.got) != run.want), None)
    c.true("no gap", wrong is None, of_look_up(wrong) if wrong else "")


def of_look_up(run) -> str:
    """The case of a run and what the answer gave, in a sentence."""
    tokens, size, texts = LOOKUPS[run.case] if isinstance(run.case, str) else run.case
    known = ", ".join(text if isinstance(text, str) else " ".join(map(str, text)) for text in texts)
    told = f"the request {' '.join(map(str, tokens))}, in blocks of {size}, where the cache knows {known or 'nothing'}"
    return f"{told}: you give {quote(run.got)}"


def plain_list(got):
    return list(got) if isinstance(got, list | tuple) else got
