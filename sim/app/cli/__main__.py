"""`python -m sim.app.cli`: the command line without its console script."""

import sys

from sim.app.cli import main

sys.exit(main())
