"""A page that was asked for no run: the one that ships is shown at once; others that ship are a click away."""

from typing import Any

from kvq_core.pipeline.examples import examples
from ui.form.setup_panel import runs_here
from ui.html.escape import safe
from ui.panels.tour import shipped_ids, tour

HOME = "first-sight"  # the example that an empty page shows


def home() -> dict[str, Any] | None:
    """What a page shows that was asked for nothing; None where the example is missing or its model is not offered."""
    run = shipped_ids().get(HOME)
    return None if run is None or not runs_here(examples()[HOME].spec) else {"run": run, "ticket": "link", "home": True}


def welcome() -> str:
    """Above a form that waits for Run, and below the run of an empty page: the tour, and stored runs to open."""
    named = [(examples()[name], run) for name, run in shipped_ids().items()]
    if not named:
        return ""
    items = "".join(
        f'<a class="example" href="?run={safe(run)}"><b>{safe(example.title)}</b>'
        f"<small>{safe(', '.join(lane.label for lane in example.spec.lanes))}</small></a>"
        for example, run in named
    )
    return (
        '<div class="card welcome"><h2>What does a smaller KV cache change?</h2><div class="examples">'
        f'<a class="example tour" href="?learn=1"><b>Take the tour</b><small>{len(tour())} steps from the KV cache to '
        f"each method's idea, on stored runs</small></a>{items}</div></div>"
    )
