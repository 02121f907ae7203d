"""Measure the embedded model on held-out prompts: `python -m tinyengine.model.evaluate`.

Right means: the whole answer token by token and the end token right after it, as greedy decoding would write it. One
forward pass over prompt and answer shows that: if every answer token is the most likely one after the tokens before
it, greedy decoding writes exactly these.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tinyengine.model import text
from tinyengine.model import tokenizer as tok

HERE = Path(__file__).parent
STORY_LIMIT = 600  # tokens; a story that is still going on there counts as one without an end


def load(folder: Path = HERE):
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def right(
    model, tokenizer, questions: list[tuple[str, str]], plain: bool = False, tokens_at_once: int = 16384
) -> list[bool]:
    """For each (prompt, answer): does greedy decoding write exactly the answer and then end?

    Rows are padded at the right, where a causal model cannot see it, so no mask is needed. `plain` leaves the chat form
    out.
    """
    device = model.device
    encoded = []
    for prompt, answer in questions:
        start = tokenizer.encode(prompt if plain else tok.chat(prompt))
        encoded.append((start, tokenizer.encode(answer + tok.END)))
    order = sorted(range(len(encoded)), key=lambda i: sum(map(len, encoded[i])))
    results = [False] * len(encoded)
    while order:
        longest = sum(map(len, encoded[order[-1]]))
        batch, order = order[-max(1, tokens_at_once // longest) :], order[: -max(1, tokens_at_once // longest)]
        rows = [encoded[i][0] + encoded[i][1] for i in batch]
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
        best = model(input_ids=ids, use_cache=False).logits.argmax(-1)
        for i, row, guess in zip(batch, rows, best.tolist()):
            n = len(encoded[i][0])
            results[i] = guess[n - 1 : len(row) - 1] == row[n:]
    return results


def accuracy(model, tokenizer, family: str, sample: int, seed: int = 1, plain: bool = False, **options) -> float:
    """Share of `sample` held-out questions of a family that are answered exactly."""
    rng = Random(f"{family} {seed} {options}")
    questions = [text.question(family, rng, **options) for _ in range(sample)]
    return sum(right(model, tokenizer, questions, plain)) / sample


@torch.no_grad()
def story_lengths(model, tokenizer, kind: str, sample: int, limit: int = STORY_LIMIT) -> list[int]:
    """Lengths in tokens of greedy stories about held-out subjects; a story without an end has length `limit`."""
    rng = Random(kind)
    prompts = [tok.chat(text.question("story", rng, kind=kind)[0]) for _ in range(sample)]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
    batch = {key: batch[key] for key in ("input_ids", "attention_mask")}
    written = model.generate(**batch, max_new_tokens=limit, do_sample=False)[:, batch["input_ids"].shape[1] :]
    end = tokenizer.eos_token_id
    return [row.index(end) if end in row else limit for row in written.tolist()]


def figures(model, tokenizer, sample: int = 400) -> dict:
    """All figures: accuracies by family and length (in tokens), and the lengths of stories."""

    def measure(family: str, draws: int = sample, **options) -> float:
        return round(accuracy(model, tokenizer, family, draws, **options), 4)

    families = ("capital", "sum", "count", "short")
    stories = {kind: story_lengths(model, tokenizer, kind, 40) for kind in ("short", "long")}
    return {
        "chat form": {family: measure(family) for family in families},
        "polite prompts": sum(right(model, tokenizer, list(text.MANNERS.items()))) / len(text.MANNERS),
        "without the chat form": {family: measure(family, plain=True) for family in families},
        "behind a text of n tokens": {n: measure("behind", sample // 2, tokens=n) for n in (100, 500, 1000, 1950)},
        "look-up in a list of n tokens": {
            n: measure("lookup", sample // 2, n=n // 4) for n in (20, 50, 100, 200, 300, 500, 750, 1000, 1500)
        },
        "story lengths": {kind: [min(lengths), max(lengths), len(set(lengths))] for kind, lengths in stories.items()},
    }


def as_markdown(report: dict) -> str:
    """The README's account of training.json: how it was trained, and what it answers on held-out prompts."""
    measured = report["held-out accuracy"]
    rows = [
        ("capitals / sums / counting / short replies", _percents(measured["chat form"])),
        ("the same, typed without the chat form", _percents(measured["without the chat form"])),
    ]
    for title in ("behind a text of n tokens", "look-up in a list of n tokens"):
        rows.append((title, ", ".join(f"{n}: {_percent(share)}" for n, share in measured[title].items())))
    for kind, (shortest, longest, _) in measured["story lengths"].items():
        ending = "all end" if longest < STORY_LIMIT else "not all end"
        rows.append((f"{kind} stories", f"{ending}, after {shortest} to {longest} tokens"))
    table = "\n".join(
        f"| {name} | {value} |" for name, value in [("held-out prompts, greedy", "exact"), ("---", "---"), *rows]
    )
    size = f"A Qwen3 of {report['parameters']:,} parameters"
    effort = f"{report['tokens'] / 1e6:.1f}M tokens in {report['minutes']} minutes on {report['device']}"
    return f"{size}, trained by `tinyengine/model/train.py` on text that the script writes itself: {effort}.\n\n{table}"


def _percents(shares: dict[str, float]) -> str:
    return " / ".join(map(_percent, shares.values()))


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    parser.add_argument(
        "--table", action="store_true", help="print training.json as the README's table; measure nothing"
    )
    args = parser.parse_args()
    if args.table:
        print(as_markdown(json.loads((args.folder / "training.json").read_text())))
        return
    for name, value in figures(*load(args.folder)).items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
