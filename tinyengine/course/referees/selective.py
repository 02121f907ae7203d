"""The referee of exercises 03: a stream of rows, attention request by request, which operations are row-wise, a sampler
with parameters of each request, and a loop with a fault in it."""

from itertools import accumulate, pairwise

import torch

from tinyengine.attention import one_request as attend
from tinyengine.course import rows
from tinyengine.course.checks import ends, quote
from tinyengine.course.exercise import exercise


def in_the_engine(c, **parts):
    """One line of the check, of one point."""
    told = "with your function a request gets other tokens than alone"
    c.equal("the real engine gives the tokens of each request alone", lambda: rows.served(**parts), rows.served,
            because=lambda *_: told)  # fmt: skip


# 3.1: (chunks,)
HAND = [([41], 3), ([17], 5), ([30, 31], 0), ([50, 51, 52], 0)]
CHUNKS = [([([7, 8, 9], 0)],), ([([7, 8], 0), ([5], 0)],), ([([4], 6), ([4], 2), ([4], 9)],), (HAND,)]


def flat(chunks):
    """Chunks as one stream: (tokens [N], positions [N], starts, last [B])."""
    tokens, positions, starts = [], [], [0]
    for token_ids, first in chunks:
        tokens += token_ids
        positions += range(first, first + len(token_ids))
        starts.append(len(tokens))
    last = torch.tensor(starts[1:]) - 1
    return torch.tensor(tokens), torch.tensor(positions), starts, last


PADS = "width = max(len(ids) for ids, _ in chunks)\n    for token_ids, first in chunks:\n        "
PADS += "token_ids = token_ids + [0] * (width - len(token_ids))"
FLAT_MISTAKES = [
    ("along the stream", "your positions count along the stream: each request counts its own",
     ("range(first, first + len(token_ids))", "range(len(positions), len(positions) + len(token_ids))")),
    ("from 0", "your positions begin at 0 in each chunk, also where older tokens of the request stand before it",
     ("range(first, first + len(token_ids))", "range(len(token_ids))")),
    ("from 1", "your positions are one too high: first_position is that of the chunk's first token",
     ("range(first, first + len(token_ids))", "range(first + 1, first + 1 + len(token_ids))")),
    ("all first", "all rows of a chunk have the position of its first token", ("range(first, first + len(token_ids))",
     "[first] * len(token_ids)")),
    ("padded", "you pad each chunk to the longest: that is the rectangle again",
     ("for token_ids, first in chunks:", PADS)),
    ("a rectangle", "there are rows that belong to no token: each request is padded to the longest",
     ("tokens += token_ids", "width = max(len(ids) for ids, _ in chunks)\n        "
      "tokens += [*token_ids, *[0] * (width - len(token_ids))]"),
     ("range(first, first + len(token_ids))", "[*range(first, first + len(token_ids)), *[0] * (width - len(token_ids))]"
      )),
    ("lengths", "starts holds how many rows each request has, not where they begin",
     ("starts.append(len(tokens))", "starts.append(len(token_ids))"), ("starts[1:]", "list(accumulate(starts[1:]))")),
    ("no end", "starts ends with the last request's first row: where the stream ends is missing",
     ("starts, last\n", "starts[:-1], last\n")),
    ("no 0", "starts holds where the requests end, and the first one's start is missing",
     ("starts, last\n", "starts[1:], last\n")),
    ("past the end", "last is one too far: it gives the row behind the request's last one", (" - 1\n", "\n")),
    ("first rows", "last gives each request's first row", ("starts[1:]) - 1", "starts[:-1])")),
    ("in the request", "last counts within each request, but the rows are counted along the stream",
     ("starts[1:]) - 1", "[len(ids) for ids, _ in chunks]) - 1")),
    ("ids", "last holds token ids, but the number of a row is needed",
     ("torch.tensor(starts[1:]) - 1", "torch.tensor([ids[-1] for ids, _ in chunks])")),
    ("sorted", "you sort the requests by length: the stream keeps the order of the batch",
     ("in chunks:", "in sorted(chunks, key=lambda chunk: -len(chunk[0])):")),
]  # fmt: skip


def draw_chunks(random):
    number = random.randint
    chunk = lambda: ([number(5, 99) for _ in range(number(1, 4))], number(0, 9))  # noqa: E731
    return [([chunk() for _ in range(number(2, 6))],) for _ in range(4)]


