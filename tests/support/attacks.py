"""Hostile calls of anonymous visitors: every endpoint with what its schema forbids or only just allows, files that
unfold, links and headers of all shapes. Nothing of it is random but the order, which a seed decides."""

import base64
import io
import json
import random
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

LANES = [{"method": "per_token", "knobs": {"bits": 4}}]
DEEP = 900


def nested(depth: int = DEEP) -> Any:
    held: Any = []
    for _ in range(depth):
        held = [held]
    return held


VALUES = (
    *(None, True, -1, 0, 10**30, 1.5, "", "x" * 100_000, "\x00", "../../etc/passwd", "<script>", "{{7*7}}", "0" * 16),
    *("f" * 16, "a" * 100_000, "\u202e", [], {}, [[]], nested(), {"a": nested()}, [1] * 10_000),
    *({"__class__": "x"}, "file:///etc/passwd", "http://127.0.0.1:1/", "9" * 5000, "hf://x", "k" * 32),
)
ODD = (1e999, -1e999, float("nan"))  # no JSON, but what Python reads as such
SUITES = (
    "needle",
    "needle_multi_key",
    "variable_tracking",
    "common_words",
    "frequent_words",
    "chain_sums",
    "long",
    "?",
)
PLACES = (
    "/",
    "/embed",
    "/card.png",
    "/gradio_api/upload",
    "/gradio_api/file=",
    "/gradio_api/proxy=http://x/",
    "/config",
)
PATHS = ("/etc/passwd", "../../app.py", "%2e%2e/%2e%2e/app.py", "\\..\\x", "%00", "//x", "a" * 4000, "?a=" + "b" * 4000)
NAMES = ("p.jsonl", "p.csv", "p.txt", "p.parquet", "..", "../p.csv", ".", "p.exe", "p" * 500 + ".csv", "a\x00.csv")


class Call(NamedTuple):
    """What is sent; ``leaves``: the client is gone a moment later."""

    what: str
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = {}
    leaves: bool = False


def calls(count: int, info: dict[str, Any], form: dict[str, Any]) -> list[Call]:
    """So many, of all kinds alike: ``info`` is Gradio's list of endpoints, ``form`` the page's estimate of a study, as
    ``estimate_in`` finds it."""
    chance = random.Random(54)
    kinds: list[Callable[[], Call]] = [
        lambda: _endpoint(info, chance),
        lambda: _endpoint(info, chance),
        lambda: _suite(chance),
        lambda: _comparison(chance),
        lambda: _file(form, chance),
        lambda: _address(chance),
    ]
    return [kinds[at % len(kinds)]()._replace(leaves=at % 10 == 7) for at in range(count)]


def estimate_in(config: dict[str, Any]) -> dict[str, Any]:
    """The handler of the page that reads a file of prompts at every change of the form, with its first values."""
    parts = {part["id"]: part["props"] for part in config["components"]}
    named = {props.get("elem_id"): id for id, props in parts.items()}
    found = next(
        fn
        for fn in config["dependencies"]
        if named["study-estimate"] in fn["outputs"] and named["study-new-tokens"] in fn["inputs"]
    )
    return {"fn": found["id"], "values": [parts[id].get("value") for id in found["inputs"]]}


def _post(what: str, name: str, data: list[Any]) -> Call:
    body = json.dumps({"data": data}).encode()
    return Call(what, "POST", f"/gradio_api/call{name}", body, {"Content-Type": "application/json"})


def _endpoint(info: dict[str, Any], chance: random.Random) -> Call:
    """An endpoint with its own defaults, but for one or all of its arguments."""
    name = chance.choice(sorted(info["named_endpoints"]))
    told = info["named_endpoints"][name]["parameters"]
    data = [part.get("parameter_default") for part in told]
    for at in range(len(data)) if chance.random() < 0.5 else chance.sample(range(len(data)), min(1, len(data))):
        data[at] = chance.choice(VALUES + ODD)
    more = chance.random()
    return _post(f"call {name}", name, data if more < 0.9 else data[:-1] if more < 0.95 else [*data, *VALUES])


def _suite(chance: random.Random) -> Call:
    """A study or a decision of more prompts, or longer ones, than anybody is given."""
    name = chance.choice(("/estimate_decision", "/decide", "/estimate_study", "/study"))
    options = {
        "lengths": [100_000],
        "length": 100_000,
        "depths": [0.5] * 64,
        "times": 100,
        "keys": 64,
        "odd": nested(70),
    }
    asked = {"suite": chance.choice(SUITES), "n": chance.choice((1, 60, 61, 100_000, 10**9, -1))}
    asked |= dict(chance.sample(sorted(options.items(), key=str), chance.randint(0, 2)))
    if chance.random() < 0.3:
        texts = chance.choice((["x"] * 50_000, ["x " * 400_000], ["\ud800"], [nested()], ["a"] * 61, [" "]))
        asked = {"texts": texts}
    lanes = {"lanes": chance.choice((LANES, LANES * 64, LANES * 2000, nested()))} if "study" in name else {}
    return _post(f"suite {name}", name, [{"prompts": asked, **lanes}])


