"""What is open and blocked, and where a server listens, by its settings alone."""

import pytest

from kvq_core.record.store import open_store
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL
from ui.server.guard import CLOSED, PROJECT, blocked_paths


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/queue/join",
        "/gradio_api/queue/data",
        "/gradio_api/heartbeat/x",
        "/gradio_api/info",
        "/gradio_api/startup-events",
        "/gradio_api/file=/tmp/gradio/x/a.csv",
        "/gradio_api/call/methods",
    ],
)
def test_what_the_page_and_the_api_need_is_open(path):
    assert not CLOSED.fullmatch(path)


def test_gradios_own_folder_is_never_blocked(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "home" / "gradio"))
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    assert str(tmp_path / "home") not in blocked_paths(open_store(str(tmp_path / "store")))
    assert {str(PROJECT), str(tmp_path / "store")} <= set(blocked_paths(open_store(str(tmp_path / "store"))))
    assert len(blocked_paths(open_store("memory://x"))) == 1


def test_a_model_id_is_no_path_on_a_public_instance(monkeypatch, tmp_path):
    from kvq_core.errors import ModelError
    from kvq_core.models import load

    monkeypatch.setenv("KVQ_MODELS", DEFAULT_MODEL)
    for id in ("/etc", "../models", "~/x", str(tmp_path), "kvq_core/models", "file:///etc/passwd", "owner/other"):
        with pytest.raises(ModelError, match="not offered on this instance"):
            load(id)


@pytest.mark.parametrize(
    ("variables", "host"),
    [
        ({}, "127.0.0.1"),
        ({"SPACE_ID": "me/it"}, "0.0.0.0"),
        ({"GRADIO_SERVER_NAME": "0.0.0.0"}, "0.0.0.0"),
        ({"SPACE_ID": "me/it", "GRADIO_SERVER_NAME": "127.0.0.1"}, "127.0.0.1"),
    ],
)
def test_it_listens_to_this_machine_alone_unless_told_otherwise(monkeypatch, variables, host):
    for name in ("SPACE_ID", "GRADIO_SERVER_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert settings().host == host