def kinds(got) -> str:
    """What is wrong with the kinds of flat's four parts, or ""."""
    for name, part in zip(("tokens", "positions", "last"), (got[0], got[1], got[3])):
        if not isinstance(part, torch.Tensor):
            return f"{name} is {quote(part)}, where a tensor is needed"
        if not part.numel():
            return f"{name} has no numbers: it is empty"
        if part.is_floating_point():
            return f"{name} is a tensor of {str(part.dtype).removeprefix('torch.')}, where whole numbers are needed"
    return "" if isinstance(got[2], list | tuple) else f"starts is {quote(got[2])}, where a list is needed"


@exercise("3.1", points=5, solution=flat, mistakes=FLAT_MISTAKES, part=True)
def check_3_1(c, answer):
    runs = c.cases("it makes a stream", answer, CHUNKS, drawn=draw_chunks)
    if not c.parts("it returns four things", runs, "(tokens, positions, starts, last)", 4):
        return c.wait("the rest")
    trouble = next(filter(None, (kinds(run.got) for run in runs)), "")
    c.true("three tensors of whole numbers, and a list", not trouble, trouble, points=0)
    right = [c.agree(name, runs, part=part) for part, name in enumerate(("tokens", "positions", "starts", "last"))]
    if trouble or not all(right):
        return c.wait("the real engine")
    in_the_engine(c, flat=answer)


# 3.2


def attend_each(q, starts, keys, values):
    """Attention request by request: q [N, heads, d] -> [N, heads, d]."""
    parts = []
    for index, (start, end) in enumerate(pairwise(starts)):
        parts.append(attend(q[start:end], keys[index], values[index]))
    return torch.cat(parts)


OWN = "keys[index], values[index]"
EACH_MISTAKES = [
    ("one stream", "each row reads the keys of all requests: they must read their own request's only",
     (OWN, "torch.cat(keys), torch.cat(values)")),
    ("one attend", "you call attend once for the whole stream: rows read the keys of other requests",
     ("return torch.cat(parts)", "return attend(q, torch.cat(list(keys)), torch.cat(list(values)))")),
    ("places", "starts counts the rows of the stream, and you take it as the places of the keys",
     (OWN, "torch.cat(list(keys))[start:end], torch.cat(list(values))[start:end]")),
    ("keys twice", "you pass the keys as values too", (OWN, "keys[index], keys[index]")),
    ("neighbour", "a request reads its neighbour's keys and values", (OWN, "keys[index - 1], values[index - 1]")),
    ("the first's", "all requests read the first one's keys and values", (OWN, "keys[0], values[0]")),
    ("neighbour's values", "a request reads its own keys and another's values",
     (OWN, "keys[index], values[index - 1]")),
    ("swapped", "keys and values are swapped", (OWN, "values[index], keys[index]")),
    ("row by row", "you attend row by row: then a prompt's rows see the tokens behind them too",
     ("attend(q[start:end], keys[index], values[index])",
      "torch.cat([attend(q[row : row + 1], keys[index], values[index]) for row in range(start, end)])")),
    ("new keys", "a request's rows read the keys of this iteration only, and not the older ones",
     (OWN, "keys[index][start - end :], values[index][start - end :]")),
    ("cut to the rows", "you cut the keys to as many as there are new rows: a request has older ones too",
     (OWN, "keys[index][: end - start], values[index][: end - start]")),
    ("no new keys", "the newest key is left out: a row reads its own key as well",
     (OWN, "keys[index][: max(1, len(keys[index]) - 1)], values[index][: max(1, len(keys[index]) - 1)]")),
    ("cut by start", "starts counts the rows of the stream: you cut the keys by it",
     (OWN, "keys[index][: max(end, end - start)], values[index][: max(end, end - start)]")),
    ("last row", "you compute the last row of each request only", ("q[start:end]", "q[end - 1 : end]")),
    ("one less", "you leave out the last row of each request", ("q[start:end]", "q[start : max(end - 1, start)]")),
    ("other order", "the results are merged in another order than the stream's", ("cat(parts)", "cat(parts[::-1])")),
    ("not merged", "you return one result per request: merge them into one tensor", ("torch.cat(parts)", "parts")),
]  # fmt: skip


def draw_sizes(random):
    number = random.randint

    def size():
        rows = number(1, 3)
        return rows, rows + number(0, 5)

    return [tuple(size() for _ in range(number(2, 5))) for _ in range(4)]


