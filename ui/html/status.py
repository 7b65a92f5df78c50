"""The status line: what is happening, in words."""

from collections.abc import Sequence
from dataclasses import replace

from kvq_core.machine.progress import Progress
from kvq_core.record.events import STAGES, Event, Finished, progress
from ui.html.escape import safe
from ui.html.numbers import plural

LARGE = {"bytes": "MB", "weights": "million weights"}  # units of which there are millions
DOES = {
    "Prefill": "reads the prompt once, for all lanes",
    "Encode": "each lane stores its keys and values",
    "Decode": "a token a step, all lanes at once",
    "Measure": "errors, spectra and scores",
}


def line(text: str, tone: str = "busy", done: float | None = None, detail: str = "") -> str:
    """A sentence with an optional bar; ``tone`` is busy, done, warn or bad."""
    bar = "" if done is None else _meter(done)
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


def sentence(now: Progress) -> str:
    """``Prefill: 12 of 100 prompt tokens``; what is being done alone where nothing is counted."""
    if not now.unit:
        return now.doing
    if now.unit in LARGE:
        return f"{now.doing}: {now.done / 1e6:,.0f} of {now.total / 1e6:,.0f} {LARGE[now.unit]}"
    return f"{now.doing}: {now.done:,} of {now.total:,} {now.unit}"


def progress_line(now: Progress, stages: Sequence[str] = ()) -> str:
    """The line of a job that goes on: what it does, the seconds that are left, and a bar, or one for each of its
    ``stages``."""
    left = "" if now.left is None else f'<small class="left" data-left="{now.left:.1f}">{left_line(now.left)}</small>'
    bars = _stages(stages, now) if stages else _meter(now.part if now.share is None else now.share)
    return f'<div class="status busy" role="status"><div><b>{safe(sentence(now))}</b>{left}</div>{bars}</div>'


def event_line(event: Event, left: float | None = None) -> str | None:
    """The line of a run's event, with the seconds that are ``left`` where they are known; None for the last one."""
    return None if isinstance(event, Finished) else progress_line(replace(progress(event), left=left), STAGES)


def left_line(seconds: float) -> str:
    """``about 12 s left``; js/waiting.js counts down in the same words."""
    whole = round(seconds)
    if whole < 2:
        return "a moment left"
    return f"about {whole} s left" if whole < 90 else f"about {round(whole / 60)} min left"


def _meter(part: float) -> str:
    return f'<div class="meter"><span style="width:{100 * min(1.0, max(0.0, part)):.0f}%"></span></div>'


def _stages(names: Sequence[str], now: Progress) -> str:
    """The stages of a run, each with its bar, and what it does."""
    parts, stage = [], names.index(now.stage) if now.stage else -1
    for at, name in enumerate(names):
        state, part = ("done", 1.0) if at < stage else ("now", now.part) if at == stage else ("later", 0.0)
        parts.append(
            f'<li class="{state}"{" aria-current=step" * (state == "now")}><b>{name}</b><small>{DOES[name]}</small>'
            f'<span class="meter"><span style="width:{100 * min(1.0, part):.0f}%"></span></span></li>'
        )
    return f'<ol class="stages">{"".join(parts)}</ol>'


def notice(title: str, text: str, advice: str = "", tone: str = "bad") -> str:
    """A message where the person is."""
    more = f"<p>{safe(advice)}</p>" if advice else ""
    return f'<div class="notice {tone}" role="alert"><b>{safe(title)}</b><p>{safe(text)}</p>{more}</div>'


def unexpected_error(action: str = "Run") -> str:
    """What is said of an error that nobody foresaw; ``action`` is what to do again."""
    return f"Something went wrong that should not have; it was logged. {action} again, and report it if it returns."
