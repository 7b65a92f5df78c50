"""Under which names a private instance answers, to which pages, and whose word it takes for its address."""

import asyncio
import json
import socket
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from unittest.mock import Mock

import pytest

from kvq_core.settings import settings
from ui.server.guard import app_kwargs
from ui.server.origins import KnownHosts

OWN = f"{socket.gethostname().lower()}:7860"


def answer(headers: dict[str, str], client=("192.0.2.1", 5000)) -> tuple[int, str, dict[str, str]]:
    """Status, detail, and the headers that the app behind was given."""
    sent, given = [], {}

    async def app(scope, receive, send):
        given.update({name.decode(): value.decode() for name, value in scope["headers"]})
        await send({"type": "http.response.start", "status": 200})

    async def keep(message):
        sent.append(message)

    told = [(name.lower().encode(), value.encode("latin1")) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": told, "client": client}
    asyncio.run(KnownHosts(app, settings())(scope, None, keep))
    detail = json.loads(sent[1]["body"])["detail"] if sent[1:] else ""
    return sent[0]["status"], detail, given


@pytest.mark.parametrize(
    "host",
    [
        "localhost:7860",
        "LocalHost.",
        "127.0.0.1",
        "[::1]:7860",
        "a.localhost:1",
        "192.168.1.7:7860",
        OWN,
        "kvq.example",
    ],
)
def test_a_private_instance_answers_under_its_own_names(monkeypatch, host):
    monkeypatch.setenv("KVQ_ADDRESS", "https://kvq.example/page/")
    assert answer({"Host": host})[0] == 200
    assert answer({"Host": host, "Origin": f"http://{host}"})[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7860"])
def test_a_name_that_somebody_s_dns_points_here_is_refused_in_a_line(host):
    status, detail, given = answer({"Host": host, "X-Forwarded-Host": "localhost"})
    assert status == 403 and "KVQ_ADDRESS" in detail and "\n" not in detail and not given


@pytest.mark.parametrize("public", ["", "some/model"])
@pytest.mark.parametrize("host", ["", "[", "é", "localhost:99999", "localhost:x", "\x80" * 9])
def test_what_is_no_address_is_refused_everywhere(monkeypatch, public, host):
    monkeypatch.setenv("KVQ_MODELS", public)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    for headers in ({"Host": host}, {"Host": "localhost", "X-Forwarded-Host": host}):
        status, detail, given = answer(headers)
        assert status == 400 and "no address" in detail and not given


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:7860", "http://evil.example", 403),
        ("127.0.0.1:7860", "null", 403),
        ("127.0.0.1:7860", "http://192.168.1.9", 403),
        ("127.0.0.1:7860", "http://127.0.0.1.evil.example:7860", 403),
        ("192.168.1.7:7860", "http://localhost:3000", 403),
        ("127.0.0.1:7860", "http://localhost:3000", 200),
        ("127.0.0.1:7860", "https://kvq.example", 200),
        ("127.0.0.1:7860", "http://[", 403),
    ],
)
def test_a_page_of_another_site_is_refused_in_a_line(monkeypatch, host, origin, status):
    monkeypatch.setenv("KVQ_ADDRESS", "https://kvq.example")
    found, detail, _ = answer({"Host": host, "Origin": origin})
    assert found == status and (status == 200 or "may not ask this instance" in detail)
    assert status == 200 or detail.endswith("start it with KVQ_ADDRESS set to the address of its page.")


@pytest.mark.parametrize(
    ("host", "site", "status"),
    [
        ("127.0.0.1:7860", "same-origin", 200),
        ("127.0.0.1:7860", "same-site", 403),
        ("127.0.0.1:7860", "cross-site", 403),
        ("public.name", "same-origin", 403),  # what a browser says whose page was rebound
    ],
)
def test_the_page_of_a_proxy_that_writes_another_host_is_its_own(host, site, status):
    headers = {"Host": host, "Origin": "https://public.name", "Sec-Fetch-Site": site}
    assert answer(headers)[0] == status


@pytest.mark.parametrize("public", ["", "some/model"])
@pytest.mark.parametrize("text", ["", "::1", "\x80"])
def test_what_somebody_unknown_forwards_is_not_read(monkeypatch, public, text):
    monkeypatch.setenv("KVQ_MODELS", public)
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    status, _, given = answer({"Host": "localhost", "X-Forwarded-Host": text, "X-Gradio-Server": text})
    assert status == 200 and given == {"host": "localhost"}


def test_a_public_instance_answers_under_every_name_and_in_every_frame(monkeypatch):
    monkeypatch.setenv("KVQ_MODELS", "some/model")
    assert answer({"Host": "anybody.example", "Origin": "https://huggingface.co"})[0] == 200


@pytest.mark.parametrize(
    ("trusted", "client", "kept"),
    [
        (None, ("127.0.0.1", 5000), False),
        ("10.0.0.1", ("127.0.0.1", 5000), False),
        ("10.0.0.0/8", ("10.0.0.1", 5000), True),
        ("10.0.0.1", ("198.51.100.4", 0), True),  # whom a trusted proxy told of
        ("*", ("198.51.100.4", 5000), True),
    ],
)
def test_only_a_proxy_that_is_known_says_where_the_page_is(monkeypatch, trusted, client, kept):
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if trusted:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    names = {"x-forwarded-host": "kvq.example", "x-forwarded-proto": "https", "x-gradio-server": "http://kvq.example"}
    given = answer({"Host": "localhost", **names}, client)[2]
    assert given == {"host": "localhost", **(names if kept else {})}


def test_every_route_is_behind_it():
    assert KnownHosts in [each.cls for each in app_kwargs(Mock(), Mock())["middleware"]]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/health", "/config", "/gradio_api/info", "/gradio_api/mcp/", "/embed?run=x"])
def test_a_served_page_is_read_by_no_page_of_another_site(server, path):
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        status, told, body = server(path, **headers)
        assert status == 403 and len(body) < 400 and "Access-Control-Allow-Origin" not in told


READS = """<title>waits</title><script>
const told = (at) => fetch(at).then(a => a.text())
  .then(t => t.includes("named_") ? "read" : "closed").catch(() => "closed");
Promise.all(ASKED.map(told)).then(found => document.title = found.join(", "));
</script>"""


def seen(chromium: str, address: str) -> str:
    """What a browser makes of an address, in a world where three names lead to this machine."""
    names = ", ".join(f"MAP {name}.test 127.0.0.1" for name in ("rebound", "elsewhere"))
    wait = ("--virtual-time-budget=10000", "--timeout=10000")
    command = [chromium, "--headless", "--no-sandbox", f"--host-resolver-rules={names}", *wait, "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=90).stdout


@pytest.mark.slow
@pytest.mark.browser
def test_no_page_of_another_site_reads_a_private_instance_in_a_browser(server, chromium):
    port = server.address.rpartition(":")[2]
    asked = [f"http://{name}:{port}/gradio_api/info" for name in ("rebound.test", "127.0.0.1", "localhost")]

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(READS.replace("ASKED", json.dumps([*asked, "/"])).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:
        Thread(target=elsewhere.serve_forever, daemon=True).start()
        found = seen(chromium, f"http://elsewhere.test:{elsewhere.server_port}/")
        elsewhere.shutdown()
    assert "<title>closed, closed, closed, read<" in found
    assert "not known as" in seen(chromium, asked[0])  # what the page would read once its own name led here
    assert "named_endpoints" in seen(chromium, asked[2])
