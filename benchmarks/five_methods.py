"""``make bench``, second part: encoding the prompt under each paper's method, and the cost of re-evaluating widths.

One prompt of about 2,000 tokens of the bundled model, all its layers. Encoding is what a lane does once after the
shared prefill; a step is timed with the reference and one lane in the batch. Nothing is asserted: machines are noisy.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.decode import Decode
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.models import LoadedModel, load
from kvq_core.pipeline.prompt import render
from kvq_core.presets import presets
from kvq_core.spec import DEFAULT_MODEL, Lane, parse_spec

ENCODE = {  # lane -> seconds it should stay under
    "kivi": 1.5,
    "squat": 1.5,
    "squat pre": 1.5,
    "innerq": 1.5,
    "svdq": 4.0,
    "qaq": None,
    "commvq 1 bit": 10.0,
    "commvq 2 bits": 10.0,
}
QAQ_STEP = 1.5  # most that a step with a QAQ lane should take, in steps with a KIVI lane
KNOBS = {"squat pre": {"rope": "pre"}, "commvq 1 bit": {"bits": 1}, "commvq 2 bits": {"bits": 2}}


def encode_seconds(model: LoadedModel, prefill: SharedPrefill, lanes: Iterable[Lane], repeats: int) -> dict[str, float]:
    """The best of some repeats, a lane at a time: fit and encode the whole prompt in every layer."""
    rope, found = model.rope(len(prefill.ids)), {}
    for lane in lanes:
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            LaneCache.of_prompt(lane, prefill.groups, rope, model.ref)
            times.append(time.perf_counter() - began)
        found[lane.label] = min(times)
    return found


def step_ms(model: LoadedModel, prefill: SharedPrefill, method: str, steps: int) -> float:
    """Median milliseconds of a decode step with the reference and one forced lane."""
    spec = parse_spec({"prompt": "-", "max_new_tokens": steps + 1, "ignore_eos": True, "lanes": [{"method": method}]})
    decode = Decode(model, prefill, spec, list(spec.lanes))
    decode.follow = torch.randint(3, 40_000, (steps + 1,), generator=torch.Generator().manual_seed(0)).tolist()
    list(decode.encode())
    list(decode.fill())
    for _ in decode.steps(lambda *_: None, None, lambda _: None):
        pass
    return 1000 * statistics.median(decode.step_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "five_methods.json")
    args = parser.parse_args()
    model, spec = load(DEFAULT_MODEL), presets()["long-prompt"].spec
    prefill = SharedPrefill(model, render(model, spec))
    list(prefill.run())
    lanes = [Lane(label=name, method=name.split()[0], knobs=KNOBS.get(name, {})) for name in ENCODE]
    encode = encode_seconds(model, prefill, lanes, args.repeats)
    # interleaved, so that a slow spell of the machine hits both
    rounds = [{m: step_ms(model, prefill, m, args.steps) for m in ("kivi", "qaq")} for _ in range(args.repeats)]
    steps = {m: min(r[m] for r in rounds) for m in ("kivi", "qaq")}
    result = {
        "prompt_tokens": len(prefill.ids),
        "threads": torch.get_num_threads(),
        "encode_s": encode,
        "step_ms": steps,
        "qaq_step_ratio": steps["qaq"] / steps["kivi"],
        "targets": {"encode_s": ENCODE, "qaq_step_ratio": QAQ_STEP},
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"encoding {len(prefill.ids)} prompt tokens, all layers")
    for label, seconds in encode.items():
        target = ENCODE[label]
        print(f"  {label:<16}{seconds:6.2f} s" + (f"   (target {target:g})" if target else ""))
    print(f"a step: reference + kivi {steps['kivi']:.0f} ms, reference + qaq {steps['qaq']:.0f} ms, ", end="")
    print(f"ratio {result['qaq_step_ratio']:.2f} (target {QAQ_STEP})")


if __name__ == "__main__":
    main()
