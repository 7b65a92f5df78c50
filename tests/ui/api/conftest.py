"""One server, its client and one comparison for all tests of the API."""

import socket
from contextlib import closing
from importlib.util import find_spec

import pytest
from gradio_client import Client

import app
from kvq_core.pipeline.estimate import estimate
from kvq_core.record.store import open_store
from tests.support.api_server import SMALL, Engine
from ui.server.health import Health
from ui.service.services import Services


@pytest.fixture(scope="package")
def engine():
    return Engine()


@pytest.fixture(scope="package")
def server(engine, tmp_path_factory):
    services = Services(open_store(str(tmp_path_factory.mktemp("api") / "store")), engine.compare, estimate)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    blocks = app.launch(services, Health(services), "127.0.0.1", port, mcp=find_spec("mcp") is not None)
    yield f"http://127.0.0.1:{port}"
    blocks.close(verbose=False)


@pytest.fixture(scope="package")
def client(server):
    return Client(server, verbose=False)


@pytest.fixture(scope="package")
def updates(client, real_model) -> list[dict]:
    """Of one comparison on the real model."""
    return list(client.submit(SMALL, api_name="/compare"))
