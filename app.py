"""Serve the page: settings, store, interface, model."""

import os
import sys
import threading

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: threads that spin starve other visitors' handlers
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from kvq_core.errors import KvqError  # noqa: E402
from kvq_core.settings import settings  # noqa: E402
from kvq_core.store import open_store  # noqa: E402
from ui.layout import build_ui  # noqa: E402
from ui.theme import css, theme  # noqa: E402


def warm_up() -> None:
    """Load the model offered first and read its weights once, so that the first Run waits for neither."""
    from kvq_core.engine.prefill import Prefill
    from kvq_core.models import available_models, load

    try:
        for _ in Prefill(load(available_models()[0].id), [0] * 16).run():
            pass
    except (KvqError, IndexError) as error:
        print(f"The model is not loaded yet: {error}", file=sys.stderr)


def main() -> int:
    try:
        found = settings()
        blocks = build_ui(open_store(found.store))
    except KvqError as error:
        print(error, file=sys.stderr)
        return 2
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    host = "0.0.0.0" if os.environ.get("SPACE_ID") else "127.0.0.1"
    blocks.launch(
        server_name=host, server_port=found.port, theme=theme(), css=css(), footer_links=["settings"],
        enable_monitoring=False, ssr_mode=False, max_file_size="1mb", quiet=False,
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
