"""`python -m tinyengine.verify.docs` plants every fault anew, in two dtypes, and writes the tables of its page."""

import argparse
from pathlib import Path

import torch

from tinyengine.bench.readme import fill
from tinyengine.model.load import load_model
from tinyengine.verify import hot
from tinyengine.verify.ledger import describe, fault_markdown, fault_table

PAGE = Path(__file__).parents[2] / "docs" / "invariance.md"


DTYPES = ("float32", "bfloat16")


def measured(dtype: torch.dtype) -> str:
    model = load_model("tiny", "cpu", dtype)
    return fault_markdown(fault_table(model), describe(model))


def hot_lines(dtype: torch.dtype) -> list[str]:
    config = load_model("tiny", "cpu", dtype).config
    return [hot.sentence(*one) for one in hot.compared(config, dtype).items()]


def main():
    argparse.ArgumentParser(description=f"Writes the tables of docs/{PAGE.name}; takes minutes.").parse_args()
    torch.set_num_threads(1)
    parts = {name: measured(getattr(torch, name)) for name in DTYPES}
    parts["hot"] = "\n".join(f"- {name}, {line}" for name in DTYPES for line in hot_lines(getattr(torch, name)))
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")


if __name__ == "__main__":
    main()
