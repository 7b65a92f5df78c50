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
from pathlib import Path

import pytest

from app import launch
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.estimate import estimate as estimated
from kvq_core.record.store import Store, open_store
from kvq_core.settings import settings
from tests.browser.stand_in import Engine, estimate
from tests.browser.visitors import Playing, visits
from ui.server.health import Health
from ui.service.services import Services

ROOT = Path(__file__).resolve().parents[2]
START_S = 90
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


@pytest.fixture(scope="session")
def page_beside(store_folder) -> Iterator[str]:
    """The store's runs, shown by another process than the server's: this one."""
    with served_here(Services(open_store(store_folder), compare, estimated)) as address:
        yield address


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
def standing_in() -> Engine:
    return Engine()


@pytest.fixture
def engine(standing_in) -> Iterator[Engine]:
    """The stand-in, whose gates are open again afterwards."""
    yield standing_in
    standing_in.open()


@pytest.fixture(scope="session")
def quick_store(tmp_path_factory) -> Store:
    return open_store(str(tmp_path_factory.mktemp("quick")))


@pytest.fixture(scope="session")
def quick(standing_in, quick_store) -> Iterator[str]:
    """The address of a page whose runs are the stand-in's."""
    does = standing_in
    beside = does.add, does.ask_why, does.look_again, does.capture
    with served_here(Services(quick_store, does.compare, estimate, *beside)) as address:
        yield address


@pytest.fixture(scope="session")
def playing(chromium) -> Iterator[Playing]:
    started = Playing(chromium)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def browser(playing):
    """The worker's browser, while a file needs it."""
    with playing.at_work() as started:
        yield started


@pytest.fixture
def open_page(browser) -> Iterator[Callable]:
    """Opens an address as a new visitor. Console errors, exceptions and dialogs fail the test when it ends."""
    with visits(browser) as visit:
        yield visit
