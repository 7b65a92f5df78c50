"""For the README: the reference table's picture and its best lanes, once it was computed; nothing while it was not."""

from typing import Any

import numpy as np

from benchmarks.measured import HERE, figures, table
from kvq_core.claims.side_by_side import short_title
from kvq_core.cli.table_picture import picture
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.studies.spec import read_study
from kvq_core.studies.summary import WIDE, is_wide
from kvq_core.studies.table import FACTOR, FILE, MATCHED_BITS, NEAR, SMALL, setting

PICTURE = HERE.parent / "docs" / "table.svg"
BEST = 3  # lanes of a setting that the text names
FIRST_VERSION = 7  # of results, of figures that do not say theirs


def table_part() -> str:
    """The picture, and of each setting the lanes that lose least on the first model."""
    found = _found()
    if not found:
        return ""
    first = next(iter(found.values()))
    settings: dict[str, list[dict[str, Any]]] = {}
    for line in sorted(_shown(first), key=lambda each: each["kld_mean"]):
        settings.setdefault(setting(line["label"])[0], []).append(line)
    rows = [
        (title, setting(line["label"])[1], f"{(line['key_bits'] + line['value_bits']) / 2:.2f}", *_losses(line, found))
        for title, lines in settings.items()
        for line in lines[:BEST]
    ]
    head = " | ".join(["Setting", "Lane", "Bits", *(part["title"] for part in found.values())])
    how = "[How it is made, and rows for other models](docs/table.md)."
    matched = f"Bytes are matched at {MATCHED_BITS} bits an element over these prompts."
    said = f"{caption(found)} {matched}{_wide(found)}{_older(found)} {how} Of each setting {BEST}:"
    parts = ["## The reference table", f"![Mean KLD of every lane](docs/{PICTURE.name})", said, table(head, *rows)]
    return "\n\n".join(parts)


def instructions_part() -> str:
    """A row a cell that was computed with two processors' instructions."""
    found = figures("instructions")
    if not found:
        return "Not measured yet: `python benchmarks/instructions.py`."
    rows = [
        (
            short_title(part["title"]),
            cell["prompt"],
            f"{cell['lanes']} ({cell['under_small']})",
            "the same" if cell["same_answer"] else "**another**",
            f"{cell['median']:.1%}",
            *(str(cell[name]) for name in ("over_near", "over_fifth", "over_factor")),
            "{}: {:.2g} and {:.2g}".format(*cell["most"]),
        )
        for part in found.values()
        for cell in part["cells"]
    ]
    over = f"over {NEAR:.0%} | over 20% | over {1 - 1 / FACTOR:.0%}"
    head = f"Model | Prompt | Lanes (under {SMALL:.0e} nats) | Reference's answer | Lane in the middle | {over} | Most"
    return f"{table(head, *rows)}\n\nLanes by how far their two mean KLDs lie apart, as a share of the larger one."


def caption(found: dict[str, Any]) -> str:
    first = next(iter(found.values()))
    return (
        f"Mean KLD in nats with 95 % intervals over {first['prompts']} prompts of 500 tokens or more, "
        f"{first['tokens']} new tokens each."
    )


def labels() -> set[str]:
    """Of the lanes that the study has."""
    return {lane.label for lane in read_study(FILE).comparison.lanes}


def _found() -> dict[str, Any]:
    """By model its figures, of the lanes that the study has today."""
    today = labels()
    return {
        model: {**part, "lanes": [line for line in part["lanes"] if line["label"] in today]}
        for model, part in (figures("table") or {}).items()
    }


def _older(found: dict[str, Any]) -> str:
    """Whose figures an earlier version of the engine computed."""
    told = {part["title"]: part.get("results_version", FIRST_VERSION) for part in found.values()}
    old = [f"{title} (version {version})" for title, version in told.items() if version != RESULTS_VERSION]
    return f" Not computed again since results version {RESULTS_VERSION}: {', '.join(old)}." if old else ""


def _wide(found: dict[str, Any]) -> str:
    """How many intervals of all say only that there are too few prompts."""
    lines = [line for part in found.values() for line in _shown(part)]
    if not (count := sum(map(is_wide, lines))):
        return ""
    return f" {count} of {len(lines)} intervals reach beyond {WIDE} times the mean (dashed): of too few prompts."


def drawn() -> str | None:
    """The picture, None while nothing is stored."""
    found = _found()
    if not found:
        return None
    lines = [{**line, "model": part["title"]} for part in found.values() for line in part["lanes"]]
    return picture(lines, caption(found))


def draw() -> None:
    """Write the picture beside the documents."""
    if (svg := drawn()) is not None:
        PICTURE.write_text(svg, encoding="utf-8")


def _shown(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in part["lanes"] if line["kld_mean"] is not None]


def _losses(line: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Of the lane on every model, with its interval."""
    own = ([each for each in part["lanes"] if each["label"] == line["label"]] for part in found.values())
    return ["-" if not some or some[0]["kld_mean"] is None else _interval(some[0]) for some in own]


def _interval(line: dict[str, Any]) -> str:
    low, high = line["kld_low"], line["kld_high"]
    return _number(line["kld_mean"]) + ("" if low is None else f" ({_number(low)} to {_number(high)})")


def _number(value: float) -> str:
    return str(np.format_float_positional(value, 2, fractional=False, trim="-"))
