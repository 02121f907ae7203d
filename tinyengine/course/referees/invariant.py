"""The referee of exercises 06: a sum, a product and attention whose bits depend on no neighbour, and a test that finds
engines whose bits do. Bits are compared on a small device of ours, which is the same on every machine."""

from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from tinyengine.course import in_chunks
from tinyengine.course.checks import FORGOT, ends, quote
from tinyengine.course.exercise import exercise, outcome
from tinyengine.course.in_chunks import LINES, attended
from tinyengine.course.small_device import SmallDevice, moved_bits, numbers
from tinyengine.course.suspects import FAULTS, Suspect
from tinyengine.course.watch import some

ALONE = 10  # rows that are computed alone as well


@dataclass
class Rows:
    """What an answer gave for the same rows in several companies.

    odd: a sentence for something that is no such result. off: {row: what is no sum or product of it}.
    moved: (row, place, rows in all, bits alone and there), one for each row of a company that has other bits there.
    costs: for each call (rows, sums, rows of each product).
    """

    odd: str = ""
    off: dict = field(default_factory=dict)
    moved: list = field(default_factory=list)
    costs: list = field(default_factory=list)

    def told(self, what: str) -> str:
        """The first thing that is wrong, in a sentence; "" where nothing is."""
        if self.odd:
            return self.odd
        if self.off:
            row, value = next(iter(self.off.items()))
            return f"{what}: row {row} alone gives {value:.6g}, which is off"
        if self.moved:
            row, place, size, bits = self.moved[0]
            return f"{what}: row {row} has {bits.replace(' and', ' alone and')} as row {place} of {size}"
        return ""


def in_companies(function, pool, companies, want, scale, device=SmallDevice) -> Rows | None:
    """Runs a function of rows on single rows of the pool and on companies of them. want, scale: of each row, what is
    right and how large the numbers were that made it."""
    seen, alone = Rows(), {}
    for company in [[row] for row in range(ALONE)] + companies:
        with device() as used:
            got = ends(function, pool[company].clone(), lines=LINES)
        if got is None:
            return None
        shape = [len(company), *want.shape[1:]]
        if not isinstance(got, torch.Tensor) or list(got.shape) != shape or not got.is_floating_point():
            seen.odd = (
                f"for {some(len(company), 'row')} you give {quote(got)}, where a tensor of shape {shape} is needed"
            )
            return seen
        if used:
            seen.costs.append((len(company), used.sums, used.products))
        got = got.detach().float()
        for place, row in enumerate(company):
            if row not in alone and len(company) == 1:
                alone[row] = got[0]
                bad = ~((got[0].double() - want[row]).abs() <= 4e-6 * scale[row])
                if bad.any():
                    seen.off[row] = got[0][bad][0].item() if bad.ndim else got[0].item()
            elif row in alone and (bits := moved_bits(alone[row], got[place])):
                seen.moved.append((row, place, len(company), bits))
    return seen


def rows_view(seen: Rows):
    off = [[row, f"{value:.3g}"] for row, value in seen.off.items()]
    costs = [[rows, sums, len(own), sum(own)] for rows, sums, own in seen.costs]
    return [seen.odd, off, seen.moved, costs]


def rows_of(kind: str, rows: int, n: int):
    """Random rows. "cancel": large numbers that take each other away, so that the order shows in float64 too."""
    x = numbers(rows, n, seed=n)
    if kind == "small":
        return x * 2.0**-13
    if kind == "cancel":
        half, order = n // 2, torch.randperm(n, generator=torch.Generator().manual_seed(n))
        large = x[:, :half] * 2.0 ** (7 * order[:half] % 60)
        return torch.cat([large, -large.flip(-1), x[:, 2 * half :]], -1)[:, order]
    return x


def odd_line(c, runs) -> bool:
    """False, with the points left waiting, where an answer gives no result of the right form."""
    odd = next((run.got.odd for run in runs if run.got.odd), "")
    return c.true("a result of the right form", not odd, odd, points=0) or bool(c.wait("the rest"))


