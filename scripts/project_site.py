"""Four runs that ship, and the lab, as pages for a project's site that need no server: docs/site, by ``make site``.

Each page is what ``python -m kvq_core embed`` writes; index.html shows them in frames.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvq_core.pipeline.examples import example_ids, packaged_store  # noqa: E402
from ui.export.card import answer_line  # noqa: E402
from ui.export.embed import embed  # noqa: E402
from ui.export.lab import lab  # noqa: E402
from ui.export.report import style  # noqa: E402
from ui.html.escape import safe, shorten  # noqa: E402

SITE = ROOT / "docs" / "site"
PAGES = (("first-sight-mended", "kld"), ("five-ideas", "kld"), ("qwen-keys", "keys"), ("keys-or-values", "rate"))


def site() -> dict[str, str]:
    """The site's files by name."""
    store, ids, files, shown = packaged_store(), example_ids(), {"lab.html": lab()}, ""
    for example, view in PAGES:
        run = ids[example]
        record, arrays = store.load(run)
        name = f"{run}-{view}.html"
        files[name] = embed(record, arrays, view)
        said = f"<h2>{safe(answer_line(record, arrays))}</h2><p class='mute'>{safe(shorten(record.question, 90))}</p>"
        title = safe(record.environment.model_title)
        shown += f'{said}<iframe src="{name}" title="{title}" loading="lazy"></iframe>'
    frames = "iframe { width: 100%; height: 620px; border: 0; } h2 { margin: 2em 0 .2em; }"
    files["index.html"] = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>KVQ Explorer</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style()} {frames}</style></head><body><main><h1>KVQ Explorer</h1><p>One prompt, one real model: its "
        "full-precision KV cache beside quantized ones. Four runs that ship with it; point at a mark, or walk them "
        "with the arrow keys.</p><p><a href='lab.html'>The lab</a>: real keys and values, quantized in your browser as "
        f"you drag.</p>{shown}</main></body></html>"
    )
    return files


def main() -> None:
    SITE.mkdir(parents=True, exist_ok=True)
    for name, text in site().items():
        (SITE / name).write_text(text + "\n", encoding="utf-8")
        print(f"{SITE.relative_to(ROOT) / name}: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
