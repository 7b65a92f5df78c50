"""``python -m kvq_core.cli.second_model``: have the model that tests and benchmarks take beside the bundled one.

Prints its id, which ``--model`` takes.
"""

import sys

from kvq_core.cli.bar import Bar
from kvq_core.errors import KvqError
from kvq_core.models.second import SECOND_MODEL, prepare_second


def main() -> None:
    try:
        with Bar(timed=True) as bar:
            for step in prepare_second():
                bar(step)
    except KvqError as error:
        sys.exit(str(error))
    print(SECOND_MODEL)


if __name__ == "__main__":
    main()
