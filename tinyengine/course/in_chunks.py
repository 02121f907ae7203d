"""What exercise 6.3 needs: one request's attention, computed chunk by chunk on the small device, and the real engine
with an answer in it."""

from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from unittest.mock import patch

import torch

from tinyengine.course.checks import ends, quote
from tinyengine.course.plugged import plugged
from tinyengine.course.small_device import SmallDevice, moved_bits, numbers
from tinyengine.invariant import Invariant
from tinyengine.invariant.attention import one_query
from tinyengine.invariant.envelope import bits, tested_operators
from tinyengine.invariant.operators import InvariantOperators
from tinyengine.model.load import load_model
from tinyengine.request import SamplingParams
from tinyengine.workload import workload

SPLIT = 16  # keys of a split
LINES = 1_000_000  # of Python: a loop over queries and heads takes many


@cache
def tiny():
    return load_model("tiny", device="cpu")


@cache
def refusal() -> str:
    """Why the package makes no invariant engine on this machine; "" where it does."""
    try:
        tested_operators(tiny())
    except RuntimeError as error:
        return str(error)
    return ""


def engine(num_slots: int = 320, max_num_seqs: int = 4, stage: str = "invariant", **parts):
    """The real engine with these parts of the learner's. Where the package refuses stage invariant, its operators are
    taken untested: attention is what an exercise asks for."""
    operators = (lambda model: InvariantOperators()) if refusal() else Invariant.operators
    with patch.object(Invariant, "operators", staticmethod(operators)):
        return plugged(tiny(), stage, parts, max_num_seqs=max_num_seqs, num_slots=num_slots)


def served(**parts) -> list[list[int]]:
    """The tokens of the course's eight requests."""
    return [output.token_ids for output in workload("course").replay(engine(**parts))]


def moved_logits(prompts, stage: str = "invariant", **parts) -> str:
    """Serves each prompt alone and all together, and says how many logits have other bits together than alone."""

    def logits(batch):
        made, seen = engine(1024, 8, stage, **parts), {}
        compute = made.logits

        def watched(rows):
            out = compute(rows)
            seen.update({(request.request_id, length): row for row, (request, length) in zip(out, rows.wanted)})
            return out

        made.logits = watched
        made.generate(batch, SamplingParams(max_tokens=16))
        return [{length: row for (name, length), row in seen.items() if name == f"r{n}"} for n in range(len(batch))]

    moved = every = 0
    for prompt, together in zip(prompts, logits(prompts)):
        [alone] = logits([prompt])
        for length in alone.keys() & together.keys():
            moved += int((bits(alone[length]) != bits(together[length])).sum())
            every += alone[length].numel()
    told = f"{moved:,} of {every:,} logits moved"
    return f"{told} ({refusal()})" if stage == "invariant" and refusal() else told


def request(length: int, seed: int = 0):
    """q [length, 4, 8], keys and values [length, 2, 8] of a request."""
    return list(numbers(length, 8, 8, seed=1000 * length + seed).split([4, 2, 2], dim=1))


def cut(attention, parts, chunks, split: int = SPLIT, first: int = 0):
    """What the attention gives for these chunks of a request, one behind the other, from position `first` on."""
    q, keys, values = parts
    ends_at = accumulate(chunks, initial=first)
    out = [attention(q[start:end], keys[:end], values[:end], split) for start, end in pairwise(ends_at)]
    return torch.cat(out)


@dataclass
class Attended:
    """odd: a sentence for something that is no result. off: a position and what is wrong with it, in a sentence.
    moved: a sentence for each chunking that moved a bit. cost: products and sums of the whole, and its splits."""

    odd: str = ""
    off: str = ""
    positions: list = field(default_factory=list)
    moved: list = field(default_factory=list)
    cost: tuple = (0, 0)


def attended(answer, case) -> Attended | None:
    """case: (length, first, chunkings, seed). Computes the positions from `first` on: in one chunk, then as in each of
    the chunkings, on the small device."""
    length, first, chunkings, seed = case
    parts, seen = request(length, seed), Attended()
    one = None
    for chunks in ([length - first], *chunkings):
        out = []
        with SmallDevice() as device:
            for start, end in pairwise(accumulate(chunks, initial=first)):
                q, keys, values = (part[lo:end].clone() for part, lo in zip(parts, (start, 0, 0)))
                got = ends(answer, q, keys, values, SPLIT, lines=LINES)
                if got is None:
                    return None
                if not isinstance(got, torch.Tensor) or got.shape != q.shape:
                    seen.odd = f"for {end - start} queries and {end} keys you give {quote(got)}, which is not q's shape"
                    return seen
                out.append(got.detach().float())
        out = torch.cat(out)
        if one is None:
            one, seen.cost = out, (device.sums + len(device.products), -(-length // SPLIT))
            seen.off, seen.positions = wrong_position(one, parts, first)
            continue
        places = [row for row in range(len(one)) if moved_bits(one[row], out[row])]
        if places:
            both = moved_bits(one[places[0]], out[places[0]]).replace(" and", f" in a chunk of {length - first} and")
            where = f"the query at position {first + places[0]}"
            seen.moved.append(f"{length} keys: {where} has {both} in chunks of {told(chunks)}")
            seen.positions.append([first + place for place in places])
    return seen


def told(chunks) -> str:
    """7, 7, 7, 2; or 1 (30 of them)"""
    if len(chunks) > 5 and len(set(chunks)) == 1:
        return f"{chunks[0]} ({len(chunks)} of them)"
    return ", ".join(map(str, chunks[:6])) + (" and so on" if len(chunks) > 6 else "")


def wrong_position(out, parts, first: int) -> tuple[str, list]:
    """The first query that is off by more than rounding, in a sentence, and a few numbers of each that is."""
    q, keys, values = parts
    wrong = []
    for row, got in enumerate(out):
        position = first + row
        want = one_query(q[position], keys[: position + 1], values[: position + 1], SPLIT)
        if not (got - want).abs().max() < 1e-4:
            wrong.append([position, f"{got.sum():.2f}"])
    if not wrong:
        return "", []
    what = "is not a number" if out[wrong[0][0] - first].isnan().any() else "is off"
    return f"{len(keys)} keys, {len(out)} queries: the query at position {wrong[0][0]} {what}", wrong
