"""How right a run's estimate is: beforehand, and what is said to be left while it goes on.

Comparisons of several sizes run one after another with an empty KVQ_HOME/timings, each estimated from those before it.
Times are CPU seconds of one thread, so that other work on the machine does not count. Printed and kept are the errors,
(told - taken) / taken, of the last half of the runs: ``before``, and ``at`` a quarter, a half and three quarters of the
time, where told is what had passed and what was left.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

KIVI, FIRST = {"method": "kivi"}, {"method": "per_token", "knobs": {"bits": 4}}
LANES = {
    "two": [KIVI, FIRST],
    "four": [KIVI, {"method": "squat"}, {"method": "q4_0"}, FIRST],
    "six": [KIVI, {"method": "squat"}, {"method": "innerq"}, {"method": "qaq"}, {"method": "q8_0"}, FIRST],
}
SIZES = ((6, 24, "two"), (12, 16, "four"), (4, 40, "six"), (20, 24, "two"), (8, 32, "four"), (14, 20, "six"))
TEXT = "The mill stood on a causeway and worked with the tide, twice a day, in summer and in winter alike. "
PARTS = (0.25, 0.5, 0.75)


def measure(repeats: int, new: int, lanes: str) -> dict[str, float | None]:
    """Errors of one run, and the seconds it took."""
    from kvq_core.pipeline.compare import compare
    from kvq_core.pipeline.estimate import estimate
    from kvq_core.pipeline.timings import RemainingTime
    from kvq_core.record.events import Finished
    from kvq_core.spec import parse_spec

    spec = parse_spec({"prompt": TEXT * repeats, "max_new_tokens": new, "lanes": LANES[lanes], "ignore_eos": True})
    found = estimate(spec)
    began, told = time.process_time(), []
    remaining = RemainingTime(found.cost.stages, time.process_time)
    for event in compare(spec):
        left = remaining.after(event)
        told.append((time.process_time() - began, left))
        if isinstance(event, Finished):
            break
    taken = told[-1][0]
    errors = {"before": None if found.cost.seconds is None else found.cost.seconds / taken - 1, "taken_s": taken}
    for part in PARTS:
        passed, left = next((at, left) for at, left in told if at >= part * taken)
        errors[f"at {part:.0%}"] = None if left is None else (passed + left) / taken - 1
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "estimates.json")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    time.perf_counter = time.process_time
    from kvq_core.settings import settings

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(settings().home / "models")
        os.environ["KVQ_HOME"] = folder
        rows = []
        for _ in range(args.rounds):
            for size in SIZES:
                rows.append(measure(*size))
                print({name: None if v is None else round(v, 3) for name, v in rows[-1].items()}, file=sys.stderr)
    later = rows[len(rows) // 2 :]
    most = {name: max(abs(row[name] or 0.0) for row in later) for name in later[0] if name != "taken_s"}
    result = {"runs": rows, "largest error of the last half": most}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(most))
    return 0


if __name__ == "__main__":
    sys.exit(main())
