"""The status line: what is happening, in words."""

from kvq_core.record.events import (
    STAGES,
    Encoding,
    Event,
    Filling,
    Loading,
    Prefill,
    Replaying,
    Step,
    Summarizing,
    progress,
)
from ui.html.escape import safe
from ui.html.numbers import plural

DOES = {
    "Prefill": "reads the prompt once, for all lanes",
    "Encode": "each lane stores its keys and values",
    "Decode": "a token a step, all lanes at once",
    "Measure": "errors, spectra and scores",
}


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


def event_line(event: Event, left: float | None = None) -> str | None:
    """The line for a progress event, with the seconds that are ``left`` where they are known; None for the last one."""
    said = _said(event)
    if said is None:
        return None
    counted = "" if left is None else f'<small class="left" data-left="{left:.1f}">{left_line(left)}</small>'
    stage, done = progress(event)
    return f'<div class="status busy" role="status"><div><b>{safe(said)}</b>{counted}</div>{_stages(stage, done)}</div>'


def event_words(event: Event) -> tuple[str, float] | None:
    """What a run is doing, and the share of its stages that is done; None for the last event."""
    said = _said(event)
    if said is None:
        return None
    stage, done = progress(event)
    return said, (stage + done) / len(STAGES)


def left_line(seconds: float) -> str:
    """``about 12 s left``; js/waiting.js counts down in the same words."""
    whole = round(seconds)
    if whole < 2:
        return "a moment left"
    return f"about {whole} s left" if whole < 90 else f"about {round(whole / 60)} min left"


def _stages(stage: int, done: float) -> str:
    """The stages of a run, each with its bar, and what it does."""
    parts = []
    for at, name in enumerate(STAGES):
        state, part = ("done", 1.0) if at < stage else ("now", done) if at == stage else ("later", 0.0)
        parts.append(
            f'<li class="{state}"{" aria-current=step" * (state == "now")}><b>{name}</b><small>{DOES[name]}</small>'
            f'<span class="meter"><span style="width:{100 * min(1.0, part):.0f}%"></span></span></li>'
        )
    return f'<ol class="stages">{"".join(parts)}</ol>'


def _said(event: Event) -> str | None:
    match event:
        case Loading(done=done, total=total, doing="downloading") if total:
            return f"Downloading the model: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        case Loading(done=done, total=total) if total:
            return f"Converting the model, once: {done / 1e6:,.0f} of {total / 1e6:,.0f} million weights"
        case Loading():
            return "Loading the model"
        case Prefill(done=done, total=total):
            return f"Prefill: {done:,} of {total:,} prompt tokens"
        case Encoding(label=label):
            return f"Encoding the cache of {label}"
        case Filling(labels=labels, done=done, total=total):
            return f"Reading the prompt through the cache of {' and '.join(labels)}: {done:,} of {total:,} tokens"
        case Step(done=done, total=total, batch=batch):
            which = f", lanes {batch.start + 1} to {batch.stop} of {len(event.lanes)}" if batch else ""
            return f"Step {done:,} of {total:,}{which}"
        case Replaying(done=done, total=total, layer=layer):
            return f"Following the answer up to layer {layer}: {done:,} of {total:,} tokens"
        case Summarizing():
            return "Measuring: spectra, errors and scores"
    return None


def notice(title: str, text: str, advice: str = "", tone: str = "bad") -> str:
    """A message where the person is."""
    more = f"<p>{safe(advice)}</p>" if advice else ""
    return f'<div class="notice {tone}" role="alert"><b>{safe(title)}</b><p>{safe(text)}</p>{more}</div>'


def unexpected_error(action: str = "Run") -> str:
    """What is said of an error that nobody foresaw; ``action`` is what to do again."""
    return f"Something went wrong that should not have; it was logged. {action} again, and report it if it returns."