def wrong_row(run) -> str:
    """The first row that is off by more than rounding, in a sentence; "" where none is."""
    sizes, starts = rows.sizes_of(run.case), [0, *accumulate(n for n, _ in rows.sizes_of(run.case))]
    off = (run.got.float() - run.want).abs().flatten(1).amax(1)
    bad = [row for row, by in enumerate(off.tolist()) if not by < 1e-4]
    if not bad:
        return ""
    index = next(index for index, (start, end) in enumerate(pairwise(starts)) if start <= bad[0] < end)
    told = ", ".join(f"{n} of {length}" for n, length in sizes)
    return f"requests with (new rows of keys) {told}: row {bad[0]}, of request {index}, is off by {off[bad[0]]:.2g}"


@exercise("3.2", points=6, solution=attend_each, mistakes=EACH_MISTAKES, part=True)
def check_3_2(c, answer):
    runs = c.cases("it attends", answer, rows.SIZES, rows.attended, rows.digest, draw_sizes)
    odd = next((run.got for run in runs if getattr(run.got, "shape", None) != run.want.shape), None)
    shape = f"a tensor of shape {list(odd.shape)}" if isinstance(odd, torch.Tensor) else quote(odd)
    shape += " (it is empty)" if isinstance(odd, list | tuple) and not odd else ""
    needed = "which is not q's shape" if isinstance(odd, torch.Tensor) else "where a tensor is needed"
    if not c.true("one tensor, of the shape of q", odd is None, f"you have {shape}, {needed}", points=0):
        return c.wait("the rest")
    right = []
    for name in rows.SIZES:
        trouble = next(filter(None, (wrong_row(run) for run in runs if run.case == name)), "")
        right.append(c.true(name, not trouble, trouble))
    trouble = next(filter(None, map(wrong_row, runs[len(rows.SIZES) :])), "")
    if not all(right) or not c.true("drawn sizes", not trouble, trouble):
        return c.wait("the real engine")
    in_the_engine(c, attend_each=answer)


# 3.3
def is_row_wise(operation, x, positions):
    """True if no row's result depends on the other rows or on its place."""
    together = operation(x, positions)
    for row in range(len(x)):
        here = slice(row, row + 1)
        alone = operation(x[here], positions[here])
        if not torch.allclose(alone[0], together[row], atol=1e-4):
            return False
    return True


def permuted(operation, x, positions):
    order = torch.randperm(len(x))
    moved = operation(x[order], positions[order])
    return torch.allclose(moved, operation(x, positions)[order], atol=1e-4)


def other_neighbours(operation, x, positions):
    together = operation(x, positions)
    for row in range(len(x)):
        other = torch.randn_like(x)
        other[row] = x[row]
        if not torch.allclose(operation(other, positions)[row], together[row], atol=1e-4):
            return False
    return True


def other_last(operation, x, positions):
    other = torch.cat((x[:-1], 3 * torch.randn_like(x[-1:])))
    return torch.allclose(operation(other, positions)[:-1], operation(x, positions)[:-1], atol=1e-4)


def of_the_lesson(operation, x, positions):
    here, order, foreign = operation(x, positions), torch.randperm(len(x)), torch.randn(3, x.shape[1])
    moved = operation(x[order], positions[order])
    behind = operation(torch.cat((foreign, x)), torch.cat((positions[:3], positions)))
    return torch.allclose(moved, here[order], atol=1e-4) and torch.allclose(behind[3:], here, atol=1e-4)


def foreign_behind(operation, x, positions):
    both = operation(torch.cat((x, torch.randn_like(x))), torch.cat((positions, positions)))
    return torch.allclose(both[: len(x)], operation(x, positions), atol=1e-4)


def always_true(operation, x, positions):
    return True


