"""`python -m tilewave`: the command line, where its script is on no path."""

import sys

from sim.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
