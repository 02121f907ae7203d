"""`python -m tinyengine.simulate paper`: published numbers beside ours; without `paper`, as `tinyengine simulate`."""

import argparse
import sys
from pathlib import Path

from tinyengine.simulate.cli import add_arguments, run, show_paper


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tinyengine.simulate")
    if argv[:1] == ["paper"]:
        parser.prog += " paper"
        parser.add_argument("--full", action="store_true", help="run the capacity searches anew (many minutes)")
        parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
        args = parser.parse_args(argv[1:])
        return show_paper(args.full, args.json)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
