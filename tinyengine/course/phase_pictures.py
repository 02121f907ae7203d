"""Pictures for lesson 00: what each step of a request computes, when each token comes, what a query looks at, where the
ridge is."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from matplotlib.patches import Rectangle

from tinyengine.course.checks import ends, plain
from tinyengine.course.phases import GPUS, Script, Watched, encoded, tensors, tiny
from tinyengine.course.picture import blank, put
from visualizers.twins.common import GREY

COMPUTED, KEPT = "#0072B2", "#cfe3f2"
COLOURS = ("#0072B2", "#D55E00", "#009E73")


def draw_rows(**runs: Sequence[Sequence[int]]) -> None:
    """A panel for each run: which positions each step computes (dark), and which have K/V from an earlier one (pale).
    runs: by name, for each step its positions."""
    figure = blank(1.6 + 2.0 * len(runs), 2.3)
    panels = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
    height = 1 + max(position for steps in runs.values() for step in steps for position in step)
    for axes, (name, steps) in zip(panels, runs.items()):
        kept: set[int] = set()
        for number, step in enumerate(steps, 1):
            for position in range(height):
                colour = COMPUTED if position in step else KEPT if position in kept else "none"
                axes.add_patch(Rectangle((number - 0.5, position - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
            kept |= set(step)
        axes.set(xlim=(0.5, len(steps) + 0.5), ylim=(height - 0.5, -0.5), xlabel="step")
        axes.set_title(title(name, steps), fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("position of the token")
    labels = {"computed in this step": COMPUTED, "K/V of an earlier step": KEPT}
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in labels.values()]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    put(figure, "; ".join(title(name, steps) for name, steps in runs.items()))


def title(name: str, steps: Sequence[Sequence[int]]) -> str:
    return f"{name.replace('_', ' ')}: {sum(map(len, steps))} rows"


def draw_times(**runs: Sequence[float]) -> None:
    """When the user sees each token: all runs on one line of time, and below it the first part of the last run.
    runs: by name, the seconds of each step."""
    figure = blank(6.6, 2.9)
    top, bottom = figure.subplots(2, 1, height_ratios=(len(runs), 1.3))
    last = list(runs)[-1]
    ms = {name: [1000 * passed for passed in accumulate(seconds)] for name, seconds in runs.items()}
    names = {name: name.replace("_", " ") for name in runs}
    top.eventplot(list(ms.values()), lineoffsets=range(len(runs)), linelengths=0.7, colors=[COMPUTED] * len(runs))
    top.set_yticks(range(len(runs)), names.values())
    top.invert_yaxis()
    top.set_title("each stroke is one token, at the time when it appears", fontsize=9)
    first, then = ms[last][:2]
    bottom.eventplot(ms[last][:6], lineoffsets=0, linelengths=0.7, colors=COMPUTED)
    bottom.set_yticks([0], [f"{names[last]},\nenlarged"])
    for begin, end, word, height in ((0, first, "TTFT", 0), (first, then, "TBT", 0.62)):
        bottom.annotate("", (begin, height), (end, height), arrowprops={"arrowstyle": "<->", "color": GREY})
        bottom.text((begin + end) / 2, height + 0.08, word, ha="center", va="bottom", fontsize=8, color=GREY)
    bottom.set(xlabel="ms", ylim=(-0.45, 1.1))
    for axes in (top, bottom):
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    put(figure, "; ".join(f"{names[name]}: the last token after {at[-1]:.0f} ms" for name, at in ms.items()))


def draw_loop(loop: Callable) -> None:
    """What each step of a generate loop computes, behind a prompt of 6 tokens."""
    step = Script(*range(8, 30))
    ends(loop, step, [5] * 6, 10, (), ())
    draw_rows(your_loop=[positions for _, positions in step.calls])


def answers(loop: Callable, *questions: str) -> None:
    """The answers of a serving loop, in words and in ids, and a picture of what its steps computed for the last one."""
    model = Watched(tiny())
    for question, output in zip(questions, loop(model, [encoded(question) for question in questions], 24)):
        print(question, "->", tiny().tokenizer.decode(output, skip_special_tokens=True))
        print("    ids:", *output[:8], *["..."][: len(output) > 8])
    first = max(number for number, step in enumerate(model.steps) if step[0] == 0)
    draw_rows(the_last_question=model.steps[first:])


def draw_attend(attend: Callable) -> None:
    """The weights with which 3 new of 6 tokens look at all of them: the output where the values are unit vectors."""
    q, keys, _ = tensors((3, 6, 1, 1, 6))
    weights = plain(attend(q, keys, torch.eye(6)[:, None])[:, 0])
    figure = blank(4.2, 1.9)
    axes = figure.subplots()
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    for query, row in enumerate(weights):
        for key, weight in enumerate(row):
            colour = "white" if weight > 0.5 else "black"
            axes.text(key, query, f"{weight:.2f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set(xlabel="value of token")
    axes.set_title("how much each query weighs each value", fontsize=9)
    axes.set_yticks(range(3), [f"query of token {token}" for token in (3, 4, 5)])
    axes.tick_params(labelsize=8)
    put(figure, str([[round(weight, 2) for weight in row] for row in weights]))


def draw_ridge(
    ridge: Callable,
    gpu: str = "H200",
    weights: float = 32.8e9,
    kv_per_token: int = 262_144,
    contexts: Sequence[int] = (0, 300, 2_000),
) -> None:
    """Milliseconds of computing and of reading by rows, for a model in bf16 whose rows each read K/V of so many tokens;
    a dotted line where the answer sees the ridge."""
    (bandwidth, flops), rows = GPUS[gpu], range(1, 513)
    figure = blank(6.0, 2.5)
    axes, places = figure.subplots(), []
    axes.plot(rows, [2e3 * weights * n / flops for n in rows], color=GREY, label="computing")
    for context, colour in zip(contexts, COLOURS):
        reading = [1e3 * (2 * weights + n * context * kv_per_token) / bandwidth for n in rows]
        axes.plot(rows, reading, color=colour, label=f"reading, {context:,} tokens of K/V a row")
        places.append(ridge(weights, 2, context * kv_per_token, bandwidth, flops))
        if places[-1] <= rows[-1]:
            axes.axvline(places[-1], color=colour, linestyle=":", label=f"your ridge: {places[-1]:g} rows")
    axes.set(xlabel="rows", ylabel="ms", xlim=(0, 512), ylim=(0, 60))
    axes.set_title(f"{gpu}, {weights / 1e9:g} billion weights in bf16", fontsize=9)
    axes.tick_params(labelsize=8)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    put(figure, f"your ridges, by tokens of K/V a row: {dict(zip(contexts, places))}")
