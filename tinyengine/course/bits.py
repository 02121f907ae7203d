"""The bits of floats, to look at: sign, exponent and fraction, and which of them have moved."""

from itertools import zip_longest

import torch

from tinyengine.course.display import publish
from tinyengine.invariant.envelope import bits

EXPONENT = {torch.float32: 8, torch.bfloat16: 8, torch.float16: 5}  # bits of it; one is the sign, the rest the fraction
COLOURS = "rgba(230,159,0,0.30)", "rgba(0,158,115,0.30)", "rgba(128,128,128,0.22)"  # sign, exponent, fraction
MOVED = "background: #c0392b; color: white; font-weight: bold"


def moved(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many of these floats have other bits."""
    return int((bits(a) != bits(b)).sum())


def steps(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many floats of this dtype one has to step through from one number to the other."""
    return abs(place(a) - place(b))


def place(x: torch.Tensor) -> int:
    """The number of a float, counted upwards from 0."""
    whole = int(bits(x))
    return whole if whole >= 0 else -(whole & (1 << 8 * x.dtype.itemsize - 1) - 1)


def pattern(x: torch.Tensor) -> str:
    """The bits of one float as 0 and 1, the sign first."""
    width = 8 * x.dtype.itemsize
    return f"{int(bits(x)) & (1 << width) - 1:0{width}b}"


def parts(x: torch.Tensor) -> list[str]:
    """sign, exponent and fraction."""
    whole, exponent = pattern(x), EXPONENT[x.dtype]
    return [whole[0], whole[1 : 1 + exponent], whole[1 + exponent :]]


def show_bits(numbers: dict[str, torch.Tensor]) -> None:
    """A line for each float, of one dtype: its bits, and in red those that are not as in the first line."""
    first, *others = numbers.values()
    if any(x.dtype != first.dtype for x in others):
        raise ValueError(f"show_bits() got {' and '.join(sorted({str(x.dtype) for x in numbers.values()}))}: use one.")
    digits = {torch.float32: 9, torch.bfloat16: 5, torch.float16: 6}[first.dtype]  # enough to tell neighbours apart
    said = [f"{x.item():.{digits}g}" for x in numbers.values()]
    away = ["", *(how_far(steps(first, x)) for x in others)]
    names, values = max(map(len, numbers)), max(map(len, said))
    plain = [
        f"{name:{names}}  {value:>{values}}  {' '.join(parts(x))}  {far}".rstrip()
        for (name, x), value, far in zip(numbers.items(), said, away)
    ]
    cell = "padding: 3px 8px; text-align: left"
    rows = [
        f'<tr><td style="{cell}">{name}</td><td style="{cell}; font-family: monospace">{value}</td>'
        f'<td style="{cell}; font-family: monospace; white-space: nowrap">{coloured(x, first)}</td>'
        f'<td style="{cell}">{far}</td></tr>'
        for (name, x), value, far in zip(numbers.items(), said, away)
    ]
    legend = " ".join(
        f'<span style="background: {colour}; padding: 0 6px">{name}</span>'
        for name, colour in zip(("sign", "exponent", "fraction"), COLOURS)
    )
    legend += f' <span style="{MOVED}; padding: 0 6px">moved</span>'
    table = f'<table style="margin: 4px 0">{"".join(rows)}</table><div style="font-size: 12px">{legend}</div>'
    publish("\n".join(plain), **{"text/html": table})


def how_far(n: int) -> str:
    return "the same bits" if n == 0 else f"{n:,} step{'s' * (n != 1)} away"


def coloured(x: torch.Tensor, first: torch.Tensor) -> str:
    """The bits of x as HTML, in red where those of the first are others."""
    shown = []
    for mine, theirs, colour in zip(parts(x), parts(first), COLOURS):
        digits = (f'<span style="{MOVED}">{a}</span>' if a != b else a for a, b in zip(mine, theirs))
        shown.append(f'<span style="background: {colour}; padding: 2px 3px">{"".join(digits)}</span>')
    return " ".join(shown)


def first_difference(a: list, b: list) -> int | None:
    """The place of the first entry in which two lists differ; None where they are equal."""
    return next((place for place, (x, y) in enumerate(zip_longest(a, b)) if x != y), None)


def other_answers(alone: list[list[int]], together: list[list[int]], shown: int = 5) -> list[dict]:
    """A row for each request that got other tokens in a batch than alone: where, and what came then."""
    pairs = [(f"r{number}", first_difference(a, b), a, b) for number, (a, b) in enumerate(zip(alone, together))]
    return [
        {
            "request": name,
            "equal tokens": at,
            "then, alone": " ".join(map(str, a[at : at + shown])),
            "then, in the batch": " ".join(map(str, b[at : at + shown])),
        }
        for name, at, a, b in pairs
        if at is not None
    ]


def show_moved(one: torch.Tensor, other: torch.Tensor, what: str, names=("one", "other")) -> None:
    """The bits of the first number that moved, in both forms; a sentence where none has."""
    places = (bits(one) != bits(other)).flatten().nonzero()
    if len(places):
        pair = (x.flatten()[places[0, 0]] for x in (one, other))
        publish(f"{what}, number {int(places[0, 0])}:")
        show_bits(dict(zip(names, pair)))
    else:
        publish(f"{what}: no number moved on this machine.")
