"""What a server does, as one JSON object a line on stderr. Nobody's words are in it: no prompt, text, label or address.

Only ``configure`` makes anything appear; a program that imports this package decides itself what becomes of its log.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from kvq_core.errors import KvqError, ModelError, StoreError
from kvq_core.settings import Settings

_LOG = logging.getLogger("kvq")
_LOG.addHandler(logging.NullHandler())  # else Python prints the warnings of an unconfigured log
_OF_THE_MACHINE = (ModelError, StoreError)  # their messages quote no comparison


class JsonLines(logging.Formatter):
    """One JSON object a line. Errors are told by type and place alone: their messages can quote what people wrote.

    ``prompts``: errors in full, and what was logged under ``texts``.
    """

    def __init__(self, prompts: bool = False):
        super().__init__()
        self._prompts = prompts

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.name != _LOG.name:
            line["by"] = record.name
        if record.exc_info and record.exc_info[1] is not None:
            line |= self._error(record.exc_info[1])
        if self._prompts:
            line |= getattr(record, "texts", {})
        return json.dumps(line, default=str)

    def _error(self, error: BaseException) -> dict[str, Any]:
        found: dict[str, Any] = {"error": type(error).__name__}
        if self._prompts or isinstance(error, _OF_THE_MACHINE):
            found["reason"] = str(error)
        if self._prompts:
            found["trace"] = "".join(traceback.format_exception(error))
        elif not isinstance(error, KvqError):
            frames = traceback.extract_tb(error.__traceback__)
            found["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return found


def configure(settings: Settings) -> None:
    """Send the log, and the warnings of libraries, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(settings.log_prompts))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    _LOG.setLevel(settings.log.upper())


def take_over(*names: str) -> None:
    """Let loggers that a library gave handlers of their own write here instead."""
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def log_event(event: str, texts: dict[str, str] | None = None, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event. ``fields`` must be harmless; ``texts`` appear only where KVQ_LOG_PROMPTS allows it."""
    _LOG.log(level, event, extra={"fields": fields, "texts": texts or {}})


def log_error(event: str, error: BaseException, level: int = logging.ERROR, **fields: Any) -> None:
    """Log that something went wrong."""
    _LOG.log(level, event, exc_info=error, extra={"fields": fields})


@contextmanager
def log_run(run: str, prompt: str, **fields: Any) -> Generator[dict[str, Any]]:
    """Log how a run begins and ends; what is put into the yielded dict is told of its end, ``text`` as a text."""
    found: dict[str, Any] = {}
    log_event("run started", {"prompt": prompt}, run=run, **fields)
    began = time.perf_counter()

    def ended() -> dict[str, Any]:
        return {"run": run, "seconds": round(time.perf_counter() - began, 3)}

    try:
        yield found
    except GeneratorExit:
        log_event("run cancelled", **ended())
        raise
    except Exception as error:
        log_error("run failed", error, logging.WARNING if isinstance(error, KvqError) else logging.ERROR, **ended())
        raise
    text = found.pop("text", "")
    log_event("run finished", {"text": text}, **ended(), **found)
