"""``python -m kvq_core store``: what it holds, as text and JSON, and pruning."""

import json

import pytest

from kvq_core.cli.main import main
from kvq_core.record.store import open_store
from tests.core.record.test_store_limits import forget_looks, run_id, sample


@pytest.fixture
def told(capsys):
    def call(*arguments: str) -> str:
        assert main(["store", *arguments]) == 0
        return capsys.readouterr().out

    return call


def test_an_empty_store(told):
    assert told() == "0 runs, 0.0 MB (no limit)\n"
    assert json.loads(told("--json"))["oldest"] is None


def test_what_it_holds_and_what_goes(told, monkeypatch):
    store = open_store()
    for n in (1, 2, 3):
        store.save(*sample(n))
    assert told().startswith("3 runs, 0.") and "2026-01-01" in told()
    size = json.loads(told("--json"))["size"]
    monkeypatch.setenv("KVQ_STORE_LIMIT", str(size - 1))
    assert json.loads(told("--json"))["removed"] == []
    found = json.loads(told("prune", "--json"))
    assert found["removed"] == [run_id(1)] and found["runs"] == 2 and found["oldest"] == "2026-01-02T00:00:00+00:00"
    assert found["limits"] == {"size": size - 1, "days": None}
    monkeypatch.setenv("KVQ_STORE_DAYS", "1")
    assert told("prune").splitlines()[:2] == [f"removed {run_id(2)}", f"removed {run_id(3)}"]


def test_pruning_leaves_what_is_open(told, monkeypatch):
    monkeypatch.setenv("KVQ_STORE_LIMIT", "1MB")
    store = open_store()
    for n in (1, 2):
        store.save(*sample(n))
    monkeypatch.setenv("KVQ_STORE_LIMIT", "1")
    assert json.loads(told("prune", "--json"))["removed"] == []
    forget_looks(store)
    assert len(json.loads(told("prune", "--json"))["removed"]) == 2
