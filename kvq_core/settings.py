"""What the environment decides, read when it is asked for and kept nowhere."""

import os
from dataclasses import dataclass
from pathlib import Path

from kvq_core.errors import KvqError


@dataclass(frozen=True)
class Settings:
    """One reading of the environment; ``settings()`` makes it."""

    home: Path  # KVQ_HOME: models, codebooks, and the store unless KVQ_STORE says otherwise
    store: str  # KVQ_STORE: any fsspec URL or a path
    models: tuple[str, ...]  # KVQ_MODELS: the only models this instance runs; empty: all
    port: int  # PORT or GRADIO_SERVER_PORT
    public: bool  # strangers can reach this instance: no local paths as model ids


def settings() -> Settings:
    """The settings of this moment.

    Raises KvqError where a variable cannot be understood.
    """
    env = os.environ
    home = Path(env.get("KVQ_HOME") or "~/.cache/kvq-explorer").expanduser()
    models = tuple(name.strip() for name in env.get("KVQ_MODELS", "").split(",") if name.strip())
    return Settings(
        home=home,
        store=env.get("KVQ_STORE") or str(home / "store"),
        models=models,
        port=_port(env.get("PORT") or env.get("GRADIO_SERVER_PORT") or "7860"),
        public=bool(models or env.get("SPACE_ID")),
    )


    limit, days = env.get("KVQ_STORE_LIMIT", "").strip(), env.get("KVQ_STORE_DAYS", "").strip()
def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise KvqError(f"PORT = {text!r} is not a port; give a number from 1 to 65535.")
        zero_gpu=env.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"),
