"""Requests side by side in a rectangle, and in a queue: what lesson 01 and its exercises run and draw."""

from collections.abc import Callable, Sequence

import torch

from tinyengine.course.checks import ends
from tinyengine.course.phases import encoded, tiny
from tinyengine.course.plugged import is_group, is_tensor, plugged
from tinyengine.course.toy import toy_trace
from tinyengine.course.watch import replay
from tinyengine.trace import Trace
from tinyengine.workload import workload

__all__ = ["CASES", "attended", "draw_mask", "draw_rectangle", "engine", "first_words", "queue_trace", "real_of",
           "replay", "served", "waiting_times"]  # fmt: skip
TOKEN, PADDING, SEEN, INK = "#56B4E9", "#eceff1", "#0072B2", "#1b1f24"
HEAD = 4  # size of a head of `attended`
CASES = {  # of exercise 1.3: (sizes, max_num_seqs, n_slots)
    "small": ([(3, 5), (2, 1), (6, 3), (2, 2), (1, 2)], 3, 20),
    "equal": ([(4, 6)] * 6, 3, 100),
    "roomy": ([(4, 6), (4, 2), (4, 3), (4, 1), (4, 5), (4, 2), (4, 4), (4, 1)], 3, 200),
    "tight": ([(6, 14), (2, 4), (8, 20), (1, 3), (5, 9), (2, 2), (9, 16), (3, 1), (1, 8), (4, 4)], 4, 40),
}


def engine(**parts):
    """The real engine, stage static, with these parts of the learner's: rectangle, MyStatic."""
    return plugged(tiny(), "static", parts, max_num_seqs=3, num_slots=320)


def served(**parts) -> list[list[int]]:
    """The tokens of the course's eight requests, with these parts."""
    return [output.token_ids for output in workload("course").replay(engine(**parts))]


def real_of(lines: Sequence[str]) -> torch.Tensor:
    """["xx.", "xxx"] as a tensor: True where a column holds a token."""
    return torch.tensor([[mark == "x" for mark in line] for line in lines])


def attended(sees: torch.Tensor, real: torch.Tensor, n: int) -> torch.Tensor:
    """Attention of the newest n columns under a mask [B, n, K]: [B, n, d]. Keys and values of padding are large."""
    draw = torch.Generator().manual_seed(real.numel() + n)
    q, keys, values = torch.randn(3, *real.shape, HEAD, generator=draw, dtype=torch.float64)
    keys, values = (torch.where(real[..., None], x, 50 * x) for x in (keys, values))
    scores = q[:, real.shape[1] - n :] @ keys.transpose(1, 2)  # [B, n, K]
    return scores.masked_fill(~sees, float("-inf")).softmax(-1) @ values


