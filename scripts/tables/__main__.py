"""`python -m scripts.tables NAME`, as `scripts/docs tables NAME` runs it."""

import sys

from scripts.tables import main

sys.exit(main())
