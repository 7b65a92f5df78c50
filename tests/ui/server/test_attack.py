"""The campaign ``attack``: a real public instance under hostile calls goes on serving its visitors."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from kvq_core.errors import MESSAGE
from kvq_core.spec import DEFAULT_MODEL
from tests.support.attacks import LANES, Call, calls, estimate_in, said
from tests.support.campaigns import whole

ROOT = Path(__file__).parents[3]
MOST_BYTES, MOST_S = 1_500_000_000, 1.0  # with the weights, which are mapped, 2 GB
TRACE = re.compile(r"Traceback|File \"|\.py\", line|/kvq-prompts-")
SMALL = {"prompt": "The tide came in. " * 8, "max_new_tokens": 4, "lanes": LANES}


class Watch:
    """What the instance is like meanwhile: its memory with that of its processes, ``/health``, and what other visitors
    get. ``peak`` leaves out pages of files, which the system takes back when it needs them: the weights and the
    libraries are mapped. ``resident`` has them."""

    def __init__(self, address: str, process: int):
        self.peak, self.resident, self.slowest, self.served, self.errors = 0, 0, 0.0, 0, list[str]()
        self._address, self._process, self._over = address, psutil.Process(process), threading.Event()
        self._threads = [threading.Thread(target=self._goes_on, args=[work]) for work in (self._look, self._visit)]

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _goes_on(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (httpx.HTTPError, psutil.Error) as error:
            self.errors.append(f"{work.__name__}: {error!r}")

    def _look(self) -> None:
        with httpx.Client(base_url=self._address, timeout=60) as client:
            while not self._over.wait(0.2):
                began = time.monotonic()
                if client.get("/health").status_code != 200:
                    self.errors.append("/health")
                self.slowest = max(self.slowest, time.monotonic() - began)
                memory, others = self._process.memory_info(), sum(map(_own, self._process.children()))
                self.resident = max(self.resident, memory.rss + others)
                self.peak = max(self.peak, memory.rss - memory.shared + others)

    def _visit(self) -> None:
        visitor = {"X-Forwarded-For": "198.51.100.7"}
        with httpx.Client(base_url=self._address, timeout=120, headers=visitor) as client:
            while not self._over.wait(1):
                found = [client.get("/").status_code == 200]
                for name in ("/estimate", "/models"):
                    told = "\n".join(said(client, _asked(name, *([SMALL] if name == "/estimate" else []))))
                    found.append("event: complete" in told)
                self.served += all(found)
                self.errors += [] if all(found) else [f"a visitor: {found}"]


def _own(process: psutil.Process) -> int:
    """Bytes of a process that no other has."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


def _asked(name: str, *data: object) -> Call:
    body = json.dumps({"data": data}).encode()
    return Call(name, "POST", f"/gradio_api/call{name}", body, {"Content-Type": "application/json"})


@pytest.fixture(scope="module")
def instance(tmp_path_factory, real_model):
    """Address, process and log of a public instance behind a proxy that tells visitors apart."""
    place = tmp_path_factory.mktemp("attacked")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    public = {"KVQ_MODELS": DEFAULT_MODEL, "KVQ_STORE": str(place / "store"), "FORWARDED_ALLOW_IPS": "127.0.0.1"}
    env = {**os.environ, **public, "PORT": str(port), "GRADIO_TEMP_DIR": str(place / "files"), "OMP_NUM_THREADS": "1"}
    log, address = place / "log", f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=env, stdout=out, stderr=out)
    try:
        _wait_for(address, process, log)
        yield address, process.pid, log
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(address: str, process: subprocess.Popen, log: Path) -> None:
    """Until its model is there."""
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{address}/health", timeout=5).json()["model"]["loaded"]:
                return
        except (httpx.HTTPError, KeyError):
            pass
        time.sleep(0.3)
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.long("attack")
@pytest.mark.timeout(3600)
def test_a_public_instance_stands_hostile_calls_and_serves_others(instance, record_property):
    address, process, log = instance
    info, config = (httpx.get(f"{address}{path}", timeout=60).json() for path in ("/gradio_api/info", "/config"))
    chosen = calls(1000 if whole() else 36, info, estimate_in(config))
    attacker = {"X-Forwarded-For": "203.0.113.9"}
    wrong: list[tuple[str, str]] = []

    def send(call: Call) -> None:
        try:
            with httpx.Client(base_url=address, timeout=120, headers=attacker) as client:
                for text in said(client, call):
                    wrong.extend((call.what, text[:400]) for _ in [0] if TRACE.search(text) or _many_lines(text))
        except httpx.HTTPError as error:  # a request that is none ends with its connection
            if not call.what.startswith("address"):
                wrong.append((call.what, repr(error)))
        except AssertionError as error:
            wrong.append((call.what, str(error)))

    with Watch(address, process) as watch, ThreadPoolExecutor(4) as many:
        list(many.map(send, chosen))
    told = log.read_text()
    record_property("calls", len(chosen))
    record_property("megabytes", watch.peak // 10**6)
    record_property("megabytes_with_mapped_files", watch.resident // 10**6)
    record_property("milliseconds", round(1000 * watch.slowest))
    assert not wrong and not watch.errors and watch.served, (wrong[:5], watch.errors[:5])
    assert "Traceback" not in told and "request failed" not in told, told[-4000:]
    assert watch.peak < MOST_BYTES, watch.peak
    if whole():  # beside other tests a machine is as fast as they let it be
        assert watch.slowest < MOST_S, watch.slowest


def _many_lines(text: str) -> bool:
    """Whether an error is told in more than a line, or at any length."""
    if not (text.startswith("data: ") and '"error"' in text):
        return False
    found = json.loads(text.removeprefix("data: "))
    said = found.get("error") or (found.get("output") or {}).get("error") or ""
    return "\n" in str(said) or len(str(said)) > MESSAGE
