"""``make bench``: seconds to fit and encode a prompt of 2,000 tokens in all layers of the bundled model, a lane
each of the formats that engines ship and of the papers' baselines, with default knobs. Nothing is asserted.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.by_format import is_format
from benchmarks.five_methods import encode_seconds
from benchmarks.measured import HERE
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.methods import methods
from kvq_core.models import load
from kvq_core.pipeline.prompt import render
from kvq_core.presets import presets
from kvq_core.spec import DEFAULT_MODEL, Lane

TOKENS = 2000
BLOCKS = 0.6  # seconds that a format of blocks or of single tokens should stay under
TARGETS = {
    **dict.fromkeys(
        ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "q6_0", "exl3", "fp8", "nvfp4", "mxfp4"), BLOCKS
    ),
    **dict.fromkeys(("int8_per_token_head", "int4_per_token_head", "fp8_per_token_head", "ultraquant_4bit"), BLOCKS),
    "turboquant": 2.0,
    "kvarn": 2.0,
    "oscar": 4.0,
    "kvquant": 4.0,
    "gear": 8.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "formats.json")
    args = parser.parse_args()
    model, spec = load(DEFAULT_MODEL), presets()["long-prompt"].spec
    text = render(model, spec)
    prefill = SharedPrefill(model, (text + text)[:TOKENS])
    list(prefill.run())
    lanes = [Lane(label=name, method=name) for name, cls in methods().items() if is_format(cls)]
    encode = encode_seconds(model, prefill, lanes, args.repeats)
    result = {
        "prompt_tokens": len(prefill.ids),
        "threads": torch.get_num_threads(),
        "encode_s": encode,
        "targets": TARGETS,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for label, seconds in encode.items():
        target = TARGETS.get(label)
        print(f"{label:<20}{seconds:6.2f} s" + (f"   (target {target:g})" if target else ""))


if __name__ == "__main__":
    main()
