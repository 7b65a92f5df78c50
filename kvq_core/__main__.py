"""``python -m kvq_core``: the headless front end."""

import sys

from kvq_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