CLOSE = "torch.allclose(alone[0], together[row], atol=1e-4)"
ROW_MISTAKES = [
    ("moved", "you only move the rows about: an operation that mixes all rows alike does not notice", permuted),
    ("neighbours", "you change the neighbours, and never the row's place in the stream", other_neighbours),
    ("last neighbour", "you change the last row and look at those before it: rows may meet elsewhere", other_last),
    ("foreign behind", "you put foreign rows behind only: an operation that looks back does not notice",
     foreign_behind),
    ("of the lesson", "you move the rows and put foreign ones in front, as the lesson does: that does not see all",
     of_the_lesson),
    ("always True", "you say True of every operation: the test must be able to fail", always_true),
    ("bits", "you ask for equal bits: a product may add up one row in another order than many", (CLOSE,
     "torch.equal(alone[0], together[row])")),
    ("loose", "you allow so large a difference that a small share of other rows passes", ("1e-4", "0.1")),
    ("wide", "you allow a larger difference than 0.0001: a thousandth of another row passes", ("1e-4", "0.01")),
    ("first row", "you look at the first row only: what is causal leaves that one alone",
     ("range(len(x))", "range(1)")),
    ("last row", "you look at the last row only", ("range(len(x))", "[len(x) - 1]")),
    ("position", "the row alone must keep its own position", ("positions[here])", "positions[:1])")),
    ("one is enough", "one row that stays as it is does not prove it of all",
     ("return False\n    return True", "continue\n        return True\n    return False")),
    ("inverted", "your answer is the wrong way round", ("return False", "return 0"), ("return True", "return False"),
     ("return 0", "return True")),
]  # fmt: skip


def draw_operations(random):
    return [(name, random.randint(1, 10**6)) for name in rows.OPERATIONS]


@exercise("3.3", points=4, solution=is_row_wise, mistakes=ROW_MISTAKES)
def check_3_3(c, answer):
    runs = c.cases("it answers", answer, [(name, 1) for name in rows.OPERATIONS], rows.asked, drawn=draw_operations)
    odd = next((run.got for run in runs if not is_answer(run.got)), None)
    if not c.true("True or False", odd is None, f"you have {quote(odd)}, where True or False is needed", points=0):
        return c.wait("the rest")
    lines = ("row-wise operations", rows.ROW_WISE), ("operations in which rows meet", rows.MEETING)
    wrong = {line: [run for run in runs if run.case[0] in names and run.got != run.want] for line, names in lines}
    alike = len({bool(run.got) for run in runs}) == 1
    if not c.true("it tells operations apart", not alike, "you say the same of all operations", points=0):
        return c.wait("the rest")
    for line, runs in wrong.items():
        told = f"of {runs[0].case[0]!r} you say {quote(runs[0].got)}" if runs else ""
        count = "1 answer is" if len(runs) == 1 else f"{len(runs)} answers are"
        c.true(line, not runs, f"{told}; {count} wrong", points=2)


def is_answer(got) -> bool:
    """True, False, or what NumPy and torch have for them."""
    return isinstance(got, bool) or (str(getattr(got, "dtype", "")).endswith("bool") and got.shape == ())


# 3.4


def sample(logits, temperature, top_p, noise):
    """The next token of each request: logits [n, vocab] -> tokens [n]."""
    scaled = logits / temperature.clamp(min=1e-5)[:, None]
    ordered, ids = scaled.sort(dim=-1, descending=True)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability
    ordered = ordered.masked_fill(before >= top_p[:, None], -torch.inf)
    kept = torch.empty_like(scaled).scatter(-1, ids, ordered)
    drawn = (kept + noise).argmax(-1)
    return torch.where(temperature > 0, drawn, logits.argmax(-1))


