"""Pictures for lesson 00: what each step of a request computes, what a query looks at, where the ridge is."""

from collections.abc import Callable, Sequence

import torch

from tinyengine.course.checks import ends, plain
from tinyengine.course.phases import GPUS, Script, Watched, encoded, tensors, tiny
from visualizers.twins.common import card

COMPUTED, KEPT, NOTHING = "#0072B2", "#cfe3f2", "#ffffff"
COLOURS = ("#0072B2", "#D55E00", "#009E73")


def draw_rows(**runs: Sequence[Sequence[int]]) -> None:
    """A panel for each run: which positions each step computes (dark), and which have K/V from an earlier one (pale).
    runs: by name, for each step its positions."""
    import matplotlib.pyplot as plt

    size = (1.2 + 3.6 * len(runs), 3.0)
    figure, panels = plt.subplots(1, len(runs), figsize=size, squeeze=False, sharey=True, layout="constrained")
    height = 1 + max(position for steps in runs.values() for step in steps for position in step)
    for axes, (name, steps) in zip(panels[0], runs.items()):
        kept = set()
        for number, step in enumerate(steps, 1):
            for position in range(height):
                colour = COMPUTED if position in step else KEPT if position in kept else NOTHING
                axes.add_patch(plt.Rectangle((number - 0.5, position - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
            kept |= set(step)
        rows = sum(map(len, steps))
        axes.set(xlim=(0.5, len(steps) + 0.5), ylim=(height - 0.5, -0.5), xlabel="step")
        axes.set_title(f"{name.replace('_', ' ')}: {rows} rows", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.get_major_locator().set_params(integer=True)
    panels[0][0].set_ylabel("position of the token")
    labels = {"computed in this step": COMPUTED, "K/V of an earlier step": KEPT}
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=colour) for colour in labels.values()]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    card(figure)
    plt.show()


def draw_loop(loop: Callable) -> None:
    """What each step of a generate loop computes, behind a prompt of 6 tokens."""
    step = Script(*range(8, 30))
    ends(loop, step, [5] * 6, 10, (), ())
    draw_rows(your_loop=[positions for _, positions in step.calls])


def answers(loop: Callable, *questions: str) -> None:
    """The answers of a serving loop, in words, and a picture of what its steps computed for the last question."""
    model = Watched(tiny())
    for question, output in zip(questions, loop(model, [encoded(question) for question in questions], 24)):
        print(question, "->", tiny().tokenizer.decode(output, skip_special_tokens=True))
    first = max(number for number, step in enumerate(model.steps) if step[0] == 0)
    draw_rows(the_last_question=model.steps[first:])


def draw_attend(attend: Callable) -> None:
    """The weights with which 3 new of 6 tokens look at all of them: the output where the values are unit vectors."""
    import matplotlib.pyplot as plt

    q, keys, _ = tensors((3, 6, 1, 1, 6))
    weights = plain(attend(q, keys, torch.eye(6, dtype=torch.float64)[:, None])[:, 0])
    figure, axes = plt.subplots(figsize=(5.4, 2.2), layout="constrained")
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    for query, row in enumerate(weights):
        for key, weight in enumerate(row):
            axes.text(key, query, f"{weight:.2f}", ha="center", va="center", color="white" if weight > 0.5 else "black")
    axes.set(xlabel="key of token", title="how much each query weighs each value")
    axes.set_yticks(range(3), [f"query of token {token}" for token in (3, 4, 5)])
    card(figure)
    plt.show()


def draw_ridge(
    ridge: Callable,
    gpu: str = "H200",
    weights: float = 32.8e9,
    kv_per_token: int = 262_144,
    contexts: Sequence[int] = (0, 300, 2_000),
) -> None:
    """Milliseconds of computing and of reading by rows, for a model in bf16 whose rows each read K/V of so many tokens;
    a dotted line where the answer sees the ridge."""
    import matplotlib.pyplot as plt

    (bandwidth, flops), rows = GPUS[gpu], range(1, 513)
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    axes.plot(rows, [2e3 * weights * n / flops for n in rows], color="black", label="computing")
    for context, colour in zip(contexts, COLOURS):
        reading = [1e3 * (2 * weights + n * context * kv_per_token) / bandwidth for n in rows]
        axes.plot(rows, reading, color=colour, label=f"reading, {context:,} tokens of K/V per row")
        place = ridge(weights, 2, context * kv_per_token, bandwidth, flops)
        if place <= rows[-1]:
            axes.axvline(place, color=colour, linestyle=":", label=f"your ridge: {place:g} rows")
    axes.set(xlabel="rows", ylabel="ms", xlim=(0, 512), ylim=(0, 60))
    axes.set_title(f"{gpu}, {weights / 1e9:g} billion weights in bf16", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    card(figure)
    plt.show()
