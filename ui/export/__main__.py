"""A stored run as a page that needs no server, whole or one figure of it: what ``python -m kvq_core export`` and
``embed`` hand over to."""

import argparse
import sys
from pathlib import Path

from kvq_core.errors import PATH, KvqError, SpecError, abbreviate
from kvq_core.machine import files
from kvq_core.record.shipped import holder
from kvq_core.record.store import open_store
from ui.export.embed import NAMES, embed
from ui.export.page import filed
from ui.service.records import RecordCache

PLACE = ("layer", "head", "token")


def main(argv: list[str] | None = None) -> int:
    """Print the page. The exit status is 2, with one line on stderr, where there is none."""
    given = sys.argv[1:] if argv is None else argv
    command = "embed" if "--view" in given else "export"
    parser = argparse.ArgumentParser(prog=f"python -m kvq_core {command}", description=__doc__)
    parser.add_argument("run", metavar="RUN_ID", help="id of a stored run, or of one that ships")
    parser.add_argument("--out", type=Path, help="file of the whole page (standard output)")
    parser.add_argument("--view", choices=NAMES, help="which figure; without it all of the run")
    parser.add_argument("--link", default="", help="address that its title leads to")
    parser.add_argument("--lane", default="", metavar="LABEL", help="lane whose words are shown (the worst)")
    for name in PLACE:
        parser.add_argument(f"--{name}", type=int, help="where it looks (where the run is opened)")
    asked = parser.parse_args(given)
    try:
        if asked.view is None:
            _write(_whole(asked.run, asked.link), asked.out)
            return 0
        at = {name: getattr(asked, name) for name in PLACE}
        whole = RecordCache(open_store()).whole({"run": asked.run})  # as the page's server draws it
        print(embed(*whole, asked.view, asked.link, at, asked.lane))
    except KvqError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _whole(run: str, link: str) -> bytes:
    """The run alone, without lanes that were added to it: what is drawn is what the page carries."""
    store = holder(run, open_store())
    return filed(*store.load(run), store.files(run), link)


def _write(page: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(page)
        return
    try:
        files.write(out, page)
    except OSError as error:
        raise SpecError(f"Cannot write {abbreviate(str(out), PATH)}: {error.strerror or error}.") from None


if __name__ == "__main__":
    sys.exit(main())
