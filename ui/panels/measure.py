"""Measure the lanes of the run shown, one at a time with packed caches: on GPU machines, explained elsewhere."""

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.logs import tell_error
from kvq_core.measuring import LeftOut, Measured, Request, gpu
from kvq_core.spec import parse_spec
from ui.desk import Place
from ui.jobs import follow
from ui.services import QUIET, Services, visitor
from ui.status import line, notice, queued
from ui.text import safe

COMMAND = "python -m kvq_core measure --preset first-look"
HEAD = ("Lane", "Path", "ms a token", "Cache, MB", "Of unquantized", "Peak, MB")
NEW_TOKENS = 64
UNEXPECTED = "Something went wrong that should not have; it was logged. Measure again, and report it if it returns."


def create_measure(shown: gr.State, services: Services) -> gr.Accordion:
    """A closed section. It measures in the line of the runs, since both need the machine to themselves."""
    with gr.Accordion("Speed and memory with packed caches", open=False, elem_id="measure") as section:
        found = gpu()
        gr.HTML(explained(found))
        if found is not None:
            button, told = gr.Button("Measure", elem_id="measure-run"), gr.HTML("", elem_id="measure-told")

            async def work(shown: dict[str, Any], request: gr.Request) -> AsyncGenerator[str]:
                async for update in stream(shown, session(request), visitor(request), services):
                    yield update

            button.click(work, shown, told, **QUIET)
    return section


def explained(device: str | None) -> str:
    """What is measured, and where that is possible."""
    what = (
        "A run shows what quantization does to the answers, on dequantized copies. Here each lane runs alone with its "
        "cache in packed form only, and is timed and weighed."
    )
    if device is not None:
        return f'<p>{what}</p><p class="muted">{safe(device)}, {NEW_TOKENS} new tokens a lane.</p>'
    why = (
        "This machine has no GPU. The plain-torch reference would run, which dequantizes the cache at every step: its "
        "times would say nothing about GPUs, and there is no GPU memory to watch. What a command can tell here is how "
        "many bytes each packed cache holds:"
    )
    return f"<p>{what}</p><p>{why}</p><p><code>{safe(COMMAND)}</code></p>"


def session(request: gr.Request) -> str:
    """What the desk knows a page's measurement by, apart from its runs."""
    return f"{request.session_hash or ''}/measure"


async def stream(shown: dict[str, Any], session: str, visitor: str, services: Services) -> AsyncGenerator[str]:
    """The section's contents while the lanes of the run shown are measured."""
    if not shown.get("run"):
        yield line("Run a comparison first, then measure it", "warn")
        return
    try:
        record, _ = services.shelf.get(shown["run"])
        measuring = partial(services.measure, parse_spec(record.spec), Request(new_tokens=NEW_TOKENS))
        job = services.jobs.watch(services.enter(measuring, session, visitor).ticket)
    except KvqError as error:
        yield notice("The lanes cannot be measured", str(error))
        return
    assert job is not None  # taken by the one who has just made it
    yield queued(services.desk.place(job.ticket))
    found: list[Measured | LeftOut] = []
    async for news in follow(job, services.desk):
        if isinstance(news, Place):
            yield queued(news)
        else:
            found += news
            yield table(found)
    if isinstance(job.error, KvqError):
        yield notice("The lanes cannot be measured", str(job.error))
    elif job.error is not None:
        tell_error("measuring stopped", job.error)
        yield notice("The lanes cannot be measured", UNEXPECTED)


def table(found: list[Measured | LeftOut]) -> str:
    """Measured lanes as rows, the rest with their reasons."""
    measured = [m for m in found if isinstance(m, Measured)]
    rows = "".join(_row(m, measured[0].cache_bytes) for m in measured)
    head = "".join(f'<th scope="col">{title}</th>' for title in HEAD)
    out = "".join(f"<li>{safe(f.label)}: {safe(f.reason)}</li>" for f in found if isinstance(f, LeftOut))
    shape = f"{measured[0].prompt_tokens:,} prompt tokens, {measured[0].device}, {measured[0].dtype}"
    table = f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{table}</div><p class="muted">{safe(shape)}</p>' + (
        f"<ul>{out}</ul>" if out else ""
    )


def _row(m: Measured, whole: int) -> str:
    taken = "+".join(sorted({path for paths in m.paths.values() for path in paths}) or ["torch"])
    peak = "-" if m.peak_decode_bytes is None else f"{m.peak_decode_bytes / 1e6:,.0f}"
    held = f"{m.cache_bytes / 1e6:,.2f}", f"{m.cache_bytes / whole:.1%}"
    cells = (taken, f"{m.ms_per_token:.2f}", *held, peak)
    return f'<tr><th scope="row">{safe(m.label)}</th>' + "".join(f"<td>{safe(cell)}</td>" for cell in cells) + "</tr>"
