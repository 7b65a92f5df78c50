"""The status line: what is happening, in words."""

from kvq_core.events import Encoding, Event, Filling, Loading, Prefill, Step, Summarizing
from ui.html.escape import safe
from ui.html.numbers import plural


def line(text: str, tone: str = "busy", done: float | None = None, detail: str = "") -> str:
    """A sentence with an optional bar; ``tone`` is busy, done, warn or bad."""
    bar = (
        ""
        if done is None
        else f'<div class="meter"><span style="width:{100 * min(1.0, max(0.0, done)):.0f}%"></span></div>'
    )
    more = f"<small>{safe(detail)}</small>" if detail else ""
    return f'<div class="status {tone}" role="status"><div><b>{safe(text)}</b>{more}</div>{bar}</div>'


def place_line(ahead: int, seconds: int | None) -> str:
    """The place in line and the wait, for work that has not begun."""
    if not ahead:
        return line("Starting", done=0.0)
    wait = "" if seconds is None else f"It starts in {waiting_line(seconds)}. "
    return line(
        f"Waiting for {plural(ahead, 'run')} ahead of yours",
        done=0.0,
        detail=f"{wait}Keep this page open.",
    )


def waiting_line(seconds: int) -> str:
    """``a few seconds``, ``about 40 s``, ``about 6 min``."""
    if seconds <= 5:
        return "a few seconds"
    return f"about {seconds} s" if seconds < 90 else f"about {round(seconds / 60):,} min"


def event_line(event: Event) -> str | None:
    """The line for a progress event; None for the last one."""
    found = event_words(event)
    return None if found is None else line(found[0], done=found[1])


def event_words(event: Event) -> tuple[str, float] | None:
    """What a run is doing, and the share of it that is done; None for the last event."""
    match event:
        case Loading(done=done, total=total) if total:
            return f"Converting the model, once: {done / 1e6:,.0f} of {total / 1e6:,.0f} million weights", 0.0
        case Loading():
            return "Loading the model", 0.0
        case Prefill(done=done, total=total):
            return f"Prefill: {done:,} of {total:,} prompt tokens", 0.25 * done / max(1, total)
        case Encoding(label=label, index=index, total=total):
            return f"Encoding the cache of {label}", 0.25 + 0.1 * index / max(1, total)
        case Filling(labels=labels, done=done, total=total):
            said = f"Reading the prompt through the cache of {' and '.join(labels)}: {done:,} of {total:,} tokens"
            return said, 0.35
        case Step(done=done, total=total, batch=batch):
            which = f", lanes {batch.start + 1} to {batch.stop} of {len(event.lanes)}" if batch else ""
            return f"Step {done:,} of {total:,}{which}", 0.35 + 0.6 * done / max(1, total)
        case Summarizing():
            return "Measuring: spectra, errors and scores", 0.96
    return None


def notice(title: str, text: str, advice: str = "", tone: str = "bad") -> str:
    """A message where the person is."""
    more = f"<p>{safe(advice)}</p>" if advice else ""
    return f'<div class="notice {tone}" role="alert"><b>{safe(title)}</b><p>{safe(text)}</p>{more}</div>'


def unexpected_error(action: str = "Run") -> str:
    """What is said of an error that nobody foresaw; ``action`` is what to do again."""
    return f"Something went wrong that should not have; it was logged. {action} again, and report it if it returns."
