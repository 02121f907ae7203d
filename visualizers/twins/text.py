"""The outputs as they stand at the playhead; the first token that is not the expected one begins the part in red."""

from visualizers.figures import lives
from visualizers.twins.common import ACCENT, DIM, INK, hue_of

TIMED = False
MOST, LINE = 12, 0.19  # requests, inches
ROOM = 96  # characters of a line


def height(engine: dict) -> float:
    return LINE * max(1, min(MOST, len(lives(engine)))) + (LINE if len(lives(engine)) > MOST else 0)


def draw(axes, engine: dict, data: dict, here: int, longest: int):
    arrived = [life for life in lives(engine) if life.arrive <= max(here, 0)]
    axes.set(xlim=(0, 1), ylim=(height(engine) / LINE, 0))
    axes.set_xticks([])
    axes.set_yticks([])
    for row, life in enumerate(arrived[:MOST]):
        name = data["requests"][life.request][1]
        axes.plot([0.002, 0.002], [row + 0.15, row + 0.85], color=hue_of(data, life.request), linewidth=3)
        axes.text(0.008, row + 0.5, name[:10], va="center", fontsize=7.5, color=INK, parse_math=False)
        count = sum(number <= here for number in life.came)
        wrong = engine["diverged"].get(life.request, [count])[0]
        pieces = [_plain(data["texts"][n]) for n in engine["pieces"].get(life.request, [])[:count]]
        right, rest = "".join(pieces[:wrong]), "".join(pieces[wrong:])
        right = right if len(right + rest) <= ROOM else "…" + right[len(right + rest) - ROOM :]
        said = axes.annotate(right, (0.1, row + 0.5), va="center", fontsize=7.5, color=INK, parse_math=False)
        if rest:
            axes.annotate(
                rest, (1, 0), xycoords=said, va="bottom", fontsize=7.5, color=ACCENT, parse_math=False, weight="bold"
            )
        ended = life.kind == "finish" and life.end <= here
        state = f"{count} token{'s' * (count != 1)}" + (", finished" if ended else "")
        axes.text(1, row + 0.5, state, va="center", ha="right", fontsize=7, color=DIM)
    if len(arrived) > MOST:
        axes.text(0.008, MOST + 0.5, f"and {len(arrived) - MOST} more", va="center", fontsize=7, color=DIM)


def _plain(text: str) -> str:
    """On one line, and without what no font has."""
    return "".join(char if char.isprintable() else "↵" if char == "\n" else " " for char in text)


def legend(data: dict) -> list[tuple]:
    return []
