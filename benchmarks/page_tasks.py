"""Five tasks of a newcomer, walked on the page as it is and as it was before its redesign: clicks, keys and seconds.

Each begins on an empty page of a server that runs already, as a visitor nobody knows, in headless Chromium
(``CHROMIUM``, default /usr/bin/chromium). A step is a click, a key, or words typed into a field; it is done as soon as
the page has what it needs. Seconds run from the first byte that is asked for until the answer is on the screen, without
a person's time to read or think; what the engine computes is left out, for the run of *safest* was stored beforehand.
``--before`` is the address of a server of the last commit without the redesign (4988d3a).
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

PROMPT = (
    "The mill stood on a causeway and worked with the tide, twice a day, in summer and in winter alike. The miller "
    "wrote the height of every tide into a notebook and promised flour months ahead. Write what he promised, and why."
)
FLAGS = "-ctk q8_0 -ctv f16"
DONE = "document.querySelector('#status .status b')?.innerText.startsWith('Done')"
RUN = [("type", "#prompt textarea", PROMPT), ("click", "#run"), ("until", DONE)]
READY = ("until", "document.querySelector('#estimate .facts')")  # what is typed before is overwritten there
EXAMPLE = [("click", ".example:nth-of-type(2)"), ("see", "#verdicts .verdict")]
# A task's name -> its steps.
Steps = list[tuple[str, ...]]
NOW: dict[str, Steps] = {
    "which of these caches is safest for my prompt?": [
        ("click", "[data-form=open]"),
        *RUN,
        ("until", "document.querySelector('#answer')?.innerText.includes('The mill stood on a causeway')"),
        ("see", "#answer h1 mark"),
    ],
    "where does it break?": [
        ("see", "#answer .reason"),
        ("click", "[data-view=damage]"),
        ("see", "#plot-grid-key svg"),
    ],
    "add a lane with 8-bit keys": [
        ("click", "[data-form=open]"),
        ("type", "#flags :is(textarea, input)", FLAGS),
        ("key", "Enter"),
        ("until", "[...document.querySelectorAll('.lane-row')].some(row => row.innerText.includes('q8_0'))"),
    ],
    "send this to a colleague": [("click", "[data-share]"), ("see", "#share textarea")],
    "what would it take at 32K x 8?": [("see", "#answer .pill")],
}
BEFORE: dict[str, Steps] = {
    "which of these caches is safest for my prompt?": [
        READY,
        *RUN,
        ("see", "#verdicts .verdict"),
        ("see", "#score-table"),
    ],
    "where does it break?": [
        *EXAMPLE,
        ("click", "#views [role=tab]:has-text('Where')"),
        ("see", "#plot-grid-key svg"),
    ],
    "add a lane with 8-bit keys": [
        READY,
        ("click", "#add-lane"),
        ("choose", "#in-lane-method", '"per_token"'),
        ("choose", "#in-per_token-bits", "8"),
        ("click", ".editor summary:has-text('Where it applies')"),
        ("choose", "#in-lane-tensors", '"keys"'),
        ("until", "[...document.querySelectorAll('.lane-row')].at(-1).innerText.includes('K8')"),
    ],
    "send this to a colleague": [*EXAMPLE, ("see", "#share textarea"), ("click", "#share .copy")],
    "what would it take at 32K x 8?": [
        *EXAMPLE,
        ("click", "#views [role=tab]:has-text('Bits')"),
        ("type", "#batch input", "8"),
        ("key", "Enter"),
        ("until", "document.querySelector('#where')?.innerText.includes('32,768 × 8')"),
    ],
}
ACTS = ("click", "type", "key", "choose")


def step(page, kind: str, *given: str) -> None:
    if kind == "click":
        page.locator(given[0]).first.click()
    elif kind == "type":
        page.locator(given[0]).first.fill(given[1])
    elif kind == "choose":
        page.locator(given[0]).select_option(value=given[1])
    elif kind == "key":
        page.keyboard.press(given[0])
    elif kind == "see":
        page.locator(given[0]).first.wait_for()
    else:
        page.wait_for_function(given[0])


def walk(browser, address: str, steps: Steps) -> dict[str, float]:
    """Acts and seconds of one task."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(240_000)
    began = time.perf_counter()
    page.goto(address)
    for kind, *given in steps:
        step(page, kind, *given)
    seconds = time.perf_counter() - began
    page.context.close()
    return {"acts": sum(kind in ACTS for kind, *_ in steps), "seconds": round(seconds, 1)}


def walked(browser, address: str, tasks: dict[str, Steps], repeats: int) -> dict[str, dict[str, float]]:
    """Every task, its fastest of some repeats: other work on the machine only adds."""
    first = next(iter(tasks))
    walk(browser, address, tasks[first])  # its run is stored from now on
    found = {}
    for name, steps in tasks.items():
        found[name] = min((walk(browser, address, steps) for _ in range(repeats)), key=lambda one: one["seconds"])
        print(name, found[name], flush=True)
    return found


def main() -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--before", help="the address of a server of the page before")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "page_tasks.json")
    args = parser.parse_args()
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        result: dict[str, object] = {"load": round(os.getloadavg()[0], 1)}
        result["now"] = walked(browser, args.address, NOW, args.repeats)
        if args.before:
            result["before"] = walked(browser, args.before, BEFORE, args.repeats)
        browser.close()
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
