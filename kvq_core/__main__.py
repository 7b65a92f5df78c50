"""``python -m kvq_core``: the headless front end."""

import gc
import sys

gc.disable()  # what imports make lives to the end; looking for garbage in it is a sixth of the time to start

from kvq_core.cli.main import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(main())
