"""For the documents: how often a study's intervals hold what they should, in simulation, and what a study costs."""

from collections.abc import Iterator
from typing import Any

from benchmarks.measured import figures, table
from kvq_core.recommend.predict import LEVELS, PREDICTORS, SHOWN
from kvq_core.record.fields import RESULTS_VERSION
from kvq_core.studies.agreement import shipped_agreement


def intervals_part() -> str:
    found = figures("intervals")
    if not found:
        return "Not measured yet: `python benchmarks/intervals.py`."
    rows = [
        (
            f"{each['log_sd']:g}",
            str(each["prompts"]),
            f"{each['covered']:.1%}",
            f"{each['apart']:.1%}",
            f"{each['upper']:.2g}",
        )
        for each in found["rows"]
    ]
    ends = "Upper end over mean that 5 % exceed"
    head = f"Standard deviation of log KLD | Prompts | Intervals that hold the mean | Equal lanes told apart | {ends}"
    return f"{table(head, *rows)}\n\n{found['studies']:,} studies a row, {found['resamples']:,} resamples an interval."


def one_prompt_part() -> str:
    """How often fewer prompts say what all of the study that ships say."""
    if (found := shipped_agreement()) is None:
        return f"Not counted with results version {RESULTS_VERSION}: `python benchmarks/one_prompt.py`."
    named = {None: "both" if len(found["models"]) == 2 else "all"}
    rows = [
        (
            "Tier" if line["what"] == "tier" else "Format to use",
            str(line["prompts"]),
            f"{line['positions']:,.0f}",
            named.get(line["model"], line["model"]),
            f"{line['subsets']:,} x {line['cases']}",
            f"{line['share']:.0%} ({line['low']:.0%} to {line['high']:.0%})",
            f"{line['open']:.0%}" if "open" in line else "-",
        )
        for line in sorted(found["lines"], key=lambda each: each["what"] != "tier")
    ]
    head = "What is said | Prompts | Scored positions | Model | Draws x cases | As all prompts say | Left open"
    said = (
        f"The study that ships: {found['prompts']} prompts, {found['lanes']} lanes, {' and '.join(found['models'])}.",
        f"Engines asked for: {', '.join(found['engines'])}; tolerances: {', '.join(found['tolerances'])}.",
        f"Lanes of a model whose tier all prompts leave open, which are no cases: {found['unsure']}.",
    )
    return f"{table(head, *rows)}\n\n{' '.join(said)}"


def predict_part() -> str:
    """What captures foretell of costs, a table a model."""
    parts = []
    for found in (figures("predict") or {}).values():
        by_name: dict[str, dict[str, dict[str, Any]]] = {}
        for row in found["rows"]:
            by_name.setdefault(row["predictor"], {})[row["level"]] = row
        shown = {predictor: measure for measure, predictor in SHOWN.items()}
        rows = [
            (f"{PREDICTORS[name][0]}{f' (*{shown[name]}*)' if name in shown else ''}", *map(_rho, own.values()))
            for name, own in by_name.items()
        ]
        own = {level: max(row["n"] for row in found["rows"] if row["level"] == level) for level in LEVELS}
        counts = f"Points: {own['layer']:,} layers, {own['lane']} whole lanes"
        lengths = f"{min(found['prompt_tokens'])} to {max(found['prompt_tokens'])} tokens"
        said = (
            f"{found['model']}, {len(found['prompt_tokens'])} prompts of {lengths}, {found['scored']} positions each."
        )
        why = "; ".join(f"{PREDICTORS[row['predictor']][0]}: {row['why']}" for row in _without(found["rows"]))
        none = f" No correlation: {why}." if why else ""
        head = "Shown (*measure of Where*) | All layers together | Layers of a lane | Whole lanes"
        parts.append(f"{table(head, *rows)}\n\n{said} Lanes: {'; '.join(found['lanes'])}. {counts}.{none}")
    return "\n\n".join(parts) or "Not measured yet: `python benchmarks/predict.py`."


def _rho(row: dict[str, Any]) -> str:
    if row["spearman"] is None:
        return "-"
    ends = "" if row["low"] is None else f" ({row['low']:+.2f} to {row['high']:+.2f})"
    return f"{row['spearman']:+.2f}{ends}"


def _without(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from (row for row in rows if row["why"] is not None and row["level"] == "layer")


def study_costs_part() -> str:
    found = figures("studies")
    if not found:
        return "Not measured yet: `python benchmarks/studies.py`."
    return table("What | Measured | Target", *_costs(found))


def _costs(found: dict[str, dict[str, float]]) -> Iterator[tuple[str, ...]]:
    """What was measured, each where it was."""
    if part := found.get("plan"):
        what = f"Planning {part['cells']:,} cells of {part['tokens']} tokens and 3 lanes"
        yield what, f"{part['cpu_s']:.1f} s", f"{part['target_s']} s"
    if part := found.get("resume"):
        what = f"Going on with a study whose {part['cells']:,} cells are done"
        yield what, f"{part['cpu_s']:.1f} s", f"{part['target_s']} s"
    if part := found.get("open"):
        what = f"Opening a study of {part['prompts']} prompts and {part['lanes']} lanes, all its figures"
        yield what, f"{part['cpu_s']:.1f} s", f"{part['target_s']} s"
    if part := found.get("memory"):
        what = f"What a worker's memory grows by from a tenth of {part['cells']} cells to all of them"
        yield what, f"{part['grown_bytes'] / 1e6:.1f} MB", "0"
    if part := found.get("coordinator"):
        what = f"Share of the work of the process that gives out cells, of {part['cells']} cells on two workers"
        yield what, f"{part['share']:.1%}", f"{part['target']:.0%}"
    if part := found.get("workers"):
        yield (
            "Two workers of a thread against one, a short study",
            f"{part['ratio']:.2f} times",
            f"{part['target']} times",
        )
