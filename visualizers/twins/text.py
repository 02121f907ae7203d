"""The prompts, and the outputs as they stand at the playhead; what is in red begins with the first token that is not
the expected one."""

from visualizers.figures import Life, lives
from visualizers.twins.common import ACCENT, DIM, INK, SHARE, WIDTH, fit, hue_of, playhead, printable, prompt_of

TIMED = False
MOST, LINE = 12, 0.19  # requests, inches
ROOM = 96  # characters of a line
PROMPT = 44  # characters of them that a prompt may take
NAME = 0.088 * WIDTH * SHARE  # inches of a name


def height(engine: dict) -> float:
    return LINE * max(1, min(MOST, len(lives(engine)))) + (LINE if len(lives(engine)) > MOST else 0)


def draw(axes, engine: dict, data: dict, here: int, longest: int):
    arrived = _arrived(engine, here)
    axes.set(xlim=(0, 1), ylim=(height(engine) / LINE, 0))
    axes.set_xticks([])
    axes.set_yticks([])
    for row, life in enumerate(arrived[:MOST]):
        name = data["requests"][life.request][1]
        axes.plot([0.002, 0.002], [row + 0.15, row + 0.85], color=hue_of(data, life.request), linewidth=3)
        axes.text(0.008, row + 0.5, fit(name, NAME, 7.5), va="center", fontsize=7.5, color=INK, parse_math=False)
        count, (right, rest) = _count(life, here), _parts(engine, data, life, here)
        before = None
        for said, style in (
            (_prompt(engine, life.request), {"color": DIM}),
            (right, {"color": INK}),
            (rest, {"color": ACCENT, "weight": "bold"}),
        ):
            if said:
                place, of, va = ((1, 0), before, "bottom") if before else ((0.1, row + 0.5), "data", "center")
                before = axes.annotate(said, place, xycoords=of, va=va, fontsize=7.5, parse_math=False, **style)
        ended = life.kind == "finish" and life.end <= here
        state = f"{count} token{'s' * (count != 1)}" + (", finished" if ended else "")
        axes.text(1, row + 0.5, state, va="center", ha="right", fontsize=7, color=DIM)
    if len(arrived) > MOST:
        axes.text(0.008, MOST + 0.5, f"and {len(arrived) - MOST} more", va="center", fontsize=7, color=DIM)


def _arrived(engine: dict, here: int) -> list[Life]:
    return [life for life in lives(engine) if life.arrive <= max(here, 0)]


def _count(life: Life, here: int) -> int:
    """Its tokens so far."""
    return sum(number <= here for number in life.came)


def _parts(engine: dict, data: dict, life: Life, here: int) -> tuple[str, str]:
    """Its text up to the first wrong token, and from there on; an end that came too early is wrong as well."""
    count = _count(life, here)
    wrong = engine["diverged"].get(life.request, [None])[0]
    pieces = [printable(data["texts"][n]) for n in engine["pieces"].get(life.request, [])[:count]]
    right, rest = "".join(pieces[:wrong]), "" if wrong is None else "".join(pieces[wrong:])
    if wrong == count == len(life.came):
        rest = " (more tokens expected)"
    rest = rest if len(rest) <= ROOM else rest[: ROOM - 1] + "…"
    room = max(20, ROOM - len(rest) - len(_prompt(engine, life.request)))
    return right if len(right) <= room else "…" + right[len(right) - room :], rest


def _prompt(engine: dict, request: int) -> str:
    text = prompt_of(engine, request)
    return f"{text if len(text) <= PROMPT else text[: PROMPT - 1] + '…'} " if text else ""


def legend(data: dict) -> list[tuple]:
    from matplotlib.lines import Line2D

    shown = (
        _parts(engine, data, life, here)[1]
        for engine in data["engines"]
        for here in [playhead(data, engine)]
        for life in _arrived(engine, here)[:MOST]
    )
    red = Line2D([], [], color=ACCENT, marker="s", markersize=5, linestyle="")
    return [("from the first token that is not the expected one", red)] if any(shown) else []
