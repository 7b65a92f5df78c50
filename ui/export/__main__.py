"""One figure of a stored run as a page that needs no server: what ``python -m kvq_core embed`` hands over to."""

import argparse
import sys

from kvq_core.errors import KvqError
from kvq_core.record.store import open_store
from ui.export.embed import NAMES, embed
from ui.service.records import RecordCache

PLACE = ("layer", "head", "token")


def main(argv: list[str] | None = None) -> int:
    """Print the page. The exit status is 2, with one line on stderr, where there is none."""
    parser = argparse.ArgumentParser(prog="python -m kvq_core embed", description=__doc__)
    parser.add_argument("run", metavar="RUN_ID", help="id of a stored run, or of one that ships")
    parser.add_argument("--view", choices=NAMES, default="kld", help="which figure (kld)")
    parser.add_argument("--link", default="", help="address that its title leads to")
    parser.add_argument("--lane", default="", metavar="LABEL", help="lane whose words are shown (the worst)")
    for name in PLACE:
        parser.add_argument(f"--{name}", type=int, help="where it looks (where the run is opened)")
    asked = parser.parse_args(argv)
    try:
        at = {name: getattr(asked, name) for name in PLACE}
        whole = RecordCache(open_store()).whole({"run": asked.run})  # as the page's server draws it
        print(embed(*whole, asked.view, asked.link, at, asked.lane))
    except KvqError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
