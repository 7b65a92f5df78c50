"""Visitors of a running page as their browsers speak to it: HTTP requests, and a stream of events for each press.

The page's events have no names, so a visitor finds them as the browser does, in ``/config``: by the element they belong
to and by what they change.
"""

import asyncio
import contextlib
import html
import json
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from gradio_client.utils import apply_diff

STATUS = re.compile(r'<div class="status (\w+)" role="status"><div><b>(.*?)</b>(?:<small>(.*?)</small>)?')
NOTICE = re.compile(r'<div class="notice \w+" role="alert"><b>(.*?)</b><p>(.*?)</p>')
LINK = re.compile(r"[?&]run=([0-9a-f]{16})")


class Plan:
    """What a visitor needs of ``/config``: the events of Run and of what follows it, and the form's first values."""

    def __init__(self, config: dict[str, Any]):
        self.prefix = config.get("api_prefix", "")
        self.parts = {part["id"]: part for part in config["components"]}
        self.events = [event for event in config["dependencies"] if event["backend_fn"]]
        run = next(id for id, part in self.parts.items() if part["props"].get("elem_id") == "run")
        self.submit = next(e for e in self.events if [run, "click"] in e["targets"] and len(e["inputs"]) > 3)
        self.watch = self._follows(self.submit["outputs"][1])
        self.show = self._follows(self.watch["outputs"][3])
        self.arrivals = [e for e in self.events if any(kind == "load" for _, kind in e["targets"])]
        self.cancel = next(
            e for e in self.events if ["cancel", "click"] in [[self._name(i), k] for i, k in e["targets"]]
        )

    def _follows(self, state: int) -> dict[str, Any]:
        """The event that a change of this state sets going; of several the one that changes the most."""
        found = (event for event in self.events if [state, "change"] in event["targets"])
        return max(found, key=lambda event: len(event["outputs"]))

    def _name(self, id: int) -> str:
        return self.parts.get(id, {"props": {}})["props"].get("elem_id") or ""

    def form(self, event: dict[str, Any], filled: dict[int, Any], **values: Any) -> list[Any]:
        """Inputs of an event: ``values`` by element id (``max_new_tokens`` is #max-new-tokens), else what the page was
        ``filled`` with when it was opened, else the first values; states are the server's own."""
        return [
            None
            if self.parts[id]["type"] == "state"
            else values.get(self._name(id).replace("-", "_"), filled.get(id, self.parts[id]["props"].get("value")))
            for id in event["inputs"]
        ]


@dataclass
class Visit:
    """What a visitor saw: every status line with its time, and how it ended."""

    prompt: str = ""
    seen: list[tuple[float, str, str]] = field(default_factory=list)  # seconds since Run, words, detail
    outcome: str = "unanswered"
    reason: str = ""
    run: str = ""

    @property
    def seconds(self) -> float:
        return self.seen[-1][0] if self.seen else 0.0

    @property
    def wait(self) -> float:
        """Seconds from Run until the run began."""
        return next((at for at, words, _ in self.seen if not words.startswith("Waiting")), self.seconds)


