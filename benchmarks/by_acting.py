"""The part of docs/page.md that is written from what acting on a run was measured to cost."""

from typing import Any

from benchmarks.measured import figures, table

WHAT = {
    "added": "A lane added that parts from the answer at once, its prompt held in memory",
    "added, logits held": "A lane added that never parts, the reference's logits held, too",
    "map from memory": "Maps of a layer from what the run's rows left, all lanes",
    "map by rerun, middle layer": "Maps of the middle layer where that is gone, one lane",
    "map by rerun, middle layer, all lanes": "The same, all lanes",
    "map by rerun, last layer": "Maps of the last layer, one lane",
    "map by rerun, last layer, all lanes": "The same, all lanes",
    "map by rerun, middle layer, prompt read again": "Maps of the middle layer where the prompt is gone, too, one lane",
}
VIEWS = {"verdicts": "cards", "damage": "maps"}


def acting_part() -> str:
    found = figures("acting")
    if not found:
        return "Not measured yet: `python benchmarks/acting.py`."
    engine, brush, aims = found.get("engine"), found.get("brush"), found["aims"]
    rows = [*(_engine(engine, aims) if engine else ()), *(_brush(brush, aims) if brush else ())]
    told = table("What | CPU seconds | Of the whole run's | Passed | At most", *rows)
    if engine:
        told += (
            f"\n\n{engine['model']}, {engine['prompt_tokens']} prompt tokens, {engine['new_tokens']} new, a run of "
            f"{engine['lanes']} lanes on {engine['threads']} threads, which took "
            f"{engine['spent']['run']['cpu_s']:.1f} CPU seconds. Measured beside other work: on average "
            f"{engine['load']:.0f} processes wanted the machine's two cores, so that what passed is an upper bound."
        )
    if brush:
        told += (
            f" Brushes: {brush['load']:.0f} processes wanted the two cores beside the browser; the fastest and the "
            "slowest of 20 are in brackets."
        )
    return told


def _engine(engine: dict[str, Any], aims: dict[str, dict[str, float]]) -> list[list[str]]:
    spent, whole = engine["spent"], engine["spent"]["run"]["cpu_s"]
    rows = []
    for name, what in WHAT.items():
        if name in spent:
            own, aim = spent[name], aims.get(name, {})
            most = [f"{100 * aim['ratio']:.0f} %"] if "ratio" in aim else []
            most += [f"{aim['seconds']:g} s"] if aim else []
            share = f"{100 * own['cpu_s'] / whole:.0f} %"
            rows.append([what, f"{own['cpu_s']:.2f}", share, f"{own['passed_s']:.2f} s", ", ".join(most)])
    return rows


def _brush(brush: dict[str, Any], aims: dict[str, dict[str, float]]) -> list[list[str]]:
    most = f"{1000 * aims['brush']['seconds']:.0f} ms"
    return [
        [
            f"A span brushed in the browser, {brush['tokens']} tokens and {brush['lanes']} lanes, {of} in sight",
            "-",
            "-",
            f"{brush[view]['median_ms']:.0f} ms ({brush[view]['fastest_ms']:.0f} to {brush[view]['slowest_ms']:.0f})",
            most,
        ]
        for view, of in VIEWS.items()
        if view in brush
    ]
