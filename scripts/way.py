"""Print the files that a knob passes until its mean KLD is plotted: those of this project of which a function runs
while one lane of the bundled model is parsed, run, and drawn as the page's first figure.

``python scripts/way.py`` prints them in the order they are reached, and last their number, which docs/architecture.md
tells. Captures are off: they look at a run, and decide no KLD.
"""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvq_core.models import load  # noqa: E402
from kvq_core.pipeline.compare import compare_on  # noqa: E402
from kvq_core.record.events import end_of  # noqa: E402
from kvq_core.spec import DEFAULT_MODEL, parse_spec  # noqa: E402
from ui.html.tradeoff import tradeoff  # noqa: E402

PLACES = tuple(f"{ROOT / name}/" for name in ("kvq_core", "ui", "kernels"))
LANE = {"method": "kivi", "knobs": {"bits": 2, "group_size": 8, "residual_length": 8}}


def way() -> list[str]:
    """The files, in the order they are reached."""
    reached: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename or ""
        if event == "call" and frame.f_code.co_name != "<module>" and file.startswith(PLACES):
            reached.setdefault(file.removeprefix(f"{ROOT}/"))

    model = load(DEFAULT_MODEL)  # once a process, whatever is run then
    for watch in (threading.setprofile, sys.setprofile):
        watch(note)
    spec = {"model": DEFAULT_MODEL, "prompt": "A knob turns. " * 12, "max_new_tokens": 4, "ignore_eos": True}
    asked = parse_spec({**spec, "capture": {"detail": "off"}, "lanes": [LANE]})
    finished = end_of(compare_on(model, asked))
    drawn = tradeoff(finished.record, finished.arrays, "")
    for watch in (threading.setprofile, sys.setprofile):
        watch(None)
    assert drawn and finished.record.lanes[0].metrics, "the lane was run, and its KLD is in the figure"
    return list(reached)


if __name__ == "__main__":
    files = way()
    print("\n".join([*files, str(len(files))]))