class Visitor:
    """One open page. ``address`` is told as a proxy would, ``query`` is what stands in the address bar."""

    def __init__(self, server: str, plan: Plan, address: str = "", **query: str):
        self.plan, self.session = plan, secrets.token_hex(6)
        headers = {"x-forwarded-for": address} if address else {}
        # A connection for each request: one that was kept may be closed by the server just when it is used again.
        once = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.AsyncClient(base_url=server + plan.prefix, headers=headers, timeout=900, limits=once)
        self.query, self.filled = query, dict[int, Any]()
        self._heart: asyncio.Task | None = None

    async def open(self) -> "Visitor":
        """Keep the page alive as the browser does, and let it be filled."""
        self._heart = asyncio.create_task(self._beat())
        for event in self.plan.arrivals:
            data = await self.call(event, [self._first(id) for id in event["inputs"]])
            self.filled |= {id: _value(given) for id, given in zip(event["outputs"], data or [], strict=False)}
        return self

    def _first(self, id: int) -> Any:
        part = self.plan.parts[id]
        return None if part["type"] == "state" else part["props"].get("value")

    async def _beat(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            async with self.http.stream("GET", f"/heartbeat/{self.session}") as beats:
                async for _ in beats.aiter_raw():
                    pass

    async def close(self) -> None:
        """Close the tab."""
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart
        await self.http.aclose()

    async def join(self, event: dict[str, Any], data: list[Any]) -> str:
        body = {
            "data": data,
            "fn_index": event["id"],
            "session_hash": self.session,
            "trigger_id": event["targets"][0][0],
        }
        answer = await self.http.post("/queue/join", params=self.query, json=body)
        if answer.status_code != 200:
            raise Refused(f"{answer.status_code}: {answer.text[:300]}")
        return answer.json()["event_id"]

    async def call(self, event: dict[str, Any], data: list[Any], told: Any = None) -> list[Any] | None:
        """Send an event and read the stream until it is over: what it gave last. ``told`` sees every update."""
        joined = await self.join(event, data)
        current: list[Any] = []
        async with self.http.stream("GET", "/queue/data", params={"session_hash": self.session}) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                if message.get("event_id") != joined:
                    continue
                output = message.get("output") or {}
                if message["msg"] == "process_completed" and not message["success"]:
                    raise Refused(str(output.get("error")))
                if "data" in output:
                    current = _merged(current, output["data"])
                    if told is not None:
                        told(current)
                if message["msg"] == "process_completed":
                    return current
        return None

    async def press_run(self, visit: Visit, stop_at: str | None = None, **form: Any) -> Visit:
        """Press Run and watch. ``stop_at``: leave without a word when a status begins with this."""
        began = time.monotonic()

        def look(data: list[Any]) -> None:
            for value in data[:5]:
                if isinstance(value := _value(value), str):
                    _note(visit, value, time.monotonic() - began)
            if stop_at is not None and visit.seen and visit.seen[-1][1].startswith(stop_at):
                raise Left

        visit.prompt = form.get("prompt", visit.prompt)
        try:
            await self.call(self.plan.submit, self.plan.form(self.plan.submit, self.filled, **form), look)
            if visit.outcome == "unanswered":
                await self.call(self.plan.watch, [None], look)
        except Refused as refusal:
            visit.outcome, visit.reason = "refused", str(refusal)
        except Left:
            visit.outcome = "left"
        return visit

    async def see(self, visit: Visit) -> Visit:
        """Let the page show the finished run, as it does by itself, and note which run that is."""
        shown = await self.call(self.plan.show, self.plan.form(self.plan.show, self.filled))
        visit.run = (LINK.search(json.dumps(shown)) or ["", ""])[1]
        return visit


class Refused(Exception):
    """What the server said instead of doing it."""


class Left(Exception):
    """The visitor has seen enough."""


async def read_slowly(server: str, plan: Plan, visitor: Visitor, done: asyncio.Event, **form: Any) -> Visit:
    """Press Run and read the stream at a few bytes a second until ``done``, then the rest at once."""
    visit, began = Visit(form.get("prompt", "")), time.monotonic()
    await visitor.call(plan.submit, plan.form(plan.submit, visitor.filled, **form))
    await visitor.join(plan.watch, [None])
    at = urlsplit(server)
    reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=1024)
    path = f"{plan.prefix}/queue/data?session_hash={visitor.session}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {at.netloc}\r\nConnection: close\r\n\r\n".encode())
    held = b""
    while not done.is_set():
        with contextlib.suppress(TimeoutError):
            held += await asyncio.wait_for(reader.read(8), 1)
        await asyncio.sleep(1)
    while data := await reader.read(65536):
        held += data
        for words in re.findall(r'<div class=\\"status .*?</div>', data.decode("utf-8", "replace")):
            _note(visit, words.replace('\\"', '"'), time.monotonic() - began)
        if visit.outcome != "unanswered":
            break
    _note(visit, held.decode("utf-8", "replace").replace('\\"', '"'), time.monotonic() - began)
    writer.close()
    return visit


def _note(visit: Visit, sent: str, at: float) -> None:
    for tone, words, detail in STATUS.findall(sent):
        if not visit.seen or visit.seen[-1][1:] != (words, detail):
            visit.seen.append((at, words, detail))
        if tone in ("done", "bad") or words == "Cancelled":
            visit.outcome = {"Done": "done", "Cancelled": "cancelled"}.get(words, "stopped")
            visit.reason = html.unescape(detail)
    for title, text in NOTICE.findall(sent):
        if title == "This cannot run":
            visit.outcome, visit.reason = "refused", html.unescape(text)


def _merged(current: list[Any], data: list[Any]) -> list[Any]:
    """An update after the last one: whole, or what has changed."""
    changes = [isinstance(new, list) and new and isinstance(new[0], list) for new in data]
    if len(current) != len(data) or not all(new == [] or changed for new, changed in zip(data, changes, strict=True)):
        return data
    return [apply_diff(old, new) for old, new in zip(current, data, strict=True)]


def _value(given: Any) -> Any:
    """A component's value, out of an update of several of its properties too."""
    return given.get("value") if isinstance(given, dict) and given.get("__type__") == "update" else given
