"""What captures cost: seconds to decode with them off, at default detail and deep, as ratios in one process.

Five lanes and the noise floor on the prompt of the preset first-look. The three take turns, so that a slow spell of the
machine hits all of them, and a ratio is the median over turns. Measuring the caches after the last step is part of it.
The budget is for default detail; deep may cost more. Machines are noisy, so nothing here is asserted.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from kvq_core.engine.script import Script
from kvq_core.models import LoadedModel, load, with_model
from kvq_core.pipeline.prompt import render
from kvq_core.pipeline.state import Run
from kvq_core.presets import presets
from kvq_core.spec import Capture, ComparisonSpec

LEVELS = ("off", "normal", "deep")
BUDGET = 1.15  # of the decode time without captures, at default detail


def decode_seconds(model: LoadedModel, spec: ComparisonSpec, ids: list[int]) -> float:
    """Seconds of all decode steps, of which captures see every one, and of measuring the caches when they end."""
    run = Run("0" * 16, model, spec, Script.of_prompt(ids))
    for _ in run.stages():
        pass
    return run.seconds["decode"]


def measure(new: int, repeats: int) -> dict[str, Any]:
    base = with_model(presets()["first-look"].spec).model_copy(update={"max_new_tokens": new, "ignore_eos": True})
    model = load(base.model, base.revision)
    ids = render(model, base)
    found: dict[str, list[float]] = {level: [] for level in LEVELS}
    for _ in range(repeats):
        for level in LEVELS:
            spec = base.model_copy(update={"capture": Capture(detail=level)})
            found[level].append(decode_seconds(model, spec, ids))
    best = {level: min(times) for level, times in found.items()}
    return {
        "prompt_tokens": len(ids),
        "new_tokens": new,
        "lanes": len(base.lanes),
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "decode_s": best,
        "all_decode_s": found,
        "ratio": {
            level: median(own / off for own, off in zip(found[level], found["off"], strict=True))
            for level in LEVELS[1:]
        },
        "budget": BUDGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "captures.json")
    args = parser.parse_args()
    result = measure(args.new_tokens, args.repeats)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"prompt {result['prompt_tokens']} tokens, {result['new_tokens']} new, {result['lanes']} lanes + noise floor")
    for level, seconds in result["decode_s"].items():
        ratio = "" if level == "off" else f"   ratio {result['ratio'][level]:.2f}"
        aim = f" (budget {BUDGET:.2f})" if level == "normal" else ""
        print(f"captures {level:<8}{seconds:8.2f} s{ratio}{aim}")


if __name__ == "__main__":
    main()