T = "logits / temperature.clamp(min=1e-5)[:, None]"
SAMPLE_MISTAKES = [
    ("always drawn", "temperature 0 still adds noise to the plain logits",
     ("torch.where(temperature > 0, drawn, logits.argmax(-1))", "drawn"),
     (T, "logits / torch.where(temperature > 0, temperature, torch.ones(()))[:, None]")),
    ("always greedy", "you take the most likely token, and use no noise", ("kept + noise", "kept")),
    ("by zero", "you divide by temperature 0: the numbers are no longer finite", (T, "logits / temperature[:, None]"),
     ("torch.where(temperature > 0, drawn, logits.argmax(-1))", "drawn")),
    ("along the rows", "the cumulative probability runs over the requests, and not over the tokens of each",
     ("cumsum(-1)", "cumsum(0)")),
    ("all greedy", "one request at temperature 0 makes the whole batch greedy",
     ("temperature > 0", "temperature.min() > 0")),
    ("first's temperature", "all requests get the first one's temperature", ("1e-5)[:, None]", "1e-5)[0]")),
    ("times", "you multiply by the temperature: a high one must flatten the probabilities", (" / temp", " * temp")),
    ("no temperature", "the temperature is not used where it is above 0", (T, "logits")),
    ("noise too", "in the sum with the noise the temperature changes nothing: scale the logits, and only them",
     ("kept + noise", "kept + noise / temperature.clamp(min=1e-5)[:, None]")),
    ("crossing", "the token that crosses top_p is left out: it belongs to those that reach it",
     ("before >=", "before + probability >")),
    ("no top_p", "top_p is not used", ("top_p[:, None]", "torch.inf")),
    ("first's top_p", "all requests get the first one's top_p", ("top_p[:, None]", "top_p[0]")),
    ("before temperature", "top_p counts the probabilities after the temperature",
     ("ordered.softmax(-1)", "logits.gather(-1, ids).softmax(-1)")),
    ("single", "top_p bounds the sum of the likeliest tokens, not each token by itself", ("before >= top_p[:, None]",
     "probability < 1 - top_p[:, None]")),
    ("unlikeliest", "you sort from the least likely token up, and keep those", ("descending=True", "descending=False")),
    ("rank", "you return a place in the sorted order, where a token id is needed",
     ("(kept + noise)", "(ordered + noise.gather(-1, ids))")),
    ("sorted noise", "the logits are sorted and the noise is not: each token has its own noise",
     ("(kept + noise).argmax(-1)", "ids.gather(-1, (ordered + noise).argmax(-1, keepdim=True))[:, 0]")),
    ("not sorted back", "you add the noise to logits that are still sorted, and return a place in that order",
     ("(kept + noise)", "(ordered + noise)")),
    ("one noise", "all requests get the first one's noise", ("kept + noise", "kept + noise[0]")),
    ("probabilities", "Gumbel noise belongs to the logits: you add it to the probabilities",
     ("(kept + noise)", "(kept.softmax(-1) + noise)")),
    ("own generator", "you draw with torch's generator, which all requests share, and not with the noise",
     ("(kept + noise).argmax(-1)", "kept.softmax(-1).multinomial(1)[:, 0]")),
]  # fmt: skip


def draw_settings(random):
    own = [(random.choice((0.0, 0.4, 1.0, 1.7)), random.choice((0.15, 0.5, 0.85, 1.0))) for _ in range(7)]
    return [(tuple(own), random.randint(1, 10**6))]


def wrong_token(run) -> str:
    _, temperature, top_p, _ = rows.batch_of(run.case)
    for row, (got, want) in enumerate(zip(run.got.tolist(), run.want.tolist())):
        if got != want:
            told = f"request {row}, at temperature {temperature[row]:.2g} and top_p {top_p[row]:.2g}, gets token {got}"
            return f"{told}; `given.batch_of({run.case})` gives the inputs"
    return ""


def changed_logits(answer, case) -> bool:
    logits, *others = rows.batch_of(case)
    before = logits.clone()
    torch.manual_seed(case[1])
    ends(answer, logits, *others)
    return not torch.equal(before, logits)


@exercise("3.4", points=6, solution=sample, mistakes=SAMPLE_MISTAKES, part=True)
def check_3_4(c, answer):
    cases = [(name, seed) for seed, name in enumerate(rows.SETTINGS)]
    runs = c.cases("it draws", answer, cases, rows.drawn_tokens, drawn=draw_settings)
    odd = [run.got for run in runs if getattr(run.got, "shape", None) != run.want.shape or run.got.is_floating_point()]
    told = f"you have {quote(odd[0])}, where a tensor of {rows.REQUESTS} token ids is needed" if odd else ""
    if not c.true("one token id for each request", not odd, told, points=0):
        return c.wait("the rest")
    changed = any(changed_logits(answer, run.case) for run in runs)
    if not c.true("logits stay as they are", not changed, "you change logits in place: make a copy", points=0):
        return c.wait("the rest")
    others = [wrong_token(run) for run in runs[1:4]]
    if not c.true("temperature above 0 draws", not all(others), next(filter(None, others), ""), points=0):
        return c.wait("the rest")
    for name, run in zip(rows.SETTINGS, runs):
        own = runs[4:] if name == "each with its own" else [run]
        trouble = next(filter(None, map(wrong_token, own)), "")
        c.true(name, not trouble, trouble)
    whole = rows.batch_of(cases[-1])

    def alone():
        """The first request that gets another token alone than in the batch; "" where none does."""
        for row, token in enumerate(runs[4].got.tolist()):
            if ends(answer, *(part[row : row + 1] for part in whole)).tolist() != [token]:
                return f"request {row} gets another token alone than among {rows.REQUESTS}"
        return ""

    c.equal("the same token alone and in the batch", alone, "", because=lambda got, _: got)


