"""Serve the page: settings, store, interface, model."""

import argparse
import gc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(
        signal.SIGINT, lambda *_: os._exit(130)
    )  # until ``main``: imports take seconds, Ctrl-C prints no trace


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; what cannot be read, and ``--help``, end the process."""
    from kvq_core.cli.own import add_method_files  # loads no library

    parser = argparse.ArgumentParser(prog="app.py", description="Serve the page.", allow_abbrev=False)
    add_method_files(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse(sys.argv[1:])  # before imports take seconds

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: threads that spin starve other visitors' handlers
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# Gradio sums up its last 10,000 events with pandas after every one, for a page of statistics that is closed here.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000")
if os.environ.get("SPACE_ID"):  # visitors' addresses are what the Space's proxy says, see ui.service.services.visitor
    os.environ.setdefault("FORWARDED_ALLOW_IPS", "*")

gc.disable()  # what imports make lives to the end; looking for garbage in it is a sixth of the time to start

from gradio import Blocks  # noqa: E402

from kvq_core.errors import KvqError, StoreError  # noqa: E402
from kvq_core.limits import limits  # noqa: E402
from kvq_core.logs import configure, log_error, log_event, take_over  # noqa: E402
from kvq_core.machine.memory import share_arena  # noqa: E402
from kvq_core.methods import failures, load_method_files  # noqa: E402
from kvq_core.pipeline.compare import compare  # noqa: E402
from kvq_core.pipeline.estimate import estimate  # noqa: E402
from kvq_core.record.sharing import keep_store_private  # noqa: E402
from kvq_core.record.store import Store, open_store  # noqa: E402
from kvq_core.settings import Settings, settings  # noqa: E402
from ui.api.mcp import answer_in_json  # noqa: E402
from ui.html.sheet import css  # noqa: E402
from ui.html.theme import theme  # noqa: E402
from ui.layout import build_ui  # noqa: E402
from ui.panels.first_sight import early_html  # noqa: E402
from ui.panels.header import PLACE_HEAD  # noqa: E402
from ui.server import zero_gpu  # noqa: E402
from ui.server.embeds import Embeds  # noqa: E402
from ui.server.gradio_sessions import install  # noqa: E402
from ui.server.guard import app_kwargs, blocked_paths  # noqa: E402
from ui.server.health import Health  # noqa: E402
from ui.service.housekeeping import removing_folder, sweep_regularly  # noqa: E402
from ui.service.services import Services  # noqa: E402

gc.freeze()
gc.enable()

# Handlers at work at once, of all pages, beside one for everybody in the line of runs: whoever waits there holds one
# all the time, and where none is left no page answers any more.
SPARE = 192
SESSIONS = 500  # pages whose state is kept; closed ones for an hour, see ui/server/gradio_sessions.py


def warm_up(health: Health, store: Store) -> None:
    """Load the model offered first, read its weights once and lay them out for steps, so that the first Run waits for
    none of it, and what the first verdict needs; then ask the store something, so that the first link does not wait for
    an object store's client to set itself up."""
    import scipy.stats  # noqa: F401

    from kvq_core.engine.prefill import SharedPrefill
    from kvq_core.models import available_models, load

    try:
        model = load(available_models()[0].id)
        for _ in SharedPrefill(model, [0] * 16).run():
            pass
        model.stepping()
    except Exception as error:  # whatever it is, the page is served and /health tells
        health.model_error = error
        log_error("model not loaded", error)
    with suppress(StoreError):  # /health tells
        store.exists("0" * 16)


def check_mcp(found: Settings) -> None:
    """Raises KvqError where an MCP server is asked for and cannot be."""
    if found.mcp and importlib.util.find_spec("mcp") is None:
        extra = f"gradio[mcp]=={version('gradio')}"
        raise KvqError(
            f"KVQ_MCP is set, but the package mcp is not installed. Run: pip install '{extra}', or unset it."
        )


def load_methods(found: Settings, argv: Sequence[str]) -> None:
    """Offer the methods of the files named by ``--method-file`` and by the environment, and say which installed
    packages gave none. Raises KvqError for a file that cannot be loaded, and for any on a public instance."""
    files = [*found.method_files, *parse(argv).method_file]
    if files and found.public:
        raise KvqError(
            f"{files[0].name}: a public instance takes no method files; install them as a package, or leave KVQ_MODELS "
            "unset."
        )
    load_method_files(files)
    for line in failures().values():
        log_event("method not loaded", reason=line)


class PortTaken(KvqError):
    """The page has no address to be served on."""


def launch(
    services: Services, health: Health, host: str, port: int, mcp: bool = False, in_browser: bool = False
) -> Blocks:
    """Build the page and serve it, from threads of its own."""
    blocks = build_ui(services)
    blocks.launch(
        server_name=host,
        server_port=port,
        theme=theme(),
        css=css(),
        head=PLACE_HEAD,
        footer_links=["settings"],
        enable_monitoring=False,
        run_history=False,
        ssr_mode=False,
        max_file_size="1mb",
        quiet=False,
        app_kwargs=app_kwargs(health, Embeds(services), partial(early_html, services)),
        blocked_paths=blocked_paths(services.store),
        prevent_thread_lock=True,
        max_threads=limits().line + SPARE,
        state_session_capacity=SESSIONS,
        mcp_server=mcp,
        inbrowser=in_browser,
        _frontend=False,  # no check that the page answers itself within three seconds: a busy machine takes longer
    )
    install(blocks)
    answer_in_json(blocks)
    take_over("uvicorn", "uvicorn.error", "uvicorn.asgi")  # set up while it was launched
    return blocks


def main(argv: Sequence[str] = (), in_browser: bool = False) -> int:
    """Serve the page, in a window of the browser where one is asked for; the exit status."""
    share_arena()  # before threads start
    try:
        found = settings()
        configure(found)
        check_mcp(found)
        load_methods(found, argv)
        # on ZeroGPU in this thread and before the launch, or the emulated GPU is not there
        borrowing = zero_gpu.prepare() if found.zero_gpu else {"compare": compare}
        services = Services(store := open_store(), estimate=estimate, **borrowing)
        if found.public:
            keep_store_private(store)
    except KvqError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what ends a container ends the page in order
    try:
        with removing_folder(services.downloads):
            serve(services, found, in_browser)
    except PortTaken as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def serve(services: Services, found: Settings, in_browser: bool = False) -> None:
    """Serve the page until somebody stops it."""
    health = Health(services)
    if not found.zero_gpu:  # there the model is loaded, and this process must not compute: it is forked for every run
        threading.Thread(target=warm_up, args=[health, services.store], name="warm-up", daemon=True).start()
    sweep_regularly(services.downloads)
    try:
        blocks = launch(services, health, found.host, found.port, found.mcp, in_browser)
    except OSError:  # Gradio's, of all it can meet there
        raise PortTaken(
            f"Nothing can be served on {found.host}, port {found.port}: it may be taken. Set PORT to another one."
        ) from None
    try:
        blocks.block_thread()
    finally:
        blocks.close()  # with Gradio's copies of what was downloaded


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
