"""What a first visit costs and how steady the page is: bytes, layout shift, a slow line, heap, switching a lane.

A page with an empty browser cache, in headless Chromium (``CHROMIUM``, default /usr/bin/chromium), of a server that
runs already. Bytes are those on the wire, compressed as they came, until nothing more arrives and before any view is
opened. The slow line has 400 ms of latency and 1.6 Mbit/s. A switch is timed within the page, from the click in the
legend to the frame after it, the median of twelve in an open view with figures; its other work is one process that
draws. Times on a busy machine are upper bounds.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median

VIEWS = ("texts", "damage", "rate", "storage", "spectra", "subspace")
SHIFTS = """window.shifts = 0; new PerformanceObserver(list => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });"""
ANSWERED = "performance.now() - performance.getEntriesByType('navigation')[0].responseStart"
SWITCH = """() => new Promise((done) => {
  const began = performance.now();
  document.querySelector("#legend [data-switch]").click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""
SLOW = {"offline": False, "latency": 400, "downloadThroughput": 200_000, "uploadThroughput": 200_000}


def opened(browser, address: str, slow: bool = False):
    """A page of a new visitor, and the bytes that arrive by their address."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(180_000)
    page.add_init_script(SHIFTS)
    session, addresses, received = page.context.new_cdp_session(page), {}, {}
    session.send("Network.enable")
    if slow:
        session.send("Network.emulateNetworkConditions", SLOW)
    session.on("Network.requestWillBeSent", lambda e: addresses.update({e["requestId"]: e["request"]["url"]}))

    def came(event: dict) -> None:
        url = addresses.get(event["requestId"], "?")
        received[url] = received.get(url, 0) + event["encodedDataLength"]

    session.on("Network.loadingFinished", came)
    page.goto(address)
    return page, session, received


def first_visit(browser, address: str) -> dict[str, float]:
    page, _, received = opened(browser, address)
    page.wait_for_selector("#verdicts .verdict")
    page.wait_for_timeout(8000)
    plotly = sum(size for url, size in received.items() if "Plotly" in url)
    assets = sum(size for url, size in received.items() if "/assets/" in url or "/static/" in url)
    found = {"bytes": sum(received.values()), "plotly_bytes": plotly, "other_scripts_bytes": assets - plotly}
    found["layout_shift"] = round(page.evaluate("window.shifts"), 4)
    page.context.close()
    return found


def slow_line(browser, address: str) -> dict[str, float]:
    page, _, _ = opened(browser, address, slow=True)
    page.wait_for_selector("#answer h1")
    found = {"slow_answer_s": round(page.evaluate(ANSWERED) / 1e3, 2)}
    page.wait_for_selector("#verdicts .verdict")
    found["slow_usable_s"] = round(page.evaluate(ANSWERED) / 1e3, 2)
    found["slow_layout_shift"] = round(page.evaluate("window.shifts"), 4)
    page.context.close()
    return found


def every_view(browser, address: str) -> dict[str, float]:
    page, session, _ = opened(browser, address)
    page.wait_for_selector("#verdicts .verdict")
    for view in VIEWS:
        page.evaluate("view => document.querySelector(`[data-view=${view}]`).click()", view)
        page.wait_for_selector(f"#view-{view}:not(.behind) .plot .main-svg", state="attached")
        page.wait_for_timeout(1500)
    page.evaluate("document.querySelector('[data-view=damage]').click()")
    page.evaluate("document.getElementById('views').scrollIntoView()")
    times = []
    for _ in range(12):
        times.append(page.evaluate(SWITCH))
        page.wait_for_timeout(400)
    session.send("HeapProfiler.collectGarbage")
    heap = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
    page.context.close()
    return {"switch_ms": round(median(times), 1), "switch_most_ms": round(max(times), 1), "heap_mb": round(heap, 1)}


def main() -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--run", action="append", default=[], help="measured with all views opened; may be given again")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "page_first.json")
    args = parser.parse_args()
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        result: dict[str, object] = {"load": round(os.getloadavg()[0], 1)}
        result["first visit"] = first_visit(browser, args.address) | slow_line(browser, args.address)
        print(json.dumps(result), flush=True)
        for run in args.run:
            result[run] = every_view(browser, f"{args.address}/?run={run}")
            args.out.write_text(json.dumps(result, indent=1) + "\n")
        browser.close()
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