@torch.inference_mode()
def first_words(mask: Callable, *questions: str) -> None:
    """The first word of each answer: all prompts in one pass of the real model, padded on the left, under this mask."""
    prompts = [encoded(question) for question in questions]
    width = max(map(len, prompts))
    real = real_of(["." * (width - len(prompt)) + "x" * len(prompt) for prompt in prompts])
    tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    positions = (real.cumsum(1) - 1).clamp(min=0)
    sees = ends(mask, real, width)

    def attend(layer, q, k, v):
        q, k, v = (x.view(*tokens.shape, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sees[:, None], enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    hidden = tiny()(tokens.flatten(), positions.flatten(), attend).view(*tokens.shape, -1)
    for question, token in zip(questions, tiny().logits(hidden[:, -1]).argmax(-1).tolist()):
        print(f"{question} -> {tiny().tokenizer.decode([token])}")


def waiting_times(outputs: Sequence[int], width: int, order: Sequence[int] | None = None) -> list[int]:
    """For each request the iteration of its first token, where static batching serves the queue in this order."""
    first = {}
    for iteration, batch in enumerate(batches(outputs, width, order), 1):
        for number in batch:
            first.setdefault(number, iteration)
    return [first[number] for number in range(len(outputs))]


def batches(outputs: Sequence[int], width: int, order: Sequence[int] | None = None) -> list[list[int]]:
    """For each iteration of static batching the requests that run."""
    queue, history = list(range(len(outputs)) if order is None else order), []
    while queue:
        batch, queue = queue[:width], queue[width:]
        for done in range(max(outputs[number] for number in batch)):
            history.append([number for number in batch if outputs[number] > done])
    return history


def queue_trace(outputs: Sequence[int], width: int, order: Sequence[int] | None = None) -> Trace:
    """Static batching of a queue, to be drawn: request 0 is r0, in whatever order they are served."""
    return toy_trace([[f"r{number}" for number in batch] for batch in batches(outputs, width, order)], slots=width)


def draw_rectangle(rectangle: Callable, chunks: Sequence[tuple[list[int], int]]) -> None:
    """The cells of a rectangle: the token, below it its position; padding is pale, each last token has a frame."""
    from matplotlib.patches import Rectangle  # imported where it is drawn: a check draws nothing

    from tinyengine.course.phase_pictures import blank, put

    given = ends(rectangle, chunks)
    shape = (len(chunks), max(len(token_ids) for token_ids, _ in chunks))
    if not (
        is_group(given, 4) and all(is_tensor(part, *shape) for part in given[:3]) and is_tensor(given[3], shape[0])
    ):
        return print(f"Nothing to draw: tokens, positions and real of shape {list(shape)}, and last, are needed.")
    tokens, positions, real, last = given
    figure = blank(1 + 0.9 * shape[1], 0.7 + 0.6 * shape[0])
    axes = figure.subplots()
    for line in range(shape[0]):
        for column in range(shape[1]):
            colour = TOKEN if real[line, column] else PADDING
            axes.add_patch(Rectangle((column, line), 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
            label = f"{tokens[line, column]}\nposition {positions[line, column]}"
            axes.text(column + 0.5, line + 0.5, label, ha="center", va="center", fontsize=8, color=INK)
        place = (int(last[line]) + 0.04, line + 0.04)
        axes.add_patch(Rectangle(place, 0.92, 0.92, fill=False, edgecolor="#D55E00", linewidth=2))
    axes.set(xlim=(0, shape[1]), ylim=(shape[0], 0))
    axes.set_xticks([column + 0.5 for column in range(shape[1])], [f"column {n}" for n in range(shape[1])])
    axes.set_yticks([line + 0.5 for line in range(shape[0])], [f"request {n}" for n in range(shape[0])])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    put(figure, f"tokens {tokens.tolist()}, last {last.tolist()}")


def draw_mask(mask: Callable, lines: Sequence[str], n: int) -> None:
    """For each request its mask: a line for each new column, dark where it sees a key; pale columns are padding."""
    from matplotlib.patches import Rectangle  # imported where it is drawn: a check draws nothing

    from tinyengine.course.phase_pictures import blank, put

    real = real_of(lines)
    sees, shape = ends(mask, real.clone(), n), (len(lines), n, real.shape[1])
    if not is_tensor(sees, *shape):
        return print(f"Nothing to draw: a tensor of shape {list(shape)} is needed.")
    figure = blank(1.2 + 0.34 * shape[2] * len(lines), 1.0 + 0.3 * n)
    for request, axes in enumerate(figure.subplots(1, len(lines), squeeze=False, sharey=True)[0]):
        for line in range(n):
            for column in range(shape[2]):
                pale = "white" if real[request, column] else PADDING
                colour = SEEN if sees[request, line, column] else pale
                axes.add_patch(Rectangle((column, line), 1, 1, facecolor=colour, edgecolor="#b0b8bf"))
        axes.set(xlim=(0, shape[2]), ylim=(n, 0), xlabel="key")
        axes.set_xticks([column + 0.5 for column in range(shape[2])], lines[request])
        axes.set_yticks([line + 0.5 for line in range(n)], [f"column {shape[2] - n + line}" for line in range(n)])
        axes.set_title(f"request {request}", fontsize=10)
        axes.tick_params(length=0)
    put(figure, f"sees {sees.int().tolist()}")
