"""``POST /open``: a run's file is kept and told by its id; anything else is refused in one line."""

from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.record.carried import MOST_BYTES, sealed
from kvq_core.record.store import open_store
from ui.server.opened import Opened
from ui.service.services import Services

RUN = example_ids()["keys-or-values"]


@pytest.fixture
def client(monkeypatch, tmp_path):
    monkeypatch.setattr("kvq_core.record.carried.packaged_store", lambda: open_store("memory://none-ships-here"))
    services = Services(open_store(str(tmp_path)), compare=None, estimate=None)
    return TestClient(Starlette(routes=[Route("/open", Opened(services).answer, methods=["POST"])])), services.store


def test_a_runs_file_is_kept_and_told_by_its_id(client):
    web, store = client
    files = packaged_store().files(RUN)
    answer = web.post("/open", content=b"<p>page</p>" + sealed(files))
    assert answer.status_code == 200 and answer.json() == {"run": RUN}
    assert store.files(RUN)["arrays.safetensors"] == files["arrays.safetensors"]


@pytest.mark.parametrize(
    ("data", "said"), [(b"<p>another page</p>", "carries no run"), (b"x" * (MOST_BYTES + 1), "larger than 3 MB")]
)
def test_what_is_no_runs_file_is_refused_in_one_line(client, data, said):
    answer = client[0].post("/open", content=data)
    assert answer.status_code == 400 and said in answer.json()["detail"] and "\n" not in answer.json()["detail"]


def test_a_public_instance_takes_none(client, monkeypatch):
    monkeypatch.setattr("ui.server.opened.settings", lambda: SimpleNamespace(public=True))
    web, store = client
    answer = web.post("/open", content=b"<p>page</p>" + sealed(packaged_store().files(RUN)))
    assert answer.status_code == 403 and "public instance" in answer.json()["detail"] and not store.exists(RUN)
