import sys

from tinyengine.cli import main

sys.exit(main())
