"""``make readme``: write the generated parts of README.md and docs/ again, from what was measured and from the code.

A part lies between ``<!-- name -->`` and ``<!-- /name -->``; PARTS says what belongs there. Figures come from the JSON
files beside this script, which ``make bench`` and ``make load`` write, and from the shipped boards of claims. A figure
whose file is missing has no row: nothing here is typed by hand. A test compares the documents with what this writes.
The reference table's picture is drawn, too, once ``python benchmarks/table.py`` has kept its figures, and what the page
tells of GPUs is written.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.by_acting import acting_part
from benchmarks.by_architecture import models_part
from benchmarks.by_format import baselines_part, engine_part, formats_part
from benchmarks.by_gpu import gpu_part, gpu_summary_part, latency_part, ship
from benchmarks.by_kernel import kernels_part, slow_part
from benchmarks.by_lane import lane_costs, lanes_part, prefill_part
from benchmarks.by_mend import mend_part, mended_line
from benchmarks.by_model import board_part, claims_part, conversion, main_jobs, maps_part, methods_part, names_part
from benchmarks.by_page import newcomers_part, visits_part
from benchmarks.by_policy import advice_part, policies_part
from benchmarks.by_run import EXAMPLE_SHOWN, demonstration_part, first_links_part
from benchmarks.by_study import intervals_part, one_prompt_part, predict_part, study_costs_part
from benchmarks.by_table import draw, instructions_part, results_part, table_part
from benchmarks.by_task import suites_part, tasks_part, verifiers_part
from benchmarks.by_third import third_part
from benchmarks.measured import HERE, figures, table
from benchmarks.papers import coverage_part, papers_part
from kvq_core.analysis.verdict import EXPLAINED
from kvq_core.pipeline.examples import example_ids
from kvq_core.presets import BUNDLES, bundle_lanes, presets
from kvq_core.spec import LANE_OPTIONS, Capture, ComparisonSpec, Lane, Rule, Stress

ROOT = HERE.parent
PART = re.compile(r"(<!-- ([a-z-]+) -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)
EXAMPLE = re.compile(
    r'(\[run |127\.0\.0\.1:7860/\?run=|"run": ")([0-9a-f]{16})'
)  # its id changes with the results' version


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rewritten(text: str) -> str:
    """The document with every part, and every link to the stored example, as it should be."""

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}{PARTS[found[2]]()}\n{found[4]}" if found[2] in PARTS else found[0]

    def example(found: re.Match[str]) -> str:
        kept = found[2] in example_ids().values()  # of another example that a part names
        return found[1] + (found[2] if kept else example_ids()[EXAMPLE_SHOWN])

    return EXAMPLE.sub(example, PART.sub(part, text))


def costs_part() -> str:
    parts = (
        main_jobs(),
        lane_costs(),
        conversion(),
        _captures(),
        _methods_cost(),
        _codebook_scores(),
        _page(),
        _load(),
    )
    rows = [row for part in parts for row in part]
    return table("What | Measured | Target", *rows)


def _captures() -> Iterator[tuple[str, ...]]:
    if found := figures("captures"):
        ratio = found["ratio"]
        normal, deep, most = (100 * (value - 1) for value in (ratio["normal"], ratio["deep"], found["budget"]))
        yield (
            "What captures add to decoding, measuring the caches after the last step included: "
            f"{found['lanes']} lanes and the noise floor, "
            f"{found['prompt_tokens']:,} prompt tokens, {found['new_tokens']} new",
            f"{normal:.0f} % at default detail, {deep:.0f} % deep",
            f"{most:.0f} % at default detail",
        )


def _methods_cost() -> Iterator[tuple[str, ...]]:
    if cost := figures("five_methods"):
        targets = cost["targets"]
        alike: dict[float | None, list[str]] = {}
        for label, most in targets["encode_s"].items():
            alike.setdefault(most, []).append(label)
        for most, labels in alike.items():
            seconds = sorted({f"{cost['encode_s'][label]:.2f}" for label in labels})
            yield (
                f"Encoding {cost['prompt_tokens']:,} prompt tokens in all layers: {', '.join(labels)}",
                " to ".join(dict.fromkeys((seconds[0], seconds[-1]))) + " s",
                f"{most:g} s" if most else "",
            )
        yield (
            "A step of reference + QAQ against reference + KIVI",
            f"{cost['qaq_step_ratio']:.2f} times",
            f"{targets['qaq_step_ratio']:g} times",
        )


def _codebook_scores() -> Iterator[tuple[str, ...]]:
    for row in figures("commvq_scores") or ():
        if (row["levels"], row["stages"]) == (16, 8):  # the shipped codebooks' 1 bit
            millions = {form: f"{count / 1e6:.1f} M" for form, count in row["multiplications"].items()}
            yield (
                f"Multiplications for a query's scores over {row['tokens']:,} keys of CommVQ at 1 bit",
                f"{millions['naive']} decoding by Eq. 15, {millions['look-up']} by look-up, "
                f"{millions['commuted']} commuted",
                "",
            )


def _page() -> Iterator[tuple[str, ...]]:
    if found := figures("page"):
        page, most = found["page"], found["budgets"]
        answered = f"{page['answered_s']:.2f} s", f"{most['answered_s']:g} s"
        yield "Opening a finished run's link: the server's answers", *answered
        yield "A finished run's page, scripts apart", f"{page['bytes'] / 1e6:.2f} MB", f"{most['bytes'] / 1e6:g} MB"
        yield "Until it can be used", f"{page['interactive_s']:.1f} s", f"{most['interactive_s']:g} s"
        slowest, limit = max(page["first_switch_ms"], page["switch_ms"]), f"{most['switch_ms']:g} ms"
        yield "Switching a view that was pointed at, the first time or again", f"{slowest:.0f} ms", limit
        yield "Switching a view by a click out of nowhere", f"{page['at_once_ms']:.0f} ms", limit
        yield "JavaScript heap, every view opened", f"{page['heap_mb']:.0f} MB", f"{most['heap_mb']:g} MB"


def _load() -> Iterator[tuple[str, ...]]:
    if found := figures("load"):
        crowd = found["private"]
        ended = ", ".join(f"{count} {outcome}" for outcome, count in crowd["outcomes"].items())
        waits, page = crowd["wait_s"], crowd["page_latency"]
        yield (
            f"{crowd['visitors']} visitors press Run at once, a fifth of them leave, {found['cores']} cores",
            f"{ended}; {crowd['mixed_up']} mixed up; all over in {crowd['seconds']:.0f} s",
            "an answer for each",
        )
        yield "In line meanwhile", f"median {waits['median']:.0f} s, at most {waits['max']:.0f} s", ""
        yield "Opening the page meanwhile", f"median {page['median_s']:.2f} s, 95 % under {page['p95_s']:.2f} s", ""
        after = (wave["after"]["collected_mb"] for wave in (crowd, found["again"]))
        held = ", ".join(f"{size:,.0f} MB" for size in (crowd["before"]["collected_mb"], crowd["peak_mb"], *after))
        yield "The server's memory before, at its peak, after, after 50 more", held, ""
        refused = " + ".join(f"{row['refused']} of {row['asked']}" for row in found["public"])
        yield "Refused by each limit of a public instance, with the reason", refused, "one or more of each"


def load_part() -> str:
    """What each limit of a public instance did, and what a refused visitor was told."""
    if not (found := figures("load")):
        return "Not measured yet: `make load`."
    rows = [
        (f"{row['limit']} (`{row['variable']}`)", f"{row['asked']}", f"{row['ran']}", f"{row['refused']}", reason)
        for row in found["public"]
        for reason in [max(row["reasons"], key=row["reasons"].get, default="")]
    ]
    return table("Limit | Asked | Ran | Refused | With the reason", *rows)


def presets_part() -> str:
    rows = [(f"[`{p.name}`](http://127.0.0.1:7860/?preset={p.name})", p.question) for p in presets().values()]
    return table("Preset | Question", *rows)


def fields_part() -> str:
    """Every field of a comparison with its default and what it says of itself."""
    rows = [
        (
            f"`{prefix}{name}`",
            "" if field.is_required() else f"`{_plain(field.get_default(call_default_factory=True))}`",
            field.description or "",
        )
        for model, prefix in (
            (ComparisonSpec, ""),
            (Lane, "lanes[]."),
            (Rule, "lanes[].rules[]."),  # beside the options that it shares with a lane
            (Capture, "capture."),
            (Stress, "stress."),
        )
        for name, field in model.model_fields.items()
        if field.description and not (model is Rule and name in LANE_OPTIONS)
    ]
    return table("Field | Default | Meaning", *rows)


def _plain(value: Any) -> str:
    return json.dumps(value, default=list)


def inspection_part() -> str:
    found = figures("inspection")
    assert found is not None
    rows = [
        (case["model"], case["twin"], *(", ".join(map(str, case[name])) or "none" for name in ("named", "harmful")))
        for case in found["cases"]
    ]
    return (
        table("Model | Stress | Named at risk | Costs that much alone", *rows)
        + f"\n\nMeasured on {found['date']}. The last column: layers whose keys per token at {found['bits']} bits "
        f"alone cost {found['harmful_kld']:g} nats of KLD or more. Of {found['harmful']} such layers among "
        f"{found['layers']}, {found['named_of_harmful']} were named; {found['false_alarms']} others were, too. The "
        "thresholds were set on the two models without stress." + _tiny(found.get("tiny"))
    )


def _tiny(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    return (
        f" Of {found['layers']} layers of {len(found['models'])} tiny models with random weights {found['named']} were "
        f"named, and {found['harmful']} cost as much."
    )


def bundles_part() -> str:
    """Bundles with the question that each answers, and what may be given beside the name."""
    rows = []
    for name, bundle in BUNDLES.items():
        options = "; ".join(f"`{option}`: {told.allowed}" for option, told in bundle.options.items())
        lanes = len(bundle_lanes(name))
        rows.append([f"`{name}`", bundle.question, str(lanes), options])
    return table("Bundle | Question | Lanes | Options", *rows)


PARTS: dict[str, Callable[[], str]] = {
    "first-links": first_links_part,
    "method-names": names_part,
    "results": results_part,
    "mended": mended_line,
    "methods": methods_part,
    "claims": claims_part,
    "board": board_part,
    "costs": costs_part,
    "limits": load_part,
    "inspection": inspection_part,
    "demonstration": demonstration_part,
    "presets": presets_part,
    "tiers": lambda: EXPLAINED,
    "fields": fields_part,
    "bundles": bundles_part,
    "formats": formats_part,
    "engine": engine_part,
    "baselines": baselines_part,
    "lanes": lanes_part,
    "prefill": prefill_part,
    "intervals": intervals_part,
    "one-prompt": one_prompt_part,
    "predict": predict_part,
    "study-costs": study_costs_part,
    "policies": policies_part,
    "advice": advice_part,
    "papers": papers_part,
    "coverage": coverage_part,
    "latency": latency_part,
    "recall": maps_part,
    "third": third_part,
    "suites": suites_part,
    "visits": visits_part,
    "newcomers": newcomers_part,
    "acting": acting_part,
    "verifiers": verifiers_part,
    "tasks": tasks_part,
    "models": models_part,
    "mend": mend_part,
    "kernels": kernels_part,
    "slow-methods": slow_part,
    "gpu": gpu_part,
    "gpu-summary": gpu_summary_part,
    "reference-table": table_part,
    "instructions": instructions_part,
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for file in documents():
        text = file.read_text(encoding="utf-8")
        if (new := rewritten(text)) != text:
            file.write_text(new, encoding="utf-8")
            print(f"{file.relative_to(ROOT)}: written")
    draw()
    ship()


if __name__ == "__main__":
    main()
