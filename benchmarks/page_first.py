"""What a first visit costs and how steady the page is: an answer, bytes, layout shift, a slow line, heap, a switch.

A page with an empty browser cache, in headless Chromium (``CHROMIUM``, default /usr/bin/chromium), of a server that
runs already and has shown the runs before. Bytes are those on the wire, compressed as they came: before any view is
opened until nothing more arrives, then for each view that is opened. An answer is on the screen in the first frame that
has its headline; seconds count from the page's first byte. The slow line has 400 ms of latency and 1.6 Mbit/s. A switch
is timed within the page, from the click in the legend to the frame after it, in every view with figures; twelve times a
view. Other work on the machine only adds to times: ``load`` says how much there was, and the median of ``--visits``
visits is kept.
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from statistics import median

VIEWS = ("texts", "damage", "rate", "storage", "spectra", "subspace")
BUDGETS = {
    "answer_s": 2.0,
    "first_paint_s": 1.5,
    "layout_shift": 0.01,
    "bytes": 2.5e6,
    "view_bytes": 400e3,
    "switch_ms": 100.0,
    "heap_mb": 120.0,
}
WATCH = """window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
const early = () => document.querySelector("#early")?.shadowRoot?.querySelector("h1");
const answer = () => early() ?? document.querySelector("#answer h1");
const look = () => {
  if (answer()?.checkVisibility()) window.answered = performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);"""
TIMES = """() => {
  const began = performance.getEntriesByType("navigation")[0].responseStart;
  const painted = performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN;
  return { answer_s: (window.answered - began) / 1e3, first_paint_s: (painted - began) / 1e3 };
}"""
SWITCH = """() => new Promise((done) => {
  const began = performance.now();
  document.querySelector("#legend [data-switch]").click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""
SLOW = {"offline": False, "latency": 400, "downloadThroughput": 200_000, "uploadThroughput": 200_000}
QUIET_MS, SWITCHES = 8000, 12


class Visit:
    """A new visitor's page, and the bytes that came by their address."""

    def __init__(self, browser, address: str, slow: bool = False) -> None:
        self.page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        self.page.set_default_timeout(180_000)
        self.page.add_init_script(WATCH)
        self.session, self.received = self.page.context.new_cdp_session(self.page), Counter()
        addresses, parts = {}, Counter()
        self.session.send("Network.enable")
        if slow:
            self.session.send("Network.emulateNetworkConditions", SLOW)
        self.session.on("Network.requestWillBeSent", lambda e: addresses.update({e["requestId"]: e["request"]["url"]}))

        def came(event: dict, ended: bool = False) -> None:
            """Bytes as they come: a view comes in a stream that ends later. What ended is told whole, with headers."""
            request, size = event["requestId"], event["encodedDataLength"]
            more = size - parts[request] if ended else size
            parts[request] += more
            self.received[addresses.get(request, "?")] += more

        self.session.on("Network.dataReceived", came)
        self.session.on("Network.loadingFinished", lambda event: came(event, ended=True))
        self.page.goto(address)

    @property
    def bytes(self) -> float:
        return sum(self.received.values())

    def times(self) -> dict[str, float]:
        self.page.wait_for_function("window.answered")
        return {name: round(value, 2) for name, value in self.page.evaluate(TIMES).items()}

    def shift(self) -> float:
        return round(self.page.evaluate("window.shifts"), 4)

    def leave(self) -> None:
        self.page.context.close()


def first_visits(browser, address: str, count: int) -> dict[str, float]:
    """Medians over visits of an empty page or of a run's link, until nothing more arrives."""
    found = []
    for _ in range(count):
        visit = Visit(browser, address)
        visit.page.wait_for_selector("#verdicts .verdict")
        visit.page.wait_for_timeout(QUIET_MS)
        plotly = sum(size for url, size in visit.received.items() if "Plotly" in url)
        assets = sum(size for url, size in visit.received.items() if "/assets/" in url or "/static/" in url)
        sizes = {"bytes": visit.bytes, "plotly_bytes": plotly, "other_scripts_bytes": assets - plotly}
        found.append(visit.times() | sizes | {"layout_shift": visit.shift()})
        visit.leave()
    return {name: median(one[name] for one in found) for name in found[0]}


def slow_line(browser, address: str) -> dict[str, float]:
    """On the slow line: the answer, all of the page, and a view that is opened then."""
    visit = Visit(browser, address, slow=True)
    found = {"answer_s": visit.times()["answer_s"]}
    visit.page.wait_for_selector("#verdicts .verdict")
    found["usable_s"] = round(visit.page.evaluate("performance.now()") / 1e3, 1)
    visit.page.evaluate("document.querySelector('[data-view=damage]').click()")
    visit.page.wait_for_selector("#view-damage:not(.behind) .plot .main-svg", state="attached")
    found["view_drawn_s"] = round(visit.page.evaluate("performance.now()") / 1e3, 1)
    found["layout_shift"] = visit.shift()
    visit.leave()
    return found


def every_view(browser, address: str) -> dict[str, float]:
    """A run with every view opened: bytes a view, a lane switched in each, the heap at the end."""
    visit = Visit(browser, address)
    page, sizes, switches = visit.page, {}, {}
    page.wait_for_selector("#verdicts .verdict")
    page.wait_for_selector("#legend [data-switch]")
    page.wait_for_timeout(QUIET_MS)
    for view in VIEWS:
        before = visit.bytes
        page.evaluate("view => document.querySelector(`[data-view=${view}]`).click()", view)
        page.wait_for_selector(f"#view-{view}:not(.behind) .plot .main-svg", state="attached")
        page.evaluate("document.getElementById('where').scrollIntoView()")
        page.wait_for_timeout(2500)
        sizes[view] = visit.bytes - before
        times = []
        for _ in range(SWITCHES):
            times.append(page.evaluate(SWITCH))
            page.wait_for_timeout(300)
        switches[view] = round(median(times), 1)
    visit.session.send("HeapProfiler.collectGarbage")
    heap = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
    visit.leave()
    most = {"view_bytes": max(sizes.values()), "switch_ms": max(switches.values())}
    return most | {"bytes_by_view": sizes, "switch_ms_by_view": switches, "heap_mb": round(heap, 1)}


def main() -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--run", action="append", default=[], help="NAME=ID; may be given again", metavar="NAME=ID")
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "page_first.json")
    parser.add_argument("--slow-alone", action="store_true", help="the slow line alone; the rest stays in the file")
    args = parser.parse_args()
    result: dict[str, object] = {"budgets": BUDGETS, "load": round(os.getloadavg()[0], 1)}
    if args.slow_alone:
        result = json.loads(args.out.read_text())
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if not args.slow_alone:
            result["empty page"] = first_visits(browser, args.address, args.visits)
        result["slow line"] = slow_line(browser, args.address) | {"load": round(os.getloadavg()[0], 1)}
        print(json.dumps(result), flush=True)
        for named in args.run:
            name, _, run = named.partition("=")
            address = f"{args.address}/?run={run}"
            result[name] = first_visits(browser, address, 1) | every_view(browser, address)
            print(name, json.dumps(result[name]), flush=True)
        browser.close()
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
