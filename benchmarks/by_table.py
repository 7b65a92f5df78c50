"""The reference table's picture and its best lanes, and for the README some lanes that many know, once it was computed;
nothing while it was not."""

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
KNOWN = (  # lanes of the README's table
    "llama.cpp q8_0",
    "vLLM fp8",
    "llama.cpp q4_0",
    "vLLM int4_per_token_head",
    "vLLM turboquant 4bit_nc",
    "4.5 bits: kivi K4 V2",
    "4 + 64: SVDq 2, V 2",
    "4 + 64: CommVQ 2",
    "4 + 64: SQuat 2",
    "4 + 64: InnerQ 2",
    "4 + 64: QAQ 2",
)
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
    matched = f"Bytes are matched at {MATCHED_BITS} bits an element over these prompts."
    said = f"{caption(found)} {matched}{_wide(found)}{_older(found)} Of each setting {BEST}:"
    parts = ["## What was measured", f"![Mean KLD of every lane]({PICTURE.name})", said, table(head, *rows)]
    return "\n\n".join(parts)


def results_part() -> str:
    """For the README: lanes that many know on every model, and the two that change places most surely."""
    found = _found()
    if not found:
        return ""
    lines = [line for line in _shown(next(iter(found.values()))) if line["label"] in KNOWN]
    rows = [
        (setting(line["label"])[1], f"{(line['key_bits'] + line['value_bits']) / 2:.1f}", *_losses(line, found))
        for line in sorted(lines, key=lambda each: each["kld_mean"])
    ]
    head = " | ".join(["Format", "Bits", *(short_title(part["title"]) for part in found.values())])
    bits = "Bits are of an element, windows and scales included."
    return f"{table(head, *rows)}\n\n{caption(found)} {bits}{_older(found)}\n\n{_swapped(found)}"


def _swapped(found: dict[str, Any]) -> str:
    """Of the lanes above those that change places between two models by most, where no interval reaches another."""
    if len(found) < 2:
        return ""
    first, second = ({line["label"]: line for line in _shown(part)} for part in [*found.values()][:2])
    both = [label for label in KNOWN if label in first and label in second]
    swaps = {
        (one, other): min(_lead(first[one], first[other]), _lead(second[other], second[one]))
        for one in both
        for other in both
    }
    if not (surely := {pair: lead for pair, lead in swaps.items() if lead > 1}):
        return ""
    pair = max(surely, key=lambda each: surely[each])
    titles = [short_title(part["title"]) for part in found.values()]
    one, other = (setting(label)[1] for label in pair)
    losses = [" against ".join(_number(lines[label]["kld_mean"]) for label in pair) for lines in (first, second)]
    on = f"on {titles[0]} ({losses[0]}), and more on {titles[1]} ({losses[1]})"
    return f"**Rankings change with the model.** {one} loses less than {other} {on}."


def _lead(better: dict[str, Any], worse: dict[str, Any]) -> float:
    """How many times the end of the one interval the begin of the other is; over 1 where they are apart."""
    return float(worse["kld_low"] / better["kld_high"])


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
