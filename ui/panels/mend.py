"""*Mend this model*: its file changed so that q4_0 holds its keys, from the look at it, with before and after."""

import asyncio
import json
import shlex
from collections.abc import AsyncGenerator, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from kvq_core.errors import KvqError, ModelError
from kvq_core.inspection.report import Inspection
from kvq_core.machine.progress import Progress
from kvq_core.settings import settings
from ui.html.escape import safe
from ui.html.numbers import significant
from ui.html.status import line, notice, place_line, progress_line
from ui.panels.job_panel import JobPanel
from ui.service.jobs import Job
from ui.service.services import QUIET, SWIFT, Services, visitor
from ui.service.streams import with_empty_end

if TYPE_CHECKING:  # mending loads gguf, which an app that starts does not
    from kvq_core.mend.mend import Mended, MendRequest

FORMAT, CONTEXT = "q4_0", 4096
MENDING = JobPanel("mending", "Mend this model", "Mending", ("Mending cancelled", "warn", None, "No file was written."))


@dataclass
class MendPanel:
    """``start`` and ``mended`` are out of sight: js/page.js presses the one for the button in the words, and writes the
    file that is to be the form's model into the other."""

    status: gr.HTML
    start: gr.Button
    cancel: gr.Button
    mended: gr.Textbox


def create_mend() -> MendPanel:
    status = gr.HTML("", elem_id="mend-status")
    start = gr.Button(MENDING.start, size="sm", elem_id="mend-run")
    cancel = gr.Button("Cancel mending", size="sm", visible=False, elem_id="mend-cancel")
    return MendPanel(status, start, cancel, gr.Textbox(visible="hidden", elem_id="mended", show_label=False))


def offer_html(found: Inspection | None, model: str) -> str:
    """What mending would do for a model whose keys carry constants, and how it is had; empty for others, and for one
    that is mended."""
    if found is None or not found.at_risk_layers or found.facts.usual_bias is None:
        return ""
    from kvq_core.mend.mend import model_place
    from kvq_core.models.gguf.header import read_header

    try:
        place = model_place(model)
        if place.is_file() and read_header(place).mended is not None:
            return ""
    except KvqError:
        place = Path("model.gguf")
    button = '<button type="button" class="plain-button" data-mend>Mend this model</button>'
    told = (
        f"A few small tensors of the file can be changed so that {FORMAT} holds its keys at up to {CONTEXT:,} tokens; "
        "the rest of the file stays. Nothing is written unless prompts it was not chosen on gain. It takes minutes."
    )
    command = f"python -m kvq_core mend {shlex.quote(str(place))} --for {FORMAT} --context {CONTEXT} --out mended.gguf"
    told_command = f"<p>Other formats and contexts: <code>{safe(command)}</code></p>"
    return f"<h3>Mend the file</h3><p>{told}</p>{'' if settings().public else button}{told_command}"


def wire_mend(panel: MendPanel, model: Any, services: Services) -> None:
    """The button mends in the line of the runs; the file that came of it becomes the form's ``model``."""

    async def work(id: str, request: gr.Request) -> AsyncGenerator[list[Any]]:
        asked = str(id or "").strip()
        async for update in with_empty_end(stream(asked, MENDING.session(request), visitor(request), services)):
            yield update

    def choose(raw: str) -> Any:
        file = json.loads(raw or "{}").get("file")
        return gr.update(value=file) if isinstance(file, str) and Path(file).parent == _folder() else gr.skip()

    outputs = [panel.status, panel.start, panel.cancel]
    panel.start.click(work, model, outputs, **SWIFT)
    panel.cancel.click(MENDING.on_cancel(services), None, outputs, **SWIFT)
    panel.mended.change(choose, panel.mended, model, **QUIET)


def _folder() -> Path:
    return settings().home / "mended"


def request_for(model: str) -> "MendRequest":
    """What is asked for the form's model. Raises KvqError where this instance or its file gives no way."""
    from kvq_core.mend.formats import CacheFormat
    from kvq_core.mend.mend import MendRequest, model_place
    from kvq_core.models.identity import sha256_of

    if settings().public:
        raise ModelError("A public instance writes no model files; mend it on a machine of yours.")
    place = model_place(model)
    if not place.is_file():
        raise ModelError(f"{model} is a folder; mend it with the command, which writes a copy beside it.")
    _folder().mkdir(parents=True, exist_ok=True)
    own = sha256_of(place)[:16]  # files of one name are different models
    name = f"{place.stem}-{own}-{FORMAT}-{CONTEXT}{place.suffix}"
    return MendRequest(place, CacheFormat.of(FORMAT), CONTEXT, _folder() / name)


async def stream(model: str, session: str, visitor: str, services: Services) -> AsyncGenerator[list[Any]]:
    """Updates of status, button and Cancel while a file is mended."""
    try:
        request = await asyncio.to_thread(request_for, model)  # it may hash a large file
        if request.out is not None and request.out.is_file():
            yield [line("Mended before", "done", None, "") + use_html(request.out), *MENDING.idle()]
            return
        job = services.enter(partial(services.mend, request), session, visitor)
    except KvqError as error:
        yield [notice("The model cannot be mended", str(error)), *MENDING.idle()]
        return
    services.jobs.watch(job.ticket)  # this page follows it
    yield [place_line(*astuple(services.line.place(job.ticket))), *MENDING.busy()]
    found: list[Mended] = []

    def show(news: list[Any]) -> Iterator[list[Any]]:
        found.extend(event for event in news if not isinstance(event, Progress))
        if isinstance(news[-1], Progress):
            yield [progress_line(news[-1]), *MENDING.busy()]

    async for update in MENDING.updates(job, services, 0, show):
        yield update
    if not job.replaced:
        yield [_end(job, found), *MENDING.idle()]


def _end(job: Job, found: list["Mended"]) -> str:
    if found:
        return mended_html(found[-1])
    error = MENDING.failure(job)
    return MENDING.cancelled_line() if error is None else notice("The model cannot be mended", error)


def mended_html(found: "Mended") -> str:
    """Before and after, and the file as a model to run; why there is none where nothing was gained."""
    data = found.data()
    if not data["written"]:
        return notice("No file was written", f"{data['why_not']}.", tone="warn")
    kld = data["kld"]
    before, after = (_interval(kld, name) for name in ("before", "after"))
    said = (
        f"Mean KLD under {data['format']}, {data['prompts']} unseen prompts: {before} before, {after} after; "
        f"{significant(data['full_precision_kld'], 2)} in full precision. {data['changed_bytes']:,} bytes changed."
    )
    assert found.request.out is not None
    return line("Mended", "done", None, said) + use_html(found.request.out)


def _interval(kld: dict[str, Any], name: str) -> str:
    low, high = kld[f"{name}_low"], kld[f"{name}_high"]
    told = significant(kld[name], 2)
    return told if low is None else f"{told} ({significant(low, 2)} to {significant(high, 2)})"


def use_html(file: Path) -> str:
    """The file, and a button that makes it the form's model."""
    return (
        f'<p><button type="button" class="plain-button" data-mended="{safe(str(file))}">Use the mended file</button> '
        f"<small>{safe(str(file))}</small></p>"
    )