def _comparison(chance: random.Random) -> Call:
    """A comparison that asks for too much of one thing."""
    name = chance.choice(("/compare", "/estimate"))
    more = {
        "prompt": ["x " * 500_000, "\ud800", nested(), "", "0" * 100_000],
        "messages": [[{"role": "user", "content": "x"}] * 5000, nested()],
        "tools": [[{"type": "function", "function": {"name": "x", "parameters": {"a": nested(300)}}}] * 3],
        "lanes": [LANES * 65, [{"rules": LANES * 5000}], [{"method": "kivi", "knobs": {"bits": 10**400}}]],
        "bundle": [{"name": "grid", "family": "x" * 10**5}, {"name": "equal-loss", "loss": -1}, "?", nested()],
        "max_new_tokens": [10**9, 4096, 1e999],
        "model": ["../../etc", "/etc", "owner/name:file.gguf", "dir:" + "0" * 16, "gguf:" + "x" * 10**5, "x" * 10**5],
        "capture": [{"layers": list(range(10**5))}, nested()],
        "stress": [{"layers": [10**9]}, {"key_outlier_pairs": 10**9}],
    }
    field = chance.choice(sorted(more))
    asked = {"prompt": "Hi", "lanes": LANES, "max_new_tokens": 1, field: chance.choice(more[field])}
    if field == "bundle":
        del asked["lanes"]
    if field == "messages":
        del asked["prompt"]
    return _post(f"comparison {field} {name}", name, [asked])


def _file(form: dict[str, Any], chance: random.Random) -> Call:
    """A file of prompts for the form of a study, or what pretends to be one."""
    data, name = chance.choice(files()), chance.choice(NAMES)
    told: Any = {"name": name, "data": base64.b64encode(data).decode()}
    if chance.random() < 0.2:
        told = chance.choice(
            ({"name": name, "bytes": 1e999}, {"bytes": 10**30}, [], nested(), {"name": name, "data": "?"})
        )
    values = [*form["values"]]
    values[0], values[2], values[3] = "File", json.dumps(told), chance.random() < 0.5
    body = json.dumps({"data": values, "fn_index": form["fn"], "session_hash": f"{chance.random()}"}).encode()
    return Call("file", "POST", "/gradio_api/queue/join", body, {"Content-Type": "application/json"})


@cache
def files() -> tuple[bytes, ...]:
    """Small ones that unfold to much, damaged ones, and plain ones that are too large."""
    long = parquet({"prompt": ["x" * 10**6] * 61})
    return (
        long,
        parquet({"prompt": ["x" * 10**6] * 55}),
        parquet({"prompt": ["a"] * 10**6}),
        parquet({f"c{at}": ["a"] for at in range(300)}),
        parquet({"prompt": ["a"], "facts": [{f"f{at}": at for at in range(2000)}]}),
        long[:-40],
        long[:4] + b"\xff" * 60 + long[64:],
        b"PAR1" + b"\x00" * 60 + b"PAR1",
        b"prompt" + b"," * 10**6 + b"\na\n",
        b"prompt\n" + b"a\n" * 400_000,
        b'"' * 900_000,
        b'{"prompt": "a"}\n' * 60_000,
        b'{"prompt": "a", "facts": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "answer": ' + b"9" * 100_000 + b', "verifier": "number"}',
        b'{"prompt": "a", "answer": 1e999, "verifier": "number"}',
        b"\xff\xfe" * 1000,
        zlib.compress(b"x" * 10**7),
        b"x" * 2_000_000,
        b"",
    )


def parquet(columns: dict[str, list[Any]]) -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table(columns), made, compression="zstd")
    return made.getvalue()


def _address(chance: random.Random) -> Call:
    """A link, a path or a header."""
    bomb = "1." + base64.urlsafe_b64encode(zlib.compress(b" " * 10**7, 9)).decode().rstrip("=")
    ids = ("f" * 16, "x" * 5000, "../secret", "%00", bomb, "1." + "A" * 7000, "<script>", "'\"")
    place, id = chance.choice(PLACES), chance.choice(ids)
    query = "&".join(f"{name}={quote(id)}" for name in chance.sample(("run", "c", "study", "decide", "view", "at"), 2))
    path = f"{place}{chance.choice(PATHS)}" if place.endswith("=") or chance.random() < 0.2 else f"{place}?{query}"
    large = chance.choice(("x" * 8000, "http://evil.example/", "\x80" * 100, "127.0.0.1," * 500))
    header = chance.choice(("Referer", "X-Forwarded-Host", "Origin", "Range", "Accept-Encoding", "X-A"))
    method = chance.choice(("GET", "GET", "POST", "OPTIONS", "DELETE", "HEAD"))
    return Call(f"address {place}", method, path, b"{" if method == "POST" else None, {header: large})


def said(client: httpx.Client, call: Call) -> Iterator[str]:
    """Sends a call and tells what came back, as text; an answer of a server that failed raises."""
    sent = {"content": call.body, "headers": _latin(call.headers)}
    with client.stream(call.method, call.path, **sent) as answer:
        status, text = answer.status_code, "" if call.leaves else answer.read().decode(errors="replace")
    assert status < 500, (call.what, status, text[:300])
    if call.leaves or status != 200 or "event_id" not in text:
        yield text if status >= 400 else ""
        return
    event = json.loads(text)["event_id"]
    queued = call.path.endswith("/join")
    place = (
        f"/gradio_api/queue/data?session_hash={json.loads(call.body or b'{}').get('session_hash')}" if queued else ""
    )
    with client.stream("GET", place or f"{call.path}/{event}") as answer:
        for line in answer.iter_lines():
            yield line
            if "process_completed" in line:
                return


def _latin(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin1")) for name, value in headers.items()]
