"""``/health``: whether this server can serve, for load balancers and for people who wonder."""

import threading
import time
import tomllib
from collections.abc import Callable
from importlib import metadata
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse

from kvq_core.errors import StoreError
from kvq_core.logs import log_error
from kvq_core.models import available_models, loaded_model
from kvq_core.record.store import Store
from kvq_core.shipped import root
from ui.service.services import Services

FRESH_S = 10.0  # the store is asked at most so often, however often somebody asks here
PATIENCE_S = 5.0  # a store that takes longer counts as out of reach


class Health:
    """200 where runs can be computed and stored, 503 where not. Tells no path, no credential and nothing of a run.

    ``model_error`` says why the first model could not be loaded, once that is known.
    """

    def __init__(self, services: Services, clock: Callable[[], float] = time.monotonic):
        self.model_error: Exception | None = None
        self._services, self._clock = services, clock
        self._store: dict[str, Any] = {}
        self._asked = -FRESH_S
        self._asking = threading.Lock()

    async def answer(self, request: Request) -> JSONResponse:
        model, store = self._model(), await self._store_in_time()
        well = store["reachable"] and (model["loaded"] or self.model_error is None)
        count = self._services.line.count()
        found = {
            "status": "ok" if well else "unavailable",
            "version": version(),
            "model": model,
            "queue": {"running": min(1, count), "waiting": max(0, count - 1)},
            "store": store,
        }
        return JSONResponse(found, 200 if well else 503, {"Cache-Control": "no-store"})

    def _model(self) -> dict[str, Any]:
        held = loaded_model()
        if held is not None:
            return {"loaded": True, "id": held.id, "device": str(held.device), "dtype": str(held.dtype)[6:]}
        offered = [choice.id for choice in available_models()][:1]
        error = {} if self.model_error is None else {"error": type(self.model_error).__name__}
        return {"loaded": False, "id": offered[0] if offered else None, **error}

    async def _store_in_time(self) -> dict[str, Any]:
        """What ``_ask`` says, and "out of reach" where it says nothing in time; the page goes on meanwhile."""
        with anyio.move_on_after(PATIENCE_S):
            # A limiter of its own: a store that hangs must not take the page's threads.
            return await anyio.to_thread.run_sync(self._ask, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        return _facts(self._services.store) | {"reachable": False}

    def _ask(self) -> dict[str, Any]:
        if not self._asking.acquire(timeout=PATIENCE_S):  # somebody else's question has had no answer for so long
            return _facts(self._services.store) | {"reachable": False}
        try:
            if self._clock() - self._asked >= FRESH_S:
                self._store = _facts(self._services.store) | _usage(self._services.store)
                self._asked = self._clock()
            return self._store
        finally:
            self._asking.release()


def _facts(store: Store) -> dict[str, Any]:
    return {"scheme": store.scheme, "limit_bytes": store.limits.size, "days": store.limits.days}


def _usage(store: Store) -> dict[str, Any]:
    try:
        usage = store.usage()
    except StoreError as error:
        log_error("store out of reach", error)
        return {"reachable": False}
    return {"reachable": True, "runs": usage.runs, "bytes": usage.size}


def version() -> str:
    """This project's version: of the installed package, else of the checkout."""
    try:
        return metadata.version("kvq-explorer")
    except metadata.PackageNotFoundError:
        project = root() / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
