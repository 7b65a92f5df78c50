"""The page's budgets on a finished run: bytes, time until it can be used, tab switches, JS heap.

The shipped run "five-ideas" (six lanes) is served by app.py with an empty store and opened in headless Chromium
(``CHROMIUM``, default /usr/bin/chromium), the second time, with the browser's cache of scripts and the server's of
drawings warm. Bytes are what the browser received for the page and all its views, scripts left out (Plotly alone is
4.6 MB). Interactive: the form, the cards and the verdicts are there; of that, answered: what the server takes for all
that the page asks until its cards and numbers can be shown. A switch is timed from the click on a tab until the view's
first figure is drawn: for the first time in a visit, once the pointer has rested on the tab for ``RESTED_MS``, as one's
does who reads where it points; and again. Of another visit, ``at_once_ms``: for the first time, by a click out of
nowhere.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BUDGETS = {
    "answered_s": 1.0,
    "bytes": 2.5e6,
    "interactive_s": 3.0,
    "first_switch_ms": 300.0,
    "switch_ms": 300.0,
    "at_once_ms": 300.0,
    "heap_mb": 200.0,
}
RESTED_MS = 200
VIEWS = {
    "Text": "kld-strips",
    "Where": "grid-key",
    "Rate–distortion": "rate-kld",
    "Bits": "bits",
    "Spectra": "head-spectra",
    "Query subspace": "error-split",
}
# Milliseconds from the click on a tab until its first figure is drawn.
SWITCH = """async ([title, place]) => {
  const started = performance.now();
  [...document.querySelectorAll("[data-view]")].find((tab) => tab.textContent === title).click();
  while (!(document.querySelector(`${place} .main-svg`)?.getBoundingClientRect().width > 0))
    await new Promise((next) => setTimeout(next, 5));
  return performance.now() - started;
}"""


def serve(folder: str) -> tuple[subprocess.Popen, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PORT": str(port), "KVQ_STORE": folder}
    process = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 600
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/config", timeout=5).close()
            return process, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.3)
    process.terminate()
    raise SystemExit("The server did not start in 600 s.")


async def answered(address: str, run: str) -> float:
    """Seconds for the answers to all that a page asks when it is opened with a run's link."""
    from benchmarks.load_visitors import Plan, Visit, Visitor

    with urllib.request.urlopen(f"{address}/config") as config:
        plan = Plan(json.load(config))
    visitor = Visitor(address, plan, run=run)
    began = time.perf_counter()
    await visitor.open()
    seen = await visitor.see(Visit())
    seconds = time.perf_counter() - began
    await visitor.close()
    assert seen.run == run, "the page shows the run it was asked for"
    return seconds


def measured(address: str, run: str) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(120_000)
        opened(page, address, run)  # fills the browser's cache of scripts, and the server's of drawings
        switched(page, 0)
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        received = {"bytes": 0}
        scripts: set[str] = set()

        def told(event: dict) -> None:
            if "/assets/" in event["response"]["url"] or "/static/" in event["response"]["url"]:
                scripts.add(event["requestId"])

        def came(event: dict) -> None:
            if event["requestId"] not in scripts:
                received["bytes"] += event["dataLength"]

        session.on("Network.responseReceived", told)
        session.on("Network.dataReceived", came)
        found = {"interactive_s": opened(page, address, run)}
        found |= {"first_switch_ms": switched(page, RESTED_MS), "switch_ms": switched(page, 0)}
        found["bytes"] = received["bytes"]
        session.send("HeapProfiler.collectGarbage")
        found["heap_mb"] = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
        opened(page, address, run)
        found["at_once_ms"] = switched(page, 0)
        browser.close()
    return found


def opened(page: Any, address: str, run: str) -> float:
    """Seconds until a run's page can be used."""
    began = time.perf_counter()
    page.goto(f"{address}/?run={run}")
    page.wait_for_selector("#verdicts .verdict")
    page.wait_for_function("window.kvq && !document.querySelector('#pick-layer input')?.disabled")
    seconds = time.perf_counter() - began
    page.wait_for_timeout(3000)  # until what follows the page is there
    page.evaluate("document.getElementById('views').scrollIntoView()")
    return seconds


def switched(page: Any, rested: int) -> float:
    """Milliseconds of the slowest switch, through all views; ``rested``: of the pointer on a tab."""
    times = []
    for title, name in VIEWS.items():
        page.wait_for_timeout(500)
        if rested:
            page.locator("[data-view]", has_text=title).first.hover()
            page.wait_for_timeout(rested)
        times.append(page.evaluate(SWITCH, [title, f"#plot-{name}"]))
    page.wait_for_timeout(500)
    return max(times)


def main() -> int:
    from kvq_core.pipeline.examples import example_ids

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "page.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, address = serve(folder)
        try:
            run = example_ids()["five-ideas"]
            found = measured(address, run) | {"answered_s": asyncio.run(answered(address, run))}
        finally:
            process.terminate()
            process.wait(20)
    over = [name for name, most in BUDGETS.items() if found[name] > most]
    result = {"page": {name: round(value, 3) for name, value in found.items()}, "budgets": BUDGETS, "over": over}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
