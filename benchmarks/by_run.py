"""Parts of the documents that show stored runs: the README's first links and picture, and the lanes that differ between
models; ``readme.py`` writes them."""

import tomllib

from benchmarks.measured import HERE, table
from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.record.fields import Record
from ui.panels.two_models import changed_bytes

EXAMPLE_SHOWN = "five-ideas"
FIRST = "first-sight-mended"  # whose card an empty page shows
DEMONSTRATION = ("qwen-keys", "qwen-keys-bundled", "qwen-keys-mended")  # opened beside each other
SITE = "docs/site"


def addresses() -> dict[str, str]:
    """Where the project is published, as pyproject.toml says: ``Site``, its pages, and ``Space``."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(project.get("urls", {}))


def first_links_part() -> str:
    """What can be opened before anything is installed: the published pages, or their files, and the Space if there is
    one; under them the picture, which links to its run."""
    told, ids = addresses(), example_ids()
    site = told.get("Site", SITE).rstrip("/")
    opened = f"**[Runs to look at, without a server]({site}/index.html)**"
    space = f" · **[Open in Spaces]({told['Space']})**" if "Space" in told else ""
    record = packaged_store().load(ids[FIRST])[0]
    return (
        f"{opened}{space}: point, select, brush.\n\n![One question, the same cache formats, on two models and on the "
        f"mended file of one: each answer, its distance from full precision, its memory](docs/{FIRST}.png)\n\n"
        f"*Part of [run {record.id}]({site}/{record.id}.html), of a file that [mending](docs/mend.md) wrote, "
        "beside two others: what an empty page shows, on a CPU in float32. The five papers' methods: "
        f"[run {ids[EXAMPLE_SHOWN]}]({site}/{ids[EXAMPLE_SHOWN]}.html).*"
    )


def _title(record: Record) -> str:
    """The model's, of a mended file with how much of it was changed."""
    title = (record.environment.reference or record.environment).model_title
    return f"{title}, {changed} changed" if (changed := changed_bytes(record)) else title


def demonstration_part() -> str:
    """The same lanes on two models and on the mended file: the picture, the link that opens both, and their KLDs."""
    runs = [packaged_store().load(example_ids()[name])[0] for name in DEMONSTRATION]
    link = f"http://127.0.0.1:7860/?run={runs[0].id}&vs={runs[1].id}"
    mended = f"http://127.0.0.1:7860/?run={runs[0].id}&vs={runs[2].id}"
    lanes = zip(*(run.lanes for run in runs), strict=True)
    rows = [(own[0].label, *(f"{lane.metrics.kld_mean:.2g}" for lane in own)) for own in lanes]
    return (
        f"![One prompt on Qwen2.5-Coder-0.5B, five caches]({DEMONSTRATION[0]}.png)\n\n"
        f"*Part of [run {runs[0].id}]({link}), beside [the same lanes on the bundled model]({link}) and [on the mended "
        f"file]({mended}); mean KLD in nats, of the mended file against the published one in full precision:*"
        "\n\n" + table(f"Lane | {' | '.join(map(_title, runs))}", *rows)
    )
