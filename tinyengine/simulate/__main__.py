"""`python -m tinyengine.simulate ...`: as `tinyengine simulate ...`."""

import sys

from tinyengine.cli import main

if __name__ == "__main__":
    sys.exit(main(["simulate", *sys.argv[1:]]))
