"""`python -m tinyengine.simulate ...`: as `tinyengine simulate ...`."""

import sys

from tinyengine.cli import main

sys.exit(main(["simulate", *sys.argv[1:]]))
