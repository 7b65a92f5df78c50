"""Four runs that ship, and the lab, as pages for a project's site that need no server: docs/site, by ``make site``.

Each page is what ``python -m kvq_core export`` writes, but without its run inside: it ships with the program.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvq_core.pipeline.examples import example_ids, packaged_store  # noqa: E402
from ui.export.card import title  # noqa: E402
from ui.export.document import document, style  # noqa: E402
from ui.export.lab import lab  # noqa: E402
from ui.export.page import page  # noqa: E402
from ui.html.escape import safe, shorten  # noqa: E402
from ui.words.answer import answer_line  # noqa: E402

SITE = ROOT / "docs" / "site"
PAGES = ("first-sight-mended", "five-ideas", "qwen-keys", "keys-or-values")
SHIPS = "This run ships with the program: its page opens it by its id."


def site() -> dict[str, bytes]:
    """The site's files by name."""
    store, ids, files, listed = packaged_store(), example_ids(), {"lab.html": lab().encode() + b"\n"}, ""
    for example in PAGES:
        run = ids[example]
        record, arrays = store.load(run)
        files[f"{run}.html"] = page(record, arrays, SHIPS).encode() + b"\n"
        listed += (
            f'<li><h2><a href="{run}.html">{safe(title(record))}</a></h2><p>{safe(answer_line(record, arrays))}</p>'
            f"<p class='mute'>{safe(shorten(record.question, 90))}</p></li>"
        )
    body = (
        "<body><main><h1>KVQ Explorer</h1><p>One prompt, one real model: its full-precision KV cache beside quantized "
        "ones. Four runs that ship with it, each a page as python -m kvq_core export writes it.</p>"
        "<p><a href='lab.html'>The lab</a>: real keys and values, quantized in your browser as you drag.</p>"
        f"<ol>{listed}</ol></main></body>"
    )
    files["index.html"] = document("KVQ Explorer", "", style(), body, "").encode() + b"\n"
    return files


def main() -> None:
    SITE.mkdir(parents=True, exist_ok=True)
    for old in SITE.glob("*.html"):
        old.unlink()
    for name, data in site().items():
        (SITE / name).write_bytes(data)
        print(f"{SITE.relative_to(ROOT) / name}: {len(data) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
