"""``/embed?run=...&view=...&at=...&lane=...``: one view of a run alone; ``/card.png?run=...``, its card; ``/lab``."""

from functools import partial

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from kvq_core.errors import KvqError
from ui.export.card import answer_line, title
from ui.export.embed import embed, refusal_page
from ui.export.lab import lab
from ui.export.picture import png_card
from ui.export.selected import read_place
from ui.server.opened import Opened
from ui.service.access import open_to_all
from ui.service.services import Services


class Embeds:
    """200 with the figure, 404 with one line where it cannot be drawn. A run that is not shared on a public instance
    opens for nobody here: a frame on another site has no history to find its key in."""

    def __init__(self, services: Services):
        self._services = services
        self.opened = Opened(services)

    async def answer(self, request: Request) -> HTMLResponse:
        run, view, at, lane = (request.query_params.get(name, "") for name in ("run", "view", "at", "lane"))
        link = str(request.base_url.replace(query=f"run={run}"))
        try:
            drawn = partial(self._page, run, view or "kld", link, at, lane)
            return HTMLResponse(await anyio.to_thread.run_sync(drawn))
        except KvqError as error:
            return HTMLResponse(refusal_page(str(error)), 404)

    async def lab(self, request: Request) -> HTMLResponse:
        """``/lab``: the page on which a browser quantizes real keys itself."""
        return HTMLResponse(await anyio.to_thread.run_sync(lab))

    async def picture(self, request: Request) -> Response:
        """``/card.png?run=...``: the run's card, for previews of its link; 404 with one line where it is not open."""
        run = request.query_params.get("run", "")
        link = str(request.base_url.replace(query=f"run={run}"))
        try:
            made = await anyio.to_thread.run_sync(partial(self._card, run, link))
        except KvqError as error:
            return PlainTextResponse(str(error), 404)
        return Response(made, media_type="image/png", headers={"Cache-Control": "public, max-age=3600"})

    def title_and_answer(self, run: str) -> tuple[str, str] | None:
        """Title and one-sentence answer of a run that anybody may open; None of any other."""
        try:
            record, arrays = open_to_all(self._services, run)
        except KvqError:
            return None
        return title(record), answer_line(record, arrays)

    def _card(self, run: str, link: str) -> bytes:
        return png_card(*open_to_all(self._services, run), link)

    def _page(self, run: str, view: str, link: str, at: str, lane: str) -> str:
        return embed(*open_to_all(self._services, run), view, link, read_place(at), lane)
