"""/health, while a run computes and where store or model are out of reach."""

import json
import threading

import pytest

from app import warm_up
from kvq_core.errors import StoreError
from kvq_core.models import load, loaded_model
from kvq_core.record.store import Store
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL
from ui.server.health import FRESH_S, PATIENCE_S, Health


@pytest.fixture
def patient(server):
    """Health whose store is asked anew every time."""
    server.health._asked = -FRESH_S
    return server


@pytest.mark.slow
def test_health(patient):
    status, headers, body = patient("/health")
    found = json.loads(body)
    assert status == 200 and headers["Content-Type"] == "application/json" and headers["Cache-Control"] == "no-store"
    assert found["status"] == "ok" and found["version"].count(".") == 2
    held = loaded_model()  # of a test before this one
    assert found["model"]["id"] == (held.id if held else DEFAULT_MODEL) and found["model"]["loaded"] is bool(held)
    store = found["store"]
    assert store["runs"] == 1 and store["bytes"] == patient.services.store.usage().size and store["reachable"] is True
    assert store["scheme"] in ("file", "local") and store["limit_bytes"] == 10**9 and store["days"] is None
    assert found["queue"] == {"running": 0, "waiting": 0}
    assert patient.services.store.root not in body.decode() and str(settings().home) not in body.decode()


def test_health_tells_the_model_once_it_is_loaded(server, smollm):
    load(smollm.id)  # a test before this one may have put another in its place
    model = json.loads(server("/health")[2])["model"]
    assert model == {"loaded": True, "id": smollm.id, "device": "cpu", "dtype": "float32"}


@pytest.mark.slow
def test_health_answers_while_a_run_computes_and_counts_the_line(server):
    """The engine is held by one ticket, two wait for it."""
    line = server.services.line
    tickets = [line.enter(f"session {n}") for n in range(3)]
    begun, over = threading.Event(), threading.Event()

    def work():
        with line.turn(tickets[0]):
            begun.set()
            over.wait(60)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert begun.wait(60)
        status, _, body = server("/health")
        assert status == 200 and json.loads(body)["queue"] == {"running": 1, "waiting": 2}
    finally:
        over.set()
        worker.join()
        for n in range(3):
            line.cancel(f"session {n}")
    assert json.loads(server("/health")[2])["queue"] == {"running": 0, "waiting": 0}


def test_a_store_out_of_reach_is_unavailable(patient, monkeypatch):
    def away(*_, **__):
        raise ConnectionError("the bucket's address and password")

    monkeypatch.setattr(type(patient.services.store.fs), "isdir", away)
    status, _, body = patient("/health")
    found = json.loads(body)
    assert status == 503 and found["status"] == "unavailable" and found["store"]["reachable"] is False
    assert "password" not in body.decode()


@pytest.mark.slow
def test_a_store_that_hangs_is_unavailable_in_time(patient, monkeypatch):
    woken = threading.Event()
    monkeypatch.setattr("ui.server.health.PATIENCE_S", 0.2)
    monkeypatch.setattr(Store, "usage", lambda self: woken.wait(30))
    try:
        status, _, body = patient("/health")
    finally:
        woken.set()
    assert status == 503 and json.loads(body)["store"]["reachable"] is False and PATIENCE_S == 5.0


def test_a_model_that_cannot_be_loaded_is_unavailable(server, monkeypatch):
    monkeypatch.setattr("ui.server.health.loaded_model", lambda: None)
    server.health.model_error = ValueError("/secret/path")
    try:
        status, _, body = server("/health")
    finally:
        server.health.model_error = None
    assert status == 503 and json.loads(body)["model"]["error"] == "ValueError" and "secret" not in body.decode()


def test_the_store_is_asked_once_in_a_while(patient, monkeypatch):
    asked, usage = [], Store.usage
    monkeypatch.setattr(Store, "usage", lambda self: asked.append(1) or usage(self))
    for _ in range(5):
        assert patient("/health")[0] == 200
    assert len(asked) == 1


def test_the_store_is_asked_once_the_model_is_there(server, monkeypatch):
    asked = []

    class Asked:
        def exists(self, run_id):
            asked.append(run_id)
            raise StoreError("out of reach")

    def loaded_first(id):
        assert not asked
        raise OSError("no such model")

    monkeypatch.setattr("kvq_core.models.load", loaded_first)
    health = Health(server.health._services)
    warm_up(health, Asked())
    assert len(asked) == 1 and isinstance(health.model_error, OSError)
