"""``POST /open`` with a run's file: its run is kept in the store, and the page goes to it."""

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse

from kvq_core.errors import KvqError
from kvq_core.record.carried import MOST_BYTES, carried, restore
from kvq_core.settings import settings
from ui.service.services import Services

PUBLIC = (
    "A public instance keeps the runs it computed alone: anybody's file would be taken for its own. Open it in a copy "
    "of your own, or with python -m kvq_core open FILE."
)


class Opened:
    """200 with the run's id; 400 with one line for a file that carries none, 403 on a public instance. Pages of other
    sites are refused before (KnownHosts)."""

    def __init__(self, services: Services):
        self._services = services

    async def answer(self, request: Request) -> JSONResponse:
        if settings().public:
            return JSONResponse({"detail": PUBLIC}, 403)
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > MOST_BYTES:
                said = f"The file is larger than {MOST_BYTES / 1e6:.0f} MB, the most that a run's file has."
                return JSONResponse({"detail": said}, 400)
        try:
            return JSONResponse({"run": await anyio.to_thread.run_sync(self._keep, bytes(data))})
        except KvqError as error:
            return JSONResponse({"detail": str(error)}, 400)

    def _keep(self, data: bytes) -> str:
        found = carried(data, "The file")
        restore(found, self._services.store)
        return found.record.id
