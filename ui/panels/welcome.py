"""The welcome of an empty page: what this is, what to press, and stored runs to open."""

from kvq_core.pipeline.examples import examples
from ui.html.escape import safe
from ui.panels.tour import shipped_ids, tour

STEPS = (
    ("Pick a preset", "or type a prompt. Longer than a lane's full-precision window, or nothing is quantized."),
    ("Set the lanes", "Each is one way to store the KV cache; all share one prefill and one model."),
    ("Press Run", "The answers stream side by side; then come the numbers, and where the damage is."),
)


def welcome() -> str:
    steps = "".join(f"<li><b>{safe(title)}</b><span>{safe(text)}</span></li>" for title, text in STEPS)
    return (
        '<div class="card welcome"><h1>What does a smaller KV cache change?</h1>'
        "<p>One prompt, one model, the full-precision cache as the reference, and beside it the same answer under each "
        f"quantized cache.</p>{_shipped()}<ol>{steps}</ol></div>"
    )


def _shipped() -> str:
    """The runs that ship with the app, and the tour through them: something to look at before anything runs."""
    named = [(examples()[name], run) for name, run in shipped_ids().items()]
    if not named:
        return ""
    items = "".join(
        f'<a class="example" href="?run={safe(run)}"><b>{safe(example.title)}</b>'
        f"<small>{safe(', '.join(lane.label for lane in example.spec.lanes))}</small></a>"
        for example, run in named
    )
    return (
        f'<div class="examples"><a class="example tour" href="?learn=1"><b>Take the tour</b>'
        f"<small>{len(tour())} steps from the KV cache to each method's idea, on stored runs</small></a>{items}</div>"
    )