# 6.1: name: (numbers of a row, kind)

SUMS = {
    "rows of 20 numbers": (20, "plain"),
    "rows of 75 numbers": (75, "plain"),
    "rows of 200 small numbers": (200, "small"),
    "rows of 150 numbers, large ones that cancel": (150, "cancel"),
    "rows of 1,100 numbers": (1100, "plain"),
}
COMPANIES = [[0, 1], [5, 6, 7], [*range(9, -1, -1)], [*range(60, 100), *range(10)], [*range(100)]]
MOST_SUMS = 50
UNUSED = "right bits, but you never use the device"


def invariant_sum(x):
    """The sum of each row: x [rows, n] -> [rows]."""
    total = torch.zeros(len(x))
    for start in range(0, x.shape[1], 32):
        total = total + x[:, start : start + 32].sum(-1)
    return total


def halves(x):
    half = x.shape[1] // 2
    return x[:, :half].sum(-1) + x[:, half:].sum(-1)


def row_by_row(x):
    return torch.cat([row[None].sum(-1) for row in x])


def whole(x):
    return x.sum(-1)


def in_float64(x):
    return x.double().sum(-1).float()


def rounded(x):
    return (x.sum(-1) * 1000).round() / 1000


ADD = "total = total + x[:, start : start + 32].sum(-1)"
SUM_MISTAKES = [
    ("whole", "you leave a whole row to one sum, and the device cuts it by the number of rows", whole),
    ("halves", "half a row can still be longer than what is always added in one order", halves),
    ("too long", "your pieces are so long that the device cuts them again", ("x.shape[1], 32)", "x.shape[1], 64)"),
     ("start + 32]", "start + 64]")),
    ("by rows", "the size of your pieces depends on how many rows there are",
     ("    total = torch", "    size = max(1, 32 // len(x))\n    total = torch"),
     ("x.shape[1], 32)", "x.shape[1], size)"), ("start + 32]", "start + size]")),
    ("rest", "what is left behind the last full piece is not added",
     ("x.shape[1], 32)", "x.shape[1] // 32 * 32, 32)")),
    ("overlap", "your pieces overlap: a number is added more than once", ("start + 32]", "start + 33]")),
    ("summed again", "one more sum adds the sums of the pieces, and a long row has too many pieces for that",
     ("total = torch.zeros(len(x))", "parts = []"), (ADD, "parts.append(x[:, start : start + 32].sum(-1))"),
     ("return total", "return torch.stack(parts, 1).sum(-1)")),
    ("float64", "you add in float64: there too the order shows, where large numbers cancel", in_float64),
    ("rounded", "you round the sum: that loses digits, and two sums on both sides of a border still part", rounded),
    ("row by row", "you make a sum for each row: right bits, but a sum for every row is dear", row_by_row),
    ("columns", "you add up the columns, and each row has a sum", ("return total", "return x.sum(0)")),
    ("last piece", "only the last piece of a row is in your result", (ADD, ADD.replace("total + ", ""))),
]  # fmt: skip


def draw_rows(random):
    return [(random.randint(33, 400), "plain") for _ in range(2)]


def companies_of_sums(answer, case):
    n, kind = SUMS[case] if isinstance(case, str) else case
    pool = rows_of(kind, 100, n)
    return in_companies(answer, pool, COMPANIES, pool.double().sum(-1), pool.double().abs().sum(-1))


