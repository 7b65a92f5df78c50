"""What panels that start a job share: its buttons, its session, its updates while it goes, and how it ended."""

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.logs import log_error
from ui.html.status import line, notice, place_line, unexpected_error
from ui.service.jobs import Job, follow
from ui.service.line import LinePlace
from ui.service.services import Services


@dataclass(frozen=True)
class JobPanel:
    """A button that starts a job and one that cancels it. Updates are those of the status, of the ``inputs`` that are
    fixed while it goes on, of both buttons, then of what the panel shows beside.

    Raises nothing: a job's error becomes words.
    """

    name: str  # in the log and, but for the run, in the session
    start: str  # the button's label, and while the job goes on
    working: str
    cancelled: tuple[str, str, None, str]  # the status line of a job that was cancelled
    inputs: int = 0

    def session(self, request: gr.Request) -> str:
        """What the waiting line knows a page's job by: its run by the page alone, other jobs beside it."""
        page = request.session_hash or ""
        return page if self.name == "run" else f"{page}/{self.name}"

    def idle(self) -> list[Any]:
        """Updates of inputs and buttons when nothing goes on."""
        return [*[gr.update(interactive=True)] * self.inputs, *_buttons(self.start, False)]

    def busy(self, label: str = "") -> list[Any]:
        """Updates of inputs and buttons while the job waits or goes on."""
        return [*[gr.update(interactive=False)] * self.inputs, *_buttons(label or self.working, True)]

    def on_cancel(self, services: Services) -> Callable[[gr.Request], list[Any]]:
        """A handler that drops the page's job: updates of status, inputs and buttons."""

        def give_up(request: gr.Request) -> list[Any]:
            services.jobs.forget(self.session(request))
            return [self.cancelled_line(), *self.idle()]

        return give_up

    @property
    def refused(self) -> str:
        """The title of a notice that the job cannot begin."""
        return f"This cannot {self.start.lower()}"

    def refusal(self, error: Exception) -> str:
        """Why the job did not begin, as a notice."""
        if isinstance(error, KvqError):
            return notice(self.refused, str(error))
        log_error(f"{self.name} not begun", error)
        return notice(self.refused, unexpected_error(self.start))

    async def updates(
        self, job: Job, services: Services, beside: int, show: Callable[[list[Any]], Iterable[list[Any]]]
    ) -> AsyncGenerator[list[Any]]:
        """The job's place while it waits, then what ``show`` makes of its events; ``beside`` outputs follow the
        buttons."""
        async for news in follow(job, services.line):
            if isinstance(news, LinePlace):
                yield [place_line(news.ahead, news.seconds), *self.busy("Waiting"), *[gr.skip()] * beside]
                continue
            for update in show(news):
                yield update

    def failure(self, job: Job) -> str | None:
        """Why a job that is over failed, for people; None where it did not."""
        if job.error is None or job.cancelled:
            return None
        if isinstance(job.error, KvqError):
            return str(job.error)
        log_error(f"{self.name} stopped", job.error)
        return unexpected_error(self.start)

    def cancelled_line(self) -> str:
        return line(*self.cancelled)


def _buttons(label: str, working: bool) -> list[Any]:
    return [gr.update(value=label, interactive=not working), gr.update(visible=working)]
