"""The parts of docs/page.md that are written from what visits and a newcomer's tasks were measured to cost."""

from typing import Any

from benchmarks.measured import figures, table

# A budget -> what it is of, and how its values are written.
TOLD: dict[str, tuple[str, str, float]] = {
    "answer_s": ("an answer on the screen after the first byte", "{:.1f} s", 1),
    "first_paint_s": ("first paint", "{:.2f} s", 1),
    "layout_shift": ("layout shift", "{:.3f}", 1),
    "bytes": ("before any view is opened", "{:.2f} MB", 1e6),
    "view_bytes": ("each view's data, the largest", "{:.0f} KB", 1e3),
    "switch_ms": ("switching a lane, in the slowest view", "{:.0f} ms", 1),
    "heap_mb": ("JavaScript heap, every view opened", "{:.0f} MB", 1),
}
IDLE = 2.0  # load up to which seconds are told
APART = ("budgets", "load", "slow line")


def visits_part() -> str:
    """A column a page: the empty one, then runs by their names."""
    found = figures("page_first")
    if not found:
        return "Not measured yet."
    pages = {name: of for name, of in found.items() if name not in APART}
    rows = [
        [what, form.format(found["budgets"][name] / unit), *(_told(of, name, form, unit) for of in pages.values())]
        for name, (what, form, unit) in TOLD.items()
    ]
    slow, load = found["slow line"], found["load"]
    beside = f"beside other work, {load:.1f} processes on average, so that times are upper bounds"
    busy = slow.get("load", load)
    return (
        table(" | ".join(["What", "At most", *pages]), *rows)
        + f"\n\nOver a line of 400 ms and 1.6 Mbit/s an empty page shows its answer {slow['answer_s']:.1f} s after the "
        f"first byte, all of it is there after {slow['usable_s']:.0f} s, and a view that is opened then is drawn "
        f"{slow['view_drawn_s'] - slow['usable_s']:.0f} s later"
        f"{f' (beside {busy:.0f} other processes)' if busy >= 1 else ''}. "
        f"{'All else was measured' if busy >= 1 > load else 'Measured'} on two cores, "
        f"{'idle before' if load < 1 else beside}."
    )


def _told(of: dict[str, Any], name: str, form: str, unit: float) -> str:
    return form.format(of[name] / unit) if name in of else "-"


def newcomers_part() -> str:
    """A row a task: acts and seconds on the page before its redesign and on today's."""
    found = figures("page_tasks")
    if not found:
        return "Not measured yet."
    before, idle = found.get("before", {}), found["load"] <= IDLE
    rows = [[task, _walked(before.get(task), idle), _walked(now, idle)] for task, now in found["now"].items()]
    said = "Seconds on two idle cores." if idle else "Acts alone: no idle machine was there to take seconds on."
    return f"{table('Task | Before | Now', *rows)}\n\n{said}"


def _walked(one: dict[str, float] | None, idle: bool) -> str:
    if one is None:
        return "-"
    return f"{one['acts']}, {one['seconds']:.1f} s" if idle else f"{one['acts']}"
