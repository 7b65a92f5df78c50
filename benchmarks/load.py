"""``make load``: a real server under fifty visitors, and what becomes of each of them.

Two servers are started, each with a store of its own: a private instance, where nothing but the line is limited, and a
public one with its limits (load_limits.py). Visitors speak to them as browsers do (load_visitors.py). On the private
one fifty open a link with a comparison of their own (one lane, four new tokens) and press Run at once; ten close the
page, half of them while they wait and half in mid-run; one reads its stream at eight bytes a second; one sends a prompt
of 10 MB, one a request of 20 MB; and links, ids and request bodies that mean nothing arrive all the time. Everybody
must get an answer, and each the answer to their own prompt; the server must stay up, and its memory return to its
level, which a second crowd of fifty shows. The estimate of memory that runs are admitted by is compared with measured
peaks (load_memory.py). All goes into load.json.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.load_limits import PUBLIC, limited  # noqa: E402
from benchmarks.load_memory import measured_peaks  # noqa: E402
from benchmarks.load_visitors import Plan, Refused, Visitor, read_slowly  # noqa: E402
from benchmarks.load_visits import link, pasted, prompt_of, summary, usual  # noqa: E402

ONCE = httpx.Limits(max_keepalive_connections=0)


@contextmanager
def server(folder: str, port: int, **variables: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server as ``make run`` starts it; SIGUSR1 makes it collect garbage."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the server before it had the same port
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    env = {**os.environ, "PORT": str(port), "KVQ_STORE": folder, "HF_HUB_OFFLINE": "1", **variables}
    with Path(folder, "server.log").open("w") as log:
        process = subprocess.Popen([sys.executable, __file__, "--serve"], cwd=ROOT, env=env, stdout=log, stderr=log)
        address = f"http://127.0.0.1:{port}"
        try:
            until = time.monotonic() + 900
            while not _ready(address):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"The server did not start:\n{Path(folder, 'server.log').read_text()[-3000:]}")
                time.sleep(0.5)
            yield address, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _ready(address: str) -> bool:
    try:
        return bool(httpx.get(f"{address}/health", timeout=10).json()["model"]["loaded"])
    except (httpx.HTTPError, ValueError, KeyError):
        return False


def serve() -> int:
    """app.py, with a way to ask from outside what its memory is without garbage."""
    import ctypes
    import gc

    import app

    def collect(*_: object) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)

    signal.signal(signal.SIGUSR1, collect)
    return app.main()


class Watcher:
    """Memory of the server and the time ``/`` takes, all along."""

    def __init__(self, address: str, process: psutil.Process):
        self.address, self.process = address, process
        self.latency: list[float] = []
        self.peak = 0
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        async with httpx.AsyncClient(timeout=900, limits=ONCE) as http:
            while True:
                began = time.monotonic()
                (await http.get(f"{self.address}/")).raise_for_status()
                self.latency.append(time.monotonic() - began)
                self.peak = max(self.peak, self.process.memory_info().rss)
                await asyncio.sleep(0.5)

    def stop(self) -> dict[str, float]:
        if self._task.done():
            self._task.result()  # the server did not answer: that is the finding
        self._task.cancel()
        times = sorted(self.latency)
        return {
            "requests": len(times),
            "median_s": statistics.median(times),
            "p95_s": times[int(0.95 * (len(times) - 1))],
            "max_s": times[-1],
        }


async def resting(address: str, process: psutil.Process) -> dict[str, float]:
    """Memory (MB) and threads once nothing runs, before and after garbage is collected."""
    async with httpx.AsyncClient(timeout=900, limits=ONCE) as http:
        while any((await http.get(f"{address}/health")).json()["queue"].values()):
            await asyncio.sleep(0.5)
    await asyncio.sleep(5)
    found = {"rss_mb": process.memory_info().rss / 1e6}
    process.send_signal(signal.SIGUSR1)
    await asyncio.sleep(3)
    return found | {"collected_mb": process.memory_info().rss / 1e6, "threads": process.num_threads()}


async def large(address: str, plan: Plan, characters: int) -> dict[str, Any]:
    """A visitor who pastes a book: how soon and how it is answered."""
    began = time.monotonic()
    visit = await pasted(address, plan, "x" * characters)
    return {"seconds": time.monotonic() - began, "outcome": visit.outcome, "reason": visit.reason}


async def nonsense(address: str, plan: Plan, over: asyncio.Event) -> dict[str, int]:
    """Links and requests that mean nothing, until ``over``: how often which status came back."""
    found: Counter[str] = Counter()
    chance = random.Random(6)
    async with httpx.AsyncClient(base_url=address, timeout=900, limits=ONCE) as http:
        while not over.is_set():
            text = "".join(
                chr(chance.choice([chance.randrange(1, 128), chance.randrange(0x20, 0xD7FF)])) for _ in range(40)
            )
            for name in ("run", "vs", "c", "preset", "learn"):
                found[f"link {(await http.get('/', params={name: text})).status_code}"] += 1
            junk = chance.choice([None, [], {}, text, -1, [[]] * 50, {"a": {"b": [text]}}, 10**30])
            events = [0, -1, 10**9, plan.submit["id"], text]
            body = {"data": junk, "fn_index": chance.choice(events), "session_hash": text}
            found[f"request {(await http.post(f'{plan.prefix}/queue/join', json=body)).status_code}"] += 1
            found[f"form {await _form_of_nonsense(address, plan, chance, text)}"] += 1
            await asyncio.sleep(1)
    return dict(sorted(found.items()))


async def _form_of_nonsense(address: str, plan: Plan, chance: random.Random, text: str) -> str:
    """Press Run with values no form would send."""
    visitor = Visitor(address, plan)
    try:
        values = [chance.choice([None, text, -1, 1e308, [], {"x": 1}, True]) for _ in plan.submit["inputs"]]
        said = json.dumps(await visitor.call(plan.submit, values))
        return "failed" if "that should not have" in said else "answered"
    except Refused:
        return "refused"
    finally:
        await visitor.close()


async def crowd(address: str, process: psutil.Process, store: str, count: int, first: int = 0) -> dict[str, Any]:
    """Everybody at once on an instance without limits; ``first`` numbers their prompts."""
    async with httpx.AsyncClient(timeout=120) as http:
        plan = Plan((await http.get(f"{address}/config")).json())
    for number in range(3):  # what is made once is not growth
        await usual(address, plan, 1000 + number)
    before = await resting(address, process)
    watcher, over, began = Watcher(address, process), asyncio.Event(), time.monotonic()
    slow_page = await Visitor(address, plan, c=link(prompt_of(first + count))).open()
    beside = [
        asyncio.create_task(nonsense(address, plan, over)),
        asyncio.create_task(read_slowly(address, plan, slow_page, over)),
    ]
    leaving = count // 5
    stops = ["Decoding"] * (leaving // 2) + ["Waiting"] * (leaving - leaving // 2) + [None] * (count - leaving)
    random.Random(1).shuffle(stops)
    pressed = [usual(address, plan, number, stop) for number, stop in enumerate(stops, first)]
    pasted = asyncio.gather(large(address, plan, 10_000_000), large(address, plan, 20_000_000))
    visits = list(await asyncio.gather(*pressed))
    seconds = time.monotonic() - began
    over.set()
    junk, slow = await asyncio.gather(*beside)
    latency, books = watcher.stop(), await pasted
    await slow_page.close()
    return {
        "visitors": count,
        "seconds": seconds,
        **summary(visits, store),
        "slow_reader": slow.outcome,
        "slow_reader_s": slow.seconds,
        "prompt_10mb": books[0],
        "request_20mb": books[1],
        "nonsense": junk,
        "page_latency": latency,
        "peak_mb": watcher.peak / 1e6,
        "before": before,
        "after": await resting(address, process),
        "log_errors": _errors(store),
    }


def _errors(store: str) -> int:
    """Errors in the server's log: Gradio writes one for each value of nonsense that is not of its component's type."""
    return sum('"level": "error"' in line or "Traceback" in line for line in Path(store, "server.log").open())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "load.json")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve()
    with tempfile.TemporaryDirectory() as folder, server(folder, args.port, KVQ_MODELS="") as running:
        found: dict[str, Any] = {"cores": os.cpu_count()}
        found["private"] = asyncio.run(crowd(*running, folder, args.visitors))
        # the same again: what grew with the first crowd and not with a second is not lost
        found["again"] = asyncio.run(crowd(*running, folder, args.visitors, args.visitors + 1))
        args.out.write_text(json.dumps(found, indent=1) + "\n")  # what is measured is kept, whatever follows
    with tempfile.TemporaryDirectory() as folder, server(folder, args.port, **PUBLIC) as running:
        found["public"] = asyncio.run(limited(running[0], folder))
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    found["memory"] = measured_peaks()
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    wrong = [row["limit"] for row in found["public"] if not row["refused"]]
    for wave in (found["private"], found["again"]):
        wrong += [wave["outcomes"].get("unanswered"), wave["slow_reader"] != "done", wave["mixed_up"]]
        wrong += [count for what, count in wave["nonsense"].items() if what in ("form failed", "request 500")]
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
