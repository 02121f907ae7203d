"""`tinyengine verify`."""

import argparse
import json
import sys
from pathlib import Path

DTYPES = ("float32", "bfloat16", "float16")


def register(commands: argparse._SubParsersAction):
    verify = commands.add_parser("verify", help="prove batch invariance on this machine, bit by bit")
    verify.add_argument("--model", default="tiny", help='"tiny", a folder, or a hub name')
    verify.add_argument("--device", choices=["cpu", "cuda"], help="default: CUDA if there is one")
    verify.add_argument("--dtype", choices=DTYPES, help="default: what the checkpoint says")
    verify.add_argument("--threads", type=int, help="of torch on a CPU; default: as many as it takes")
    verify.add_argument(
        "--fast",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with the accelerations of tinyengine.fast, or the code that lessons show",
    )
    verify.add_argument("--faults", action="store_true", help="plant eight faults, and say which check catches which")
    verify.add_argument("--hot", action="store_true", help="count the tokens that flip with large random weights")
    verify.add_argument("--json", type=Path, metavar="PATH", help="write the ledger there")
    verify.set_defaults(func=_verify, outputs=("json",))


def _verify(args) -> int:
    import torch

    from tinyengine import load_model
    from tinyengine.bench.record import check_device
    from tinyengine.verify import hot, ledger

    check_device(args.device)
    if args.threads is not None:
        if args.threads < 1:
            raise ValueError(f"--threads is {args.threads}, but torch needs at least 1")
        torch.set_num_threads(args.threads)
    model = load_model(args.model, args.device, getattr(torch, args.dtype) if args.dtype else None)
    try:
        if args.hot:
            found = hot.compared(model.config, model.dtype, args.fast)
            print("\n".join(hot.sentence(*one) for one in found.items()))
            return 1 if found["invariant"].moved else 0
        if args.faults:
            table = ledger.fault_table(model, fast=args.fast)
            print(ledger.fault_markdown(table, ledger.describe(model)))
            return 0 if all(any(row.values()) for row in table.values()) else 1
        found = ledger.verify(model, fast=args.fast)
    except RuntimeError as error:  # the self-test refuses
        print(f"tinyengine: {error}", file=sys.stderr)
        return 1
    ledger.show(found)
    if args.json:
        args.json.write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    return 0 if found.holds else 1