def iteration(model, batch):
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
            own = slice(0, len(r.tokens))
            keys, values = r.keys[layer, own], r.values[layer, own]
            parts.append(attend(q[start:end], keys, values))
        return torch.cat(parts)

    hidden = model(torch.tensor(tokens), torch.tensor(positions), attend_all)
    last = torch.tensor(starts[1:]) - 1
    for r, token in zip(batch, model.logits(hidden[last]).argmax(-1).tolist()):
        r.computed = len(r.tokens)
        r.tokens.append(token)


def keys_cut(by):
    return ("slice(0, len(r.tokens))", f"slice(0, {by})")


BUG_MISTAKES = [
    ("unrepaired", "some requests read too many keys, and others too few",
     rows.broken_iteration),
    ("end", "you cut the keys at `end`, which counts rows of the stream, not keys of the request", keys_cut("end")),
    ("new rows", "a request reads only as many keys as it has new rows: the older ones are needed as well",
     keys_cut("end - start")),
    ("computed", "the keys that this iteration writes are left out: a row reads its own key as well",
     keys_cut("max(1, r.computed)")),
    ("shortest", "all requests read as many keys as the shortest has", keys_cut("min(len(o.tokens) for o in batch)")),
    ("longest", "all requests read as many keys as the longest has", keys_cut("max(len(o.tokens) for o in batch)")),
    ("and one", "`computed` + 1 is the length in a decode only: a prompt brings more new keys",
     keys_cut("r.computed + 1")),
    ("buffer", "each request reads all its K/V slots, also those that hold none of its tokens",
     keys_cut("r.keys.shape[1]")),
    ("one by one", "you run the model once for each request: the tokens are right, but it is no batch",
     ("batch):\n", "batch):\n    if len(batch) > 1:\n        return [iteration(model, [r]) for r in batch]\n")),
    ("not moved", "`computed` does not move: the line that sets it is missing",
     ("        r.computed = len(r.tokens)\n", "")),
    ("anew", "the whole request is computed anew in each iteration: its older keys are there already",
     ("r.tokens[r.computed :]", "r.tokens"), ("range(r.computed, length)", "range(length)"),
     ("[layer, r.computed : len", "[layer, : len")),
    ("from 0", "your positions begin at 0 in each iteration: they were right as they stood",
     ("range(r.computed, length)", "range(length - r.computed)")),
    ("one short", "the keys are one too short: a row reads its own key as well", keys_cut("max(1, len(r.tokens) - 1)")),
    ("along the stream", "your positions count along the stream: they were right as they stood",
     ("torch.tensor(positions)", "torch.arange(len(tokens))")),
    ("first rows", "each next token comes from a request's first row: the last one was right",
     ("starts[1:]) - 1", "starts[:-1])")),
]  # fmt: skip


def draw_joins(random):
    questions = rows.QUESTIONS
    return [tuple((random.choice(questions), random.randint(0, 4)) for _ in range(random.randint(2, 4))) for _ in "ab"]


def wrong_output(run) -> str:
    joins = rows.BATCHES[run.case] if isinstance(run.case, str) else run.case
    for (question, first), got, want in zip(joins, run.got[0], run.want[0]):
        if got != want:
            place = next((n for n, (a, b) in enumerate(zip(got, want), 1) if a != b), len(got))
            return f"{question!r}, which joins in iteration {first + 1}, goes wrong at its token {place}"
    return ""


@exercise("3.5", points=4, solution=iteration, mistakes=BUG_MISTAKES)
def check_3_5(c, answer):
    runs = c.cases("it runs", answer, rows.BATCHES, rows.ran, drawn=draw_joins)
    each, prefill, *alike = runs[:4]
    trouble = wrong_output(prefill)
    if not c.true("prompts of unequal length", not trouble, trouble, points=0):
        return c.wait("the rest")
    groups = {"a request alone, and two alike": alike, "both prefill": [prefill], "one of each": [each, *runs[4:]]}
    for name, group in groups.items():
        trouble = next(filter(None, map(wrong_output, group)), "")
        c.true(name, not trouble, trouble)
    more = next((run for run in runs if run.got[1] != run.want[1]), None)
    told = f"you have {len(more.got[1])} calls with {sum(more.got[1])} rows" if more else ""
    c.true("one call of the model in each iteration, one row for each new token", more is None, told)
