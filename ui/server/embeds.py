"""``/embed?run=...&view=...``: one figure of a run without the page around it."""

from functools import partial

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse

from kvq_core.errors import KvqError
from ui.export.embed import embed
from ui.html.escape import safe
from ui.service.access import open_run
from ui.service.services import Services


class Embeds:
    """200 with the figure, 404 with one line where it cannot be drawn. A run that is not shared on a public instance
    opens for nobody here: a frame on another site has no history to find its key in."""

    def __init__(self, services: Services):
        self._services = services

    async def answer(self, request: Request) -> HTMLResponse:
        run, view = (request.query_params.get(name, "") for name in ("run", "view"))
        link = str(request.base_url.replace(query=f"run={run}"))
        try:
            return HTMLResponse(await anyio.to_thread.run_sync(partial(self._page, run, view or "kld", link)))
        except KvqError as error:
            return HTMLResponse(
                f'<!doctype html><html lang="en"><title>No figure</title><p>{safe(str(error))}</p>', 404
            )

    def _page(self, run: str, view: str, link: str) -> str:
        return embed(*open_run(self._services, run, None), view, link)
