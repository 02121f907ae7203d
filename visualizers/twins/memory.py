"""The K/V arena: every address over time, by owner."""

from visualizers.memory_map import MemoryMap
from visualizers.twins.common import DIM, DPI, GRID, INK, WASH, add_boxes, box, edge, hue_of, mid, mix, pale

TIMED = True
MOST_THIN = 4  # px; of a lower box, an outline would be all that is seen
NOTE = 0.14  # of the arena's height, for a line of words above it


def height(engine: dict) -> float:
    return 1.7 if engine["memory"] else 0.3


def draw(axes, engine: dict, data: dict, here: int, longest: int):
    memory, block = MemoryMap(engine), engine["block_size"]
    if not engine["memory"]:
        axes.set_yticks([])
        axes.text(0, 0.5, "this trace has no memory map", transform=axes.transAxes, fontsize=8, color=DIM)
        return
    axes.set(ylim=(memory.shown, -NOTE * memory.shown))
    axes.text(0, -NOTE / 2 * memory.shown, words(engine, here), fontsize=7.5, color=DIM, va="center")
    axes.set_yticks([0, memory.shown], ["K/V slot 0" if block == 1 else "block 0", str(memory.shown // block)])
    outlined = MOST_THIN * (1 + NOTE) * memory.shown / (height(engine) * DPI)
    for number, (request, _, end, parts, _) in enumerate(memory.holdings):
        hue, place = hue_of(data, request), 0
        boxes = [box(since, end, slot, past) for since, slot, past in parts]
        wash = mix(hue, "#ffffff", WASH)
        add_boxes(axes, boxes, facecolors=wash, edgecolor=pale(hue), linewidth=0, hatch="//////")
        for since, slot, past in parts:
            _draw_filled(axes, memory, number, (since, slot, past), place, mid(hue))
            place += past - slot
        tall = [box(since, end, slot, past) for since, slot, past in parts if past - slot >= outlined]
        add_boxes(axes, tall, facecolors="none", edgecolors=edge(hue), linewidths=0.5)
    add_boxes(axes, _shared(memory, len(engine["time"])), facecolors="none", edgecolors=INK, linewidths=0.8)
    axes.hlines([0, memory.shown], 0, len(engine["time"]), color=GRID, linewidth=0.8)


def legend(data: dict) -> list[tuple]:
    from matplotlib.patches import Patch

    hue, entries = data["palette"][0], []
    memories = [(MemoryMap(engine), len(engine["time"])) for engine in data["engines"]]
    held = [holding for memory, count in memories for n in range(count) for holding in memory.at(n).values()]
    if any(holding.used for holding in held):
        entries.append(("K/V filled", Patch(facecolor=mid(hue), edgecolor=edge(hue), lw=0.6)))
    if any(holding.used < holding.reserved for holding in held):
        wash = mix(hue, "#ffffff", WASH)
        entries.append(("held, empty", Patch(facecolor=wash, edgecolor=pale(hue), linewidth=0, hatch="//////")))
    if any(memory.shared(n) for memory, count in memories for n in range(count)):
        entries.append(("shared by several requests", Patch(facecolor=mid(hue), edgecolor=INK, lw=1.2)))
    return entries


def words(engine: dict, here: int) -> str:
    """The arena at the playhead, in numbers."""
    if here < 0 or not engine["memory"]:
        return ""
    size, shown = engine["num_slots"], MemoryMap(engine).figures(here)
    held, filled = (f"{100 * shown[key] / size:.0f} %" for key in ("held", "filled"))
    text = f"iteration {here + 1}: {held} of {size:,} K/V slots held, {filled} filled"
    return text + (f", {shown['lost']:,} free K/V slots outside the largest hole" if engine["contiguous"] else "")


def _shared(memory: MemoryMap, count: int) -> list:
    """A box for each stretch of iterations in which a range had several holders."""
    boxes, since = [], {}
    for number in range(count + 1):
        now = set(memory.shared(number)) if number < count else set()
        boxes += [box(since.pop(part), number, *part) for part in list(since) if part not in now]
        since.update((part, number) for part in now - set(since))
    return boxes


def _draw_filled(axes, memory: MemoryMap, number: int, part: tuple[int, int, int], place: int, colour: str):
    """A stair: how much of the part is filled in each iteration."""
    since, slot, past = part
    _, first, end, *_ = memory.holdings[number]
    outline = [(since, slot)]
    for i in range(since, end):
        depth = slot + min(max(memory.used[number][i - first] - place, 0), past - slot)
        outline += [(i, depth), (i + 1, depth)]
    add_boxes(axes, [[*outline, (end, slot)]], facecolors=colour, linewidths=0)
