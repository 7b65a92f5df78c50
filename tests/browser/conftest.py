"""A real server as its own process, and a real browser that fails a test on anything it complains about."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app import launch
from kvq_core.settings import settings
from kvq_core.store.store import open_store
from tests.browser.stand_in import Engine, estimate
from ui.server.health import Health
from ui.service.services import Services

ROOT = Path(__file__).resolve().parents[2]
START_S = 90
# As a browser keeps it whose visitor left the form unfolded; forbidden on pages that are none of a server.
FORM_OPEN = "try { localStorage.setItem('kvq-form-open', '1'); } catch {}"
LEFT = "Failed to fetch dynamically imported module"  # the page was left, or its server was, while a script came
# What "sooner done" trains on, far less of it.
BRIEF_TRAINING = """
import sys
import app
from kvq_core.training import offer as training
from kvq_core.training import train
training.BUDGETS["quick"] = train.FEWEST_TRAIN, train.FEWEST_HELD_OUT = 1024, 512
sys.exit(app.main())
"""


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def running() -> Iterator[dict[str, subprocess.Popen]]:
    """Servers by their address; all are stopped at the end."""
    servers: dict[str, subprocess.Popen] = {}
    yield servers
    for process in servers.values():
        process.terminate()
    for process in servers.values():
        process.wait(20)


@pytest.fixture(scope="session")
def stop_server(running) -> Callable[[str], None]:
    def stop(address: str) -> None:
        process = running.pop(address)
        process.kill()
        process.wait(20)

    return stop


@pytest.fixture(scope="session")
def start_server(store_folder, running) -> Callable[..., str]:
    """Starts app.py, or what else Python is given, on a free port, in an environment with these changes, and gives its
    address."""

    def start(*given: str, **changes: str) -> str:
        port = changes.get("PORT") or _free_port()
        env = {**os.environ, "PORT": str(port), "KVQ_STORE": store_folder, "HF_HUB_OFFLINE": "1", **changes}
        env.pop("SPACE_ID", None)
        log = Path(store_folder).with_name(f"server-{port}.log")
        address = f"http://127.0.0.1:{port}"
        with log.open("w") as out:
            running[address] = process = subprocess.Popen(
                [sys.executable, *(given or ["app.py"])], cwd=ROOT, env=env, stdout=out, stderr=out
            )
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{address}/config", timeout=5).close()
                return address
            except OSError:
                assert process.poll() is None, log.read_text()
                time.sleep(0.3)
        raise AssertionError(f"The server did not start in {START_S} s:\n{log.read_text()}")

    return start


@pytest.fixture(scope="session")
def server(start_server) -> str:
    return start_server()


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """A KVQ_HOME with the converted model and nothing trained."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "models").symlink_to(settings().home / "models")
    return folder


@pytest.fixture(scope="session")
def other_server(start_server, home) -> str:
    """A process of its own: the same store, another home, and trainings that are soon done."""
    return start_server("-c", BRIEF_TRAINING, KVQ_HOME=str(home))


@contextmanager
def served_here(services: Services) -> Iterator[str]:
    """The address of a page served from this process, in which no further model is loaded."""
    with ThreadPoolExecutor(1) as apart:
        port = _free_port()
        # Playwright's event loop runs in this thread; a server starts one of its own
        blocks = apart.submit(launch, services, Health(services), "127.0.0.1", port).result()
    yield f"http://127.0.0.1:{port}"
    blocks.close(verbose=False)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="session")
def quick(tmp_path_factory) -> Iterator[str]:
    """The address of a page whose runs are the stand-in's."""
    store = open_store(str(tmp_path_factory.mktemp("quick")))
    with served_here(Services(store, Engine().compare, estimate)) as address:
        yield address


@pytest.fixture(scope="module")  # no longer: Playwright keeps an event loop running, and other files run their own
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable]:
    """Opens an address as a new visitor. Console errors, exceptions and dialogs fail the test when it ends."""
    with visits(browser) as visit:
        yield visit


@contextmanager
def visits(browser, reads_console: bool = True) -> Iterator[Callable]:
    """``open_page`` for a fixture of more than one test. ``reads_console``: not of pages that are left or lose their
    server while an answer is under way, for Gradio complains of that. ``reading``: as one who never unfolded the
    form."""
    complaints: list[str] = []
    visitors = []

    def visit(url: str, width: int = 1280, height: int = 900, reading: bool = False):
        visitors.append(_Visitor.of(browser, usual=not visitors))
        page = visitors[-1].context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.set_default_timeout(60_000)
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" and reads_console else None)
        page.on(
            "pageerror",
            lambda error: complaints.append(str(error)) if reads_console or LEFT not in str(error) else None,
        )
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        if not reading:
            page.add_init_script(FORM_OPEN)
        page.goto(url)
        page.wait_for_selector("#lane-row-0", state="attached")
        return page

    yield visit
    for visitor in visitors:
        visitor.leave()
    assert complaints == []


@dataclass
class _Visitor:
    """A browser profile. The first visitor of every test is the same one, who has forgotten all but Gradio's scripts:
    fetching and compiling them anew took half of what a page costs."""

    context: Any
    returns: bool

    @classmethod
    def of(cls, browser, usual: bool) -> "_Visitor":
        if not usual or any(context.pages for context in browser.contexts):
            return cls(browser.new_context(), returns=False)
        return cls(browser.contexts[0] if browser.contexts else browser.new_context(), returns=True)

    def leave(self) -> None:
        if not self.returns:
            self.context.close()
            return
        self.context.set_offline(False)
        self.context.clear_permissions()
        self.context.clear_cookies()
        for page in self.context.pages:
            if page.url.startswith("http"):
                site = {"origin": "/".join(page.url.split("/")[:3]), "storageTypes": "local_storage,indexeddb"}
                self.context.new_cdp_session(page).send("Storage.clearDataForOrigin", site)
            page.close()
