"""What the environment decides, read when it is asked for and kept nowhere."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kvq_core.errors import KvqError, excerpt

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) *([kmgt]?)(i?)b?", re.IGNORECASE)
_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Settings:
    """One reading of the environment; ``settings()`` makes it."""

    home: Path  # KVQ_HOME: models, codebooks, and the store unless KVQ_STORE says otherwise
    store: str  # KVQ_STORE: any fsspec URL or a path
    store_limit: int | None  # KVQ_STORE_LIMIT: bytes the store may hold; old runs make way
    store_days: float | None  # KVQ_STORE_DAYS: age at which a run that is not shared is removed
    second_model: Path | None  # KVQ_SECOND_MODEL: file of the model that tests and claims take beside the bundled one
    method_files: tuple[Path, ...]  # KVQ_METHOD_FILES: Python files that define methods of one's own
    models: tuple[str, ...]  # KVQ_MODELS: the only models this instance runs; empty: all
    address: str  # KVQ_ADDRESS: where people reach the page, ending in "/"; empty: not said
    host: str  # GRADIO_SERVER_NAME: the address the page listens on; this machine alone, on a Space all
    port: int  # PORT or GRADIO_SERVER_PORT
    mcp: bool  # KVQ_MCP: serve the API to MCP clients as well
    zero_gpu: bool  # a Space whose GPU is lent for one call at a time; Spaces set SPACES_ZERO_GPU
    public: bool  # strangers can reach this instance: only the models offered, no local paths as model ids
    log: str  # KVQ_LOG: level of the log
    log_prompts: bool  # KVQ_LOG_PROMPTS: log prompts and errors in full


def settings() -> Settings:
    """The settings of this moment.

    Raises KvqError where a variable cannot be understood.
    """
    env = os.environ
    home = Path(env.get("KVQ_HOME") or "~/.cache/kvq-explorer").expanduser()
    models = tuple(name.strip() for name in env.get("KVQ_MODELS", "").split(",") if name.strip())
    second = env.get("KVQ_SECOND_MODEL", "").strip()
    limit, days = env.get("KVQ_STORE_LIMIT", "").strip(), env.get("KVQ_STORE_DAYS", "").strip()
    return Settings(
        home=home,
        store=env.get("KVQ_STORE") or str(home / "store"),
        store_limit=_bytes(limit) if limit else None,
        store_days=_days(days) if days else None,
        second_model=Path(second).expanduser() if second else None,
        method_files=_paths(env.get("KVQ_METHOD_FILES", "")),
        models=models,
        address=_address(env.get("KVQ_ADDRESS", "").strip()),
        host=env.get("GRADIO_SERVER_NAME") or ("0.0.0.0" if env.get("SPACE_ID") else "127.0.0.1"),
        port=_port(env.get("PORT") or env.get("GRADIO_SERVER_PORT") or "7860"),
        mcp=_flag("KVQ_MCP"),
        zero_gpu=_flag("SPACES_ZERO_GPU"),
        public=bool(models or env.get("SPACE_ID")),
        log=_level(env.get("KVQ_LOG") or "info"),
        log_prompts=env.get("KVQ_LOG_PROMPTS", "") not in ("", "0"),
    )


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("1", "t", "true", "yes", "on")


def _paths(text: str) -> tuple[Path, ...]:
    """Several, divided as PATH is."""
    return tuple(Path(part).expanduser() for part in text.split(os.pathsep) if part.strip())


def _address(text: str) -> str:
    found = urlsplit(text)
    if not text or (found.scheme in ("http", "https") and found.netloc and not found.query and not found.fragment):
        return text and text.rstrip("/") + "/"
    raise KvqError(
        f"KVQ_ADDRESS = {excerpt(text)} is not the address of a page; give one such as https://kvq.example/."
    )


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise KvqError(f"PORT = {excerpt(text)} is not a port; give a number from 1 to 65535.")


def _bytes(text: str) -> int:
    """``2GB``, ``500 MB``, ``1.5GiB`` or plain bytes."""
    found = _SIZE.fullmatch(text)
    size = (
        0 if found is None else float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " ")
    )
    if size < 1:
        raise KvqError(f"KVQ_STORE_LIMIT = {excerpt(text)} is not a size; give bytes or a size such as 500MB or 2GB.")
    return int(size)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days < 1e6:
        raise KvqError(f"KVQ_STORE_DAYS = {excerpt(text)} is not a number of days; give one above 0, such as 30.")
    return days


def _level(text: str) -> str:
    if text.lower() not in _LEVELS:
        raise KvqError(f"KVQ_LOG = {excerpt(text)} is not a level; allowed: {', '.join(_LEVELS)}.")
    return text.lower()