@exercise("6.1", points=5, solution=invariant_sum, mistakes=SUM_MISTAKES)
def check_6_1(c, answer):
    runs = c.cases("it adds", answer, SUMS, companies_of_sums, rows_view, draw_rows)
    if not odd_line(c, runs):
        return
    names = [*SUMS, *(f"rows of {n} numbers" for n, _ in (run.case for run in runs[len(SUMS) :]))]
    troubles = [run.got.told(name) for run, name in zip(runs, names)]
    off = next((trouble for run, trouble in zip(runs, troubles) if run.got.off), "")
    if not c.true("each sum is the sum of its row", not off, off):
        return c.wait("the rest")
    right = True
    for name, own in {
        "the same bits in any company": [0, 1, 2, *range(len(SUMS), len(runs))],
        "the same bits where large numbers cancel": [3],
        "the same bits in long rows": [4],
    }.items():
        trouble = next(filter(None, (troubles[index] for index in own)), "")
        right = c.true(name, not trouble, trouble) and right
    if not right:
        return c.wait("the price")
    most = max(sums for run in runs for rows, sums, _ in run.got.costs if rows == 100)
    if most:
        c.par("sums for 100 rows", most, MOST_SUMS)
    else:
        c.true("sums for 100 rows", False, UNUSED)


# 6.2: name: (sizes of companies, k, tile, kind)
PRODUCTS = {
    "fewer rows than a tile": ([2, 3, 7], 20, 8, "plain"),
    "full tiles": ([8, 16], 20, 8, "plain"),
    "more rows than a tile": ([9, 20, 63], 20, 8, "plain"),
    "tiles of 12 rows": ([8, 13, 24, 30], 28, 12, "plain"),
    "large numbers that cancel": ([3, 9, 11], 30, 8, "cancel"),
}


def linear(x, weight, tile=8):
    """x [rows, k], weight [out, k] -> [rows, out]."""
    rows = len(x)
    padded = F.pad(x, (0, 0, 0, -rows % tile))
    return F.linear(padded, weight)[:rows]


def as_they_come(x, weight, tile=8):
    return F.linear(x, weight)


def one_by_one(x, weight, tile=8):
    return torch.cat([F.linear(row[None], weight) for row in x])


def wide(x, weight, tile=8):
    missing = -x.shape[1] % tile
    return F.linear(F.pad(x, (0, missing)), F.pad(weight, (0, missing)))


def last_tile_short(x, weight, tile=8):
    return torch.cat([F.linear(part, weight) for part in x.split(tile)])


def linear_in_float64(x, weight, tile=8):
    return F.linear(x.double(), weight.double()).float()


PAD = "-rows % tile"
LINEAR_MISTAKES = [
    ("as they come", "the product gets the rows as they come, and a tile that is not full has another order",
     as_they_come),
    ("one by one", "a product for each row: right bits, but the whole weight is read for every row", one_by_one),
    ("single", "you fill up a single row, and leave other tiles that are not full",
     (PAD, f"{PAD} if rows == 1 else 0")),
    ("one tile", "you fill up the first tile only: more rows than a tile end in one that is not full",
     (PAD, "max(0, tile - rows)")),
    ("own tile", "you do not look at `tile`: a device may have others", (PAD, "-rows % 8")),
    ("power of two", "you fill up to a power of two, and the small ones fill no tile",
     (PAD, "2 ** (rows - 1).bit_length() - rows")),
    ("a tile more", "where the rows fill their tiles you add a whole tile of padding", (PAD, "tile - rows % tile")),
    ("always 64", "you fill up to many rows, also where few come: most of what you compute is padding",
     (PAD, "-rows % (8 * tile)")),
    ("not cut", "you give the results of the padding too", ("[:rows]", "")),
    ("in front", "your padding stands in front, and you cut the rows off behind",
     (f"(0, 0, 0, {PAD})", f"(0, 0, {PAD}, 0)")),
    ("wide", "you fill up the numbers of each row, and rows are missing", wide),
    ("last tile", "you cut the rows in tiles, and the last one is as short as before", last_tile_short),
    ("float64", "you multiply in float64: there too the order shows, where large numbers cancel", linear_in_float64),
]  # fmt: skip


def draw_products(random):
    return [([random.randint(2, 40) for _ in range(3)], random.randint(17, 40), random.choice((8, 12)), "plain")]


