"""``make picture``: docs/*.png, what an empty page says first and the first cards of stored runs, shot in Chromium.

A run's id is written into its picture, where a test finds it: a picture of another run than the one that ships fails.
"""

import os
import sys
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from PIL.PngImagePlugin import PngInfo  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from benchmarks.by_run import DEMONSTRATION, FIRST  # noqa: E402
from benchmarks.page import serve  # noqa: E402
from kvq_core.pipeline.examples import example_ids  # noqa: E402

SHOWN = (FIRST, DEMONSTRATION[0])
CARDS = 6  # the reference and five lanes, in three columns
PATIENCE_MS = 600_000


def shot(address: str, name: str, run: str) -> bytes:
    """The first sight's card, or a run's toolbar and first cards, as a PNG."""
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 1400}, device_scale_factor=1.25)
        page.set_default_timeout(PATIENCE_MS)
        if name == FIRST:
            page.goto(address)
            page.wait_for_timeout(3000)  # its style comes with the page's own
            png = page.locator(".two-models").screenshot()
            browser.close()
            return png
        page.goto(f"{address}/?run={run}")
        page.wait_for_selector("#verdicts .verdict")
        page.wait_for_timeout(3000)  # the page scrolls and marks the chosen token once its figures are there
        page.evaluate("scrollTo(0, 0)")
        boxes = [page.locator(place).bounding_box() for place in ("#toolbar", *(f"#card-{at}" for at in range(CARDS)))]
        left, top = min(b["x"] for b in boxes), min(b["y"] for b in boxes)
        right, bottom = (max(b[at] + b[size] for b in boxes) for at, size in (("x", "width"), ("y", "height")))
        clip = {"x": left - 12, "y": top - 8, "width": right - left + 24, "height": bottom - top + 16}
        png = page.screenshot(clip=clip, full_page=True)
        browser.close()
    return png


def main() -> None:
    runs = {name: example_ids()[name] for name in SHOWN}
    with tempfile.TemporaryDirectory() as folder:
        process, address = serve(folder)
        try:
            shots = {name: shot(address, name, run) for name, run in runs.items()}
        finally:
            process.terminate()
            process.wait(60)
    for name, png in shots.items():
        told, file = PngInfo(), ROOT / "docs" / f"{name}.png"
        told.add_text("run", runs[name])
        picture = Image.open(BytesIO(png)).convert("RGB")
        picture.save(file, pnginfo=told, optimize=True)
        print(f"{file.relative_to(ROOT)}: run {runs[name]}, {picture.width} x {picture.height}")


if __name__ == "__main__":
    main()
