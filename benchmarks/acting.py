"""What acting on a finished run costs: a lane more, maps of a layer, and a brushed span, as ratios in one process.

A run of the preset first-look's lanes on a prompt of 500 tokens, 64 new; then a lane added to it, first with the prompt
held in memory, then with the reference's logits held too; then maps of the middle layer from what the run's rows left,
and of the middle and the last layer where that is gone and one lane, or all, are led along the answer again. CPU
seconds are those of all threads, which other work on the machine hardly moves; seconds passed are beside them. A span
is brushed in headless Chromium (``CHROMIUM``, default /usr/bin/chromium) on a run of 8 made-up lanes and 500 tokens,
with cards and with maps in sight: until all numbers and verdicts are written and figures are being drawn. Nothing here
is asserted.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.page import serve
from kvq_core.engine.prompt_memory import READINGS
from kvq_core.models import load, with_model
from kvq_core.pipeline.added import adding_on, spec_of
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.layer_look import held_maps, looking_on
from kvq_core.presets import presets
from kvq_core.spec import ComparisonSpec, Lane

PROMPT, NEW, BRUSHES = 500, 64, 20
ADDED = [
    Lane(label=f"added, {bits} bits", method="per_token", knobs={"bits": bits}) for bits in (2, 3)
]  # one parts from the answer at its third token, one never
AIMS = {
    "added": {"ratio": 1 / 3, "seconds": 8.0},
    "added, logits held": {"ratio": 1 / 4, "seconds": 8.0},
    "map from memory": {"seconds": 0.3},
    "map by rerun, middle layer": {"seconds": 5.0},
    "map by rerun, last layer": {"seconds": 8.0},
    "brush": {"seconds": 0.05},
}
RUN = "ac7ac7ac7ac7ac7a"
BRUSH = """async ([first, last]) => {
  const fields = ["first", "last"].map((which) => document.getElementById(`span-${which}`));
  fields[0].value = first;
  fields[1].value = last;
  const began = performance.now();
  fields[1].dispatchEvent(new Event("change", { bubbles: true }));
  const passed = performance.now() - began;
  await new Promise((done) => setTimeout(done, 300));
  return passed;
}"""


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """CPU seconds and seconds passed, and what came of it; of events the last."""
    cpu, began = time.process_time(), time.perf_counter()
    found = work()
    spent = {"cpu_s": time.process_time() - cpu, "passed_s": time.perf_counter() - began}
    return {name: round(value, 4) for name, value in spent.items()}, found


def last_of(events: Any) -> Any:
    *_, last = events
    return last


def spec_of_run(model_tokenizer: Any, base: ComparisonSpec) -> ComparisonSpec:
    """The preset's lanes on a prompt of PROMPT tokens: its text, as often as needed."""
    ids = model_tokenizer((base.prompt + "\n") * 8).input_ids[:PROMPT]
    text = model_tokenizer.decode(ids)
    return base.model_copy(update={"prompt": text, "chat": False, "max_new_tokens": NEW, "ignore_eos": True})


def measure() -> dict[str, Any]:
    base = with_model(presets()["first-look"].spec)
    model = load(base.model, base.revision)
    spec, found = spec_of_run(model.tokenizer, base), {}
    found["run"], finished = timed(lambda: last_of(compare_on(model, spec)))
    parent, top = finished.record, model.shape.layers - 1
    for name, lane in zip(("added", "added, logits held"), ADDED, strict=True):
        found[name], _ = timed(lambda lane=lane: last_of(adding_on(model, parent, spec_of(parent, [lane]))))
    lanes = list(range(len(parent.lanes)))
    found["map from memory"], maps = timed(lambda: held_maps(parent, lanes, top // 2))
    assert maps is not None, "memory was too short to hold the rows"
    for name, layer in (("middle", top // 2), ("last", top)):
        for told, which in (("", lanes[:1]), (", all lanes", lanes)):
            for reading in READINGS._held.values():
                reading.replays.clear()
            found[f"map by rerun, {name} layer{told}"], _ = timed(
                lambda which=which, layer=layer: last_of(looking_on(model, parent, which, layer))
            )
    READINGS.clear()
    found["map by rerun, middle layer, prompt read again"], _ = timed(
        lambda: last_of(looking_on(model, parent, lanes[:1], top // 2))
    )
    return {
        "model": parent.environment.model_title,
        "prompt_tokens": len(parent.reference.prompt_token_ids),
        "new_tokens": NEW,
        "lanes": len(spec.lanes),
        "threads": torch.get_num_threads(),
        "spent": found,
    }


def brushed() -> dict[str, Any]:
    """Milliseconds of a brush, median, fastest and slowest, with the cards in sight and with the maps."""
    from playwright.sync_api import sync_playwright

    from kvq_core.record.store import open_store
    from tests.support.ui_record_factory import make_run

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        record, arrays = make_run(8, scored=500, tokens=1000)
        open_store(folder).save(record.model_copy(update={"id": RUN}), arrays)
        process, address = serve(folder)
        try:
            chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
            page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
            page.set_default_timeout(180_000)
            found: dict[str, Any] = {"lanes": 8, "tokens": 500}
            for view, wait in (("verdicts", "#verdicts .verdict"), ("damage", "#plot-grid-key .main-svg")):
                page.goto(f"{address}/?run={RUN}&view={view}")
                page.wait_for_selector("#span-first", state="attached")
                page.locator(wait).first.wait_for(state="attached")
                page.wait_for_timeout(4000)  # until the other views have come
                times = [page.evaluate(BRUSH, [10 + 3 * i, 480 - 7 * i]) for i in range(BRUSHES)]
                found[view] = {
                    "median_ms": round(median(times), 1),
                    "fastest_ms": round(min(times), 1),
                    "slowest_ms": round(max(times), 1),
                }
        finally:
            process.terminate()
            process.wait(20)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("engine", "brush"), default=("engine", "brush"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "acting.json")
    args = parser.parse_args()
    held = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    for part, work in (("engine", measure), ("brush", brushed)):
        if part in args.parts:
            held[part] = work() | {"load": round(os.getloadavg()[0], 1)}
    held["aims"] = AIMS
    args.out.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(held, indent=1))


if __name__ == "__main__":
    main()