def companies_of_products(answer, case, device=None):
    sizes, k, tile, kind = PRODUCTS[case] if isinstance(case, str) else case
    pool, weight = rows_of(kind, 64, k), numbers(6, k, seed=k + 1)
    if kind == "cancel":
        weight = weight[:, :1].sign().repeat(1, k)
    want, scale = pool.double() @ weight.double().T, pool.double().abs() @ weight.double().abs().T
    companies = [
        company for size in sizes for company in ([*range(size)], [*range(64 - size, 64), *range(ALONE)][-size:])
    ]

    def function(x):
        return answer(x, weight.clone(), tile)

    return in_companies(function, pool, companies, want, scale, device or (lambda: SmallDevice(tile)))


def moved_by_torch(answer) -> str:
    """The first row that torch's own product moves here, in a sentence, with tiles that hold for the solution; "" where
    none is moved, or where torch has no such tile here."""
    for tile in (8, 16, 32):
        case = [2, 3, 5, 9, 17, 33, 64], 64, tile, "plain"
        seen = [companies_of_products(function, case, nullcontext) for function in (linear, answer)]
        if not seen[0].moved:
            return seen[1].told("torch's own product") if seen[1] else FORGOT
    return ""


@exercise("6.2", points=6, solution=linear, mistakes=LINEAR_MISTAKES)
def check_6_2(c, answer):
    runs = c.cases("it multiplies", answer, PRODUCTS, companies_of_products, rows_view, draw_products)
    if not odd_line(c, runs):
        return
    troubles = [run.got.told(run.case if isinstance(run.case, str) else "other sizes") for run in runs]
    off = next((trouble for run, trouble in zip(runs, troubles) if run.got.off), "")
    if not c.true("each row is multiplied by the weight", not off, off):
        return c.wait("the rest")
    right = True
    for name, own in {
        "the same bits in fewer rows than a tile": troubles[:2],
        "the same bits in more rows, and in other tiles": troubles[2:],
    }.items():
        trouble = next(filter(None, own), "")
        right = c.true(name, not trouble, trouble) and right
    if not right:
        return c.wait("torch's own product, and the price")
    c.equal("the same bits with torch's own product", lambda: moved_by_torch(answer), "", because=lambda got, _: got)
    costs = [(rows, own, tile_of(run.case)) for run in runs for rows, _, own in run.got.costs]
    many = next(((rows, own) for rows, own, tile in costs if len(own) > -(-rows // tile)), None)
    used = any(own for _, own, _ in costs)
    c.true("no more products than tiles", used and not many,
           lambda: f"for {some(many[0], 'row')} you make {len(many[1])} products" if used else UNUSED)  # fmt: skip
    dear = next(((rows, own) for rows, own, tile in costs if sum(own) >= rows + tile), None)
    c.true("no more padding than a tile needs", not dear,
           lambda: f"for {some(dear[0], 'row')} your products compute {sum(dear[1])}")  # fmt: skip


def tile_of(case) -> int:
    return (PRODUCTS[case] if isinstance(case, str) else case)[2]


# 6.3: name: (length, first, chunkings, seed)
CHUNKINGS = {
    "one split": (13, 0, [[5, 8], [1] * 13], 0),
    "two splits and a rest": (39, 0, [[7, 7, 7, 7, 7, 4], [16, 16, 7]], 0),
    "decodes behind a prompt": (38, 0, [[30, *[1] * 8], [17, 21]], 0),
    "older keys": (70, 61, [[2, 3, 4], [1] * 9], 0),
    "35 splits": (555, 545, [[3, 7]], 0),
    "32 queries at once": (64, 32, [], 0),
}
MOST_CALLS = 48  # products and sums for each split of 32 queries at once


def fixed_split_attention(q, keys, values, split=128, tile=8):
    """Causal attention of one request's newest queries -> [n, heads, d]."""
    n, length = len(q), len(keys)
    group = q.shape[1] // keys.shape[1]  # query heads that share a K/V head
    query = F.pad(q / q.shape[2] ** 0.5, (0, 0, 0, 0, 0, -n % tile)).transpose(0, 1)
    position = torch.arange(length - n, length - n + query.shape[1])[:, None]
    best = torch.full((*query.shape[:2], 1), -torch.inf)  # [heads, rows, 1]
    total, sums = torch.zeros_like(best), torch.zeros_like(query)
    for start in range(0, length, split):
        k, v = keys[start : start + split], values[start : start + split]
        k, v = (F.pad(x, (0, 0, 0, 0, 0, split - len(x))) for x in (k, v))
        k, v = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
        scores = query @ k.transpose(1, 2)  # [heads, rows, split]
        behind = torch.arange(start, start + split) > position
        scores = scores.masked_fill(behind, -torch.inf)
        higher = torch.maximum(best, scores.amax(-1, keepdim=True))
        shrink, weights = (best - higher).exp(), (scores - higher).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        sums = sums * shrink + weights @ v
        best = higher
    return (sums / total).transpose(0, 1)[:n]


def one_softmax(q, keys, values, split=128, tile=8):
    n, length = len(q), len(keys)
    k, v = (x.repeat_interleave(q.shape[1] // keys.shape[1], dim=1) for x in (keys, values))
    query = F.pad(q / q.shape[2] ** 0.5, (0, 0, 0, 0, 0, -n % tile)).transpose(0, 1)
    scores = query @ k.permute(1, 2, 0)
    behind = torch.arange(length) > torch.arange(length - n, length - n + query.shape[1])[:, None]
    weights = scores.masked_fill(behind, -torch.inf).softmax(-1)
    return (weights @ v.transpose(0, 1)).transpose(0, 1)[:n]


def put_together_by_a_sum(q, keys, values, split=128, tile=8):
    n, length = len(q), len(keys)
    query = F.pad(q / q.shape[2] ** 0.5, (0, 0, 0, 0, 0, -n % tile)).transpose(0, 1)
    position = torch.arange(length - n, length - n + query.shape[1])[:, None]
    parts, sizes = [], []
    for start in range(0, length, split):
        k, v = (F.pad(x, (0, 0, 0, 0, 0, split - len(x))) for x in (keys[start:][:split], values[start:][:split]))
        k, v = (x.repeat_interleave(q.shape[1] // keys.shape[1], dim=1).transpose(0, 1) for x in (k, v))
        scores = (query @ k.transpose(1, 2)).masked_fill(torch.arange(start, start + split) > position, -1e30)
        parts.append(scores.softmax(-1) @ v)
        sizes.append(scores.logsumexp(-1, keepdim=True))
    shares = torch.stack(sizes).softmax(0)
    return (shares * torch.stack(parts)).sum(0).transpose(0, 1)[:n]


FILL = "F.pad(x, (0, 0, 0, 0, 0, split - len(x)))"
POSITION = "torch.arange(length - n, length - n + query.shape[1])"
ROOT = "q / q.shape[2] ** 0.5"
LOOP = "for start in range(0, length, split):\n        "
LOOP += "k, v = keys[start : start + split], values[start : start + split]"
SEEN = "behind = torch.arange(start, start + split) > position"


def cut_at(borders):
    """Changes: splits between these borders."""
    return (
        (LOOP, f"borders = {borders}\n    for start, end in zip(borders, [*borders[1:], length]):\n"
         "        k, v = keys[start:end], values[start:end]"),
        (SEEN, f"{SEEN} - 0 * position\n        behind = behind | (torch.arange(split) >= end - start)"),
    )  # fmt: skip


ATTENTION_MISTAKES = [
    ("one softmax", "you take one softmax over all keys: its sum is as long as the request, and has no splits",
     one_softmax),
    ("by count", "the number of your splits is fixed, so their borders move as the request grows",
     *cut_at("[*range(0, length, max(1, -(-length // 4)))]"), ("split - len(x)", "max(0, split - len(x))"),
     ("range(start, start + split)", "range(start, start + k.shape[1])"), ("arange(split)", "arange(k.shape[1])")),
    ("new keys apart", "your splits are cut where the new keys begin, so the chunk decides about the borders",
     *cut_at("[*range(0, length - n, split), *range(length - n, length, split)]")),
    ("from the end", "your splits are counted from the newest key, so their borders move with each token",
     *cut_at("[0] * (length % split > 0) + [*range(length % split, length, split)]")),
    ("as they come", "your products have as many rows as queries come, and a tile that is not full has another order",
     ("-n % tile", "0")),
    ("short split", "the last split is as short as there are keys: with more keys the same sum is cut elsewhere",
     (FILL, "x"), ("torch.arange(start, start + split) >", "torch.arange(start, start + k.shape[1]) >")),
    ("put together", "you put all splits together by one sum: from 33 splits on the device cuts that one too",
     put_together_by_a_sum),
    ("nothing seen", "a query that sees no key of a split gets a softmax of nothing there, which is not a number",
     put_together_by_a_sum, ("-1e30", "-torch.inf")),
    ("query by query", "you compute query by query: right bits, but far too many products",
     ("    n, length = len(q), len(keys)\n", "    n, length = len(q), len(keys)\n    if n > 1:\n        ends = "
      "range(length - n + 1, length + 1)\n        return torch.cat([fixed_split_attention(q[end - length - 1 :][:1], "
      "keys[:end], values[:end], split, tile) for end in ends])\n")),
    ("no mask", "a query sees the keys behind it, and the padding of the last split", (SEEN, "behind = position < 0")),
    ("top left", "the first query is not the first token: older keys stand before it",
     (POSITION, "torch.arange(query.shape[1])")),
    ("not itself", "a query does not see its own key", ("split) > position", "split) >= position")),
    ("no scale", "the scores are not divided by the square root of the head's size", (ROOT, "q")),
    ("other heads", "query heads share the wrong K/V head: the first `group` of them share the first one",
     (".repeat_interleave(group, dim=1)", ".repeat(1, group, 1)")),
    ("no shrink", "the older splits' sums stay as they are when a larger score comes",
     ("shrink, weights = (best - higher).exp(), ", "shrink, weights = torch.ones_like(best), ")),
    ("only values", "you correct the sum of the values, and not the sum of the weights",
     ("total = total * shrink", "total = total")),
    ("last split", "the result has the values of the last split only", ("sums = sums * shrink +", "sums =")),
    ("not cut", "you give the results of the padding too", (".transpose(0, 1)[:n]", ".transpose(0, 1)")),
]  # fmt: skip


def draw_chunkings(random):
    cases = []
    for _ in range(2):
        chunks = [random.randint(1, 20) for _ in range(random.randint(2, 5))]
        cases.append((sum(chunks), 0, [chunks, chunks[::-1]], random.randint(1, 999)))
    return cases


def attend_in_chunks(answer, case):
    return attended(answer, CHUNKINGS[case] if isinstance(case, str) else case)


def is_dear(seen) -> bool:
    calls, splits = seen.cost
    return calls > MOST_CALLS * splits


def attention_view(seen):
    return [seen.odd, seen.positions, is_dear(seen)]


def is_uncut(answer, length) -> bool:
    """Splits of another size move no bit of a request's."""
    with SmallDevice():
        one, two = (in_chunks.cut(answer, in_chunks.request(length), [length], split) for split in (8, 16))
    return not moved_bits(one, two)


@exercise("6.3", points=8, solution=fixed_split_attention, mistakes=ATTENTION_MISTAKES, part=True)
def check_6_3(c, answer):
    runs = c.cases("it attends", answer, CHUNKINGS, attend_in_chunks, attention_view, draw_chunkings)
    if not odd_line(c, runs):
        return
    named = dict(zip(CHUNKINGS, (run.got for run in runs)))
    drawn = [run.got for run in runs[len(CHUNKINGS) :]]
    prompts = named["one split"], named["two splits and a rest"], *drawn
    behind = named["older keys"], named["35 splits"], named["32 queries at once"]
    right = True
    lines = {"prompts get what the definition gives": prompts, "queries behind older keys too": behind}
    for name, own in lines.items():
        off = next((seen.off for seen in own if seen.off), "")
        right = c.true(name, not off, off) and right
    if not right:
        return c.wait("bits, the price and the real engine")
    for name, own in {
        "the same bits in other chunks of a short prompt": [named["one split"]],
        "the same bits in other chunks of a longer prompt": prompts[1:],
        "the same bits row by row behind a prompt": [named["decodes behind a prompt"], named["older keys"]],
        "the same bits with 35 splits": [named["35 splits"]],
    }.items():
        moved = next((seen.moved[0] for seen in own if seen.moved), "")
        right = c.true(name, not moved, moved) and right
    if not right:
        uncut, _ = outcome(is_uncut, answer, 39)
        c.true("the keys are cut", not uncut, "you do not cut at all: another `split` moves no bit", points=0)
        return c.wait("the price and the real engine")
    calls, splits = named["32 queries at once"].cost
    c.true("no more products than queries need", calls <= MOST_CALLS * splits,
           f"for 32 queries you make {calls // splits} products and sums in each split")  # fmt: skip
    told = "with it a request gets other tokens than alone"
    c.equal("the real engine gives the tokens of each request alone",
            lambda: in_chunks.served(fixed_split_attention=answer), in_chunks.served,
            because=lambda *_: told)  # fmt: skip


# 6.4

CRIES = "you say False of it: is each prompt compared with itself?"


def is_invariant(run):
    """True if nothing around a prompt moves a bit of its logits."""
    text = [7 * number % 50 for number in range(100)]
    prompts = [text, text[:30], text[1:31], text[2:40], text[:75], [3]]
    alone = [run([prompt])[0] for prompt in prompts]

    def same(order, **settings):
        together = run([prompts[number] for number in order], **settings)
        pairs = [(alone[number], got) for number, got in zip(order, together)]
        return all(torch.equal(one, two) for one, two in pairs)

    everyone = list(range(len(prompts)))
    return (
        all(same(everyone[:n]) for n in everyone[1:])
        and all(same(everyone[n:] + everyone[:n]) for n in everyone)
        and all(same(everyone, budget=budget) for budget in (1, 7, 33))
        and same([1, 2], slots=64)
        and same(everyone, caching=True)
    )


def always_true(run):
    return True


def always_false(run):
    return False


def run_again(run):
    prompts = [[7 * number % 50 for number in range(n)] for n in (5, 30, 100)]
    return all(torch.equal(one, two) for one, two in zip(run(prompts), run(prompts)))


def between_batches(run):
    prompts = [[(7 * number + n) % 50 for number in range(n)] for n in (30, 31, 40, 75, 90)]
    one, two = run(prompts), run(prompts[::-1])[::-1]
    return all(torch.equal(a, b) for a, b in zip(one, two))


EQUAL = "torch.equal(one, two)"
VARIANCE_MISTAKES = [
    ("always True", "you say True of every engine: a test must be able to fail", always_true),
    ("always False", "you say False of every engine", always_false),
    ("inverted", "your answer is the wrong way round", ("    return (\n", "    return not (\n")),
    ("foreign", "you compare a prompt's logits with those of another prompt, so every engine looks guilty",
     ("zip(order, together)", "zip(order, together[::-1])")),
    ("run again", "you run the same batch twice: nothing around the prompts has changed", run_again),
    ("between batches", "you compare one batch with another, and no prompt with itself alone", between_batches),
    ("tokens", "you compare the tokens that are chosen: a bit that moves seldom changes one",
     (EQUAL, "torch.equal(one.argmax(-1), two.argmax(-1))")),
    ("nearly", "you allow a small difference, and a moved bit is smaller", (EQUAL, "torch.allclose(one, two)")),
    ("first prompt", "you compare the first prompt of each batch only",
     ("for number, got in zip(order, together)]", "for number, got in zip(order[:1], together)]")),
    ("first token", "you compare the logits of the first new token only: faults come later too",
     (EQUAL, "torch.equal(one[0], two[0])")),
    ("short", "your prompts are short: what happens to many keys never happens",
     ("prompts = [text, text[:30], text[1:31], text[2:40], text[:75], [3]]",
      "prompts = [text[:9], text[:30], text[1:31], text[2:11], text[:5], [3]]")),
    ("pairs", "no more than two prompts ever run at once",
     ("everyone = list(range(len(prompts)))", "everyone = [0, 1]")),
    ("one budget", "you never change the budget: no prompt is cut into chunks", (", budget=budget", "")),
    ("roomy", "there is always room for all: no request is ever preempted", ("same([1, 2], slots=64)", "True")),
    ("no cache", "you never run with the prefix cache", (", caching=True", "")),
    ("nothing shared", "you turn the prefix cache on, and no prompt begins as another does",
     ("same(everyone, caching=True)", "same([1, 2, 3], caching=True)")),
]  # fmt: skip


def judged(answer, case):
    """(what the test says of this engine, the engine); None for a test that returns nothing"""
    suspect = Suspect(*case)
    said = ends(answer, suspect, lines=LINES)
    return None if said is None else (said, suspect)


def verdict_view(got):
    said, suspect = got
    return [quote(said), suspect.shown > 0, suspect.has_cached]


def draw_suspects(random):
    seed = random.randint(1, 10**6)
    return [(None, seed), *((fault, seed) for fault in FAULTS)]


@exercise("6.4", points=8, solution=is_invariant, mistakes=VARIANCE_MISTAKES)
def check_6_4(c, answer):
    cases = [(None, 0), *((fault, 0) for fault in FAULTS)]
    runs = c.cases("it answers", answer, cases, judged, verdict_view, draw_suspects)
    odd = next((run.got[0] for run in runs if not is_answer(run.got[0])), None)
    if not c.true("True or False", odd is None, f"you have {quote(odd)}, where True or False is needed", points=0):
        return c.wait("the rest")
    cries = any(run.case[0] is None and not run.got[0] for run in runs)
    if not c.true("an invariant engine is called invariant", not cries, CRIES, points=0):
        return c.wait("the faults")
    blunt = compared(runs)
    for name, fault in FAULTS.items():
        suspect = next((run.got[1] for run in runs if run.case[0] == name and run.got[0]), None)
        c.true(f"caught: {fault.title}", suspect is None, missed(suspect, fault, blunt))


def compared(runs) -> str:
    """What a test that sees large faults and no last bit most likely compares; "" where that cannot be said."""
    shown = [(FAULTS[run.case[0]].size, not run.got[0]) for run in runs if run.case[0] and run.got[1].shown]
    sizes = {size for size, caught in shown if caught}
    if not sizes or "bit" in sizes or not any(size == "bit" for size, _ in shown):
        return ""
    return "you compare with a tolerance: compare bits" if "small" in sizes else "you compare tokens: compare bits"


def missed(suspect, fault, blunt: str) -> str:
    if suspect is None:
        return ""
    if not suspect.runs:
        return "you never run the engine"
    runs = some(suspect.runs, "run")
    if not suspect.shown:
        return f"in none of your {runs} {fault.unseen}"
    if blunt:
        return f"in {suspect.shown} of your {runs} this moves bits: {blunt}"
    if suspect.shown == suspect.runs > 1:
        return f"in each of your {runs} this moves bits, alone too: what you compare moved alike"
    return f"in {suspect.shown} of your {runs} this moves bits, and you do not see it"


def is_answer(got) -> bool:
    """True, False, or what NumPy and torch have for them."""
    return isinstance(got, bool) or (str(getattr(got, "dtype", "")).endswith("bool") and got.shape == ())
