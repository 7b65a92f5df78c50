"""A served page over HTTP: /health while a run computes, headers, and the files and routes nobody gets at."""

import json
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from app import launch, warm_up
from kvq_core.errors import StoreError
from kvq_core.events import Loading
from kvq_core.models import loaded_model
from kvq_core.pipeline.examples import packaged_store
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.store.retention import Quota
from kvq_core.store.store import Store, open_store
from tests.support.sample_record import make_sample
from ui.server.guard import CLOSED, PROJECT, blocked_paths
from ui.server.health import FRESH_S, PATIENCE_S, Health
from ui.service.services import Services


class Asked:
    """A server of its own and what it answers."""

    def __init__(self, services: Services, health: Health):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.services, self.health = services, health
        self.address = f"http://127.0.0.1:{port}"
        self.blocks = launch(services, health, "127.0.0.1", port)

    def __call__(self, path: str, data: bytes | None = None, **headers: str):
        """Status, headers and body."""
        request = urllib.request.Request(self.address + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = open_store(str(tmp_path_factory.mktemp("served")), Quota(size=10**9))
    store.save(*make_sample())
    services = Services(store, lambda spec, store: iter([Loading("x")]), None)
    with pytest.MonkeyPatch.context() as busy:
        # a machine too busy for Gradio's own look at the page is no reason not to serve it
        busy.setattr("gradio.networking.url_ok", lambda url: False)
        # a folder of its own: servers of other tests put their downloads into the usual one
        busy.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        asked = Asked(services, Health(services))
        yield asked
        asked.blocks.close()


@pytest.fixture
def patient(server):
    """Health whose store is asked anew every time."""
    server.health._asked = -FRESH_S
    return server


@pytest.mark.slow
def test_previews_of_a_link_speak_of_this_page(server):
    _, headers, body = server("/?run=00000000deadbeef")
    page = body.decode()
    assert int(headers["content-length"]) == len(body)
    tags = dict(re.findall(r'<meta (?:property|name)="((?:og|twitter):[a-z:]+)" content="([^"]*)"', page))
    assert tags["og:title"] == tags["twitter:title"] == "KVQ Explorer" and "KV cache" in tags["og:description"]
    assert len(re.findall("og:title", page)) == 1 and "{url}" not in page and "try out the app" not in page
    assert "@Gradio" not in page and 'gradio.app/"' not in page.split("</head>")[0].split("<script")[0]


@pytest.mark.slow
def test_previews_of_a_runs_link_are_its_answer_and_its_card(server):
    run = packaged_store().list()[0].id
    page = server(f"/?run={run}")[2].decode()
    tags = dict(re.findall(r'<meta (?:property|name)="((?:og|twitter):[a-z:]+)" content="([^"]*)"', page))
    assert "KV cache" in tags["og:title"] and tags["og:title"] != "KVQ Explorer" and " bytes" in tags["og:description"]
    assert tags["og:image"].endswith(f"/card.png?run={run}") and tags["twitter:card"] == "summary_large_image"
    status, headers, body = server(f"/card.png?run={run}")
    assert status == 200 and headers["Content-Type"] == "image/png"
    assert Image.open(BytesIO(body)).size == (1200, 630)
    status, _, body = server("/card.png?run=00000000deadbeef")
    assert status == 404 and b"not in this store" in body


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
    model = json.loads(server("/health")[2])["model"]
    assert model == {"loaded": True, "id": smollm.id, "device": "cpu", "dtype": "float32"}


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


@pytest.mark.parametrize("path", ["/", "/health", "/config", "/nothing-here", "/gradio_api/upload"])
def test_headers(server, path):
    _, headers, _ = server(path)
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "object-src 'none'" in policy
    assert "frame-ancestors" not in policy and headers["X-Frame-Options"] is None, "Spaces show the page in an iframe"
    assert len(headers.get_all("X-Content-Type-Options")) == 1


def test_a_browser_keeps_files_named_by_their_contents(server):
    names = set(re.findall(r"assets/[\w.-]+\.(?:js|css)", server("/")[2].decode()))
    assert names
    for name in names:
        status, headers, _ = server(f"/{name}")
        assert status == 200 and "immutable" in headers["Cache-Control"]
    assert server("/assets/none.js")[1]["Cache-Control"] is None and server("/config")[1]["Cache-Control"] is None


def secret_files(server) -> list[str]:
    store = server.services.store
    home = settings().home
    files = [PROJECT / "app.py", PROJECT / "requirements.txt", Path("/etc/passwd"), Path(store.root)]
    files += [Path(path) for path in store.fs.find(store.root)]
    files += sorted((home / "models").rglob("*.json"))[:2]
    return [str(path) for path in files]


@pytest.mark.slow
def test_no_file_of_the_machine_is_served(server):
    files = secret_files(server)
    assert len(files) > 7
    for file in files:
        relative = file.lstrip("/")
        for path in (
            file,
            f"..{file}",
            f"../../../../../..{file}",
            f"/{file}",
            f"{relative}",
            f"./{file}",
            f"file://{file}",
            f"{PROJECT}/../..{file}",
            f"{server.services.downloads}/../..{file}",
            f"{file}\x00.png",
            f"{file}/",
        ):
            for route in ("/gradio_api/file=", "/gradio_api/file/", "/static/", "/assets/", "/svelte/", "/file="):
                status, _, body = server(route + urllib.parse.quote(path))
                assert status in (400, 403, 404, 405, 422), (route, path, status)
                assert b"root:" not in body and b"schema_version" not in body and b"torch>=" not in body


def test_what_was_made_for_a_download_is_no_door_to_its_folder(server):
    (server.services.downloads / "someone-elses.csv").write_text("secret")
    status, _, body = server(f"/gradio_api/file={server.services.downloads}/someone-elses.csv")
    assert status == 403 and b"secret" not in body


@pytest.mark.parametrize(
    "path",
    [
        "upload",
        "upload?upload_id=x",
        "upload/",
        "process_recording",
        "deep_link?session_hash=x",
        "component_server",
        "file=http://127.0.0.1/",
        "file=HTTPS://example.org/x",
        "file=%68ttp://example.org",
        "proxy=http://example.org",
        "run-history/buckets",
        "run-history/connect",
        "runs",
        "vibe-edit",
        "vibe-code/",
        "stream/x/close",
    ],
)
@pytest.mark.parametrize("data", [None, b"x"])
def test_what_gradio_offers_and_nobody_needs_is_closed(server, path, data):
    status, _, body = server(f"/gradio_api/{path}", data)
    assert status == 403 and b"takes no files" in body


def test_uploads_are_refused_and_leave_nothing(server):
    from gradio.utils import get_upload_folder

    before = sorted(Path(get_upload_folder()).rglob("*"))
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.html"\r\n\r\n<script>\r\n--x--\r\n'
    status, _, _ = server("/gradio_api/upload", body, **{"Content-Type": "multipart/form-data; boundary=x"})
    assert status == 403 and sorted(Path(get_upload_folder()).rglob("*")) == before


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("queue/join", {"data": [], "fn_index": 10**9, "session_hash": "s"}),
        ("call/nothing", {"data": []}),
        ("queue/join", {"data": [], "fn_index": -1, "session_hash": "s"}),
        ("call/__class__", {"data": [None]}),
    ],
)
def test_an_endpoint_that_is_not_there_is_said_plainly(server, path, body):
    status, headers, answer = server(f"/gradio_api/{path}", json.dumps(body).encode(), **JSON)
    assert status == 404 and "no such endpoint" in json.loads(answer)["detail"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "body"), [("call/v2/run", b'{"data": ["x"]}'), ("cancel", b'{"session_hash": NaN}'), ("reset", b"[NaN]")]
)
def test_a_request_that_means_nothing_is_told_so(server, path, body):
    status, _, answer = server(f"/gradio_api/{path}", body, **JSON)
    assert status == 400 and "could not be understood" in json.loads(answer)["detail"]


def test_a_stream_of_a_session_that_is_not_there_ends_with_a_message(server, caplog):
    status, _, body = server("/gradio_api/queue/data?session_hash=nobody")
    assert status == 200 and b'"session_not_found":true' in body and not caplog.records


def test_a_request_the_framework_fails_on_gets_a_sentence_and_no_trace(server, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("/srv/secret")

    monkeypatch.setattr("gradio.route_utils.get_fn", broken)
    status, headers, answer = server("/gradio_api/call/methods", b'{"data": []}', **JSON)
    assert status == 500 and "could not be answered" in json.loads(answer)["detail"] and b"secret" not in answer
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert [record.getMessage() for record in caplog.records if record.name == "kvq"] == ["request failed"]


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 200_000, b'{"data": ' + b"[" * 200_000, b"\xff\xfe", b"null", b"7"])
def test_a_body_that_is_none_is_refused(server, body):
    for path in ("queue/join", "call/compare", "cancel"):
        status, _, answer = server(f"/gradio_api/{path}", body, **JSON)
        assert status in (400, 422) and len(answer) < 2000, (path, status, answer[:300])


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/monitoring", "/monitoring/summary"])
def test_no_page_about_the_server(server, path):
    assert server(path)[0] in (403, 404)


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
