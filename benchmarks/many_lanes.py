"""What many lanes cost, as ratios measured in one run on this machine: whole comparisons of 16 and of 64 lanes over one
of 8, and 8 lanes that are only forced, without captures, over one plain ``generate()``. Nothing here is asserted.
"""

import argparse
import os
import resource
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.main_job import comparison, generate
from benchmarks.measured import HERE, keep
from kvq_core.models import LoadedModel, load
from kvq_core.models.second import SECOND_MODEL
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.prompt import render
from kvq_core.presets import presets
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, parse_spec

COUNTS = (8, 16, 64)
TARGETS = {"16": 1.85, "64": 6.9, "forced": 1.9, "arrays_mb": 64}
PROMPT_TOKENS = 1000
KINDS = (  # a batch; later ones differ in their first tokens, so that nothing is encoded once for two of them
    {"method": "kivi", "knobs": {"bits": 4}},
    {"method": "kivi", "knobs": {"bits": 2}},
    {"method": "squat", "knobs": {"bits": 2, "block_size": 16}},
    {"method": "per_token", "knobs": {"bits": 8}},
    {"method": "per_token", "knobs": {"bits": 4}},
    {"method": "per_token", "knobs": {"bits": 2}},
    {"method": "per_channel", "knobs": {"bits": 4}},
    {"method": "per_channel", "knobs": {"bits": 2}},
)


def spec_of(count: int, new: int, **more: Any) -> ComparisonSpec:
    lanes = [
        {**KINDS[at % len(KINDS)], "sink_tokens": 4 * (at // len(KINDS)), "label": f"lane {at}"} for at in range(count)
    ]
    prompt = presets()["long-prompt"].spec.prompt
    return parse_spec({"prompt": prompt, "max_new_tokens": new, "ignore_eos": True, "lanes": lanes, **more})


def measure(model: LoadedModel, new: int, repeats: int, counts: tuple[int, ...]) -> dict[str, Any]:
    ids = render(model, spec_of(8, new))[:PROMPT_TOKENS]
    generate(model, ids[:64], 4)  # warm-up: thread pools, allocator
    plain: list[float] = []
    forced: list[float] = []
    for _ in range(max(2, repeats)):  # interleaved, so that a slow spell of the machine hits both
        plain.append(generate(model, ids, new)[0])
        only_forced = spec_of(8, new, capture={"detail": "off"}, free_text=False)
        forced.append(comparison(model, only_forced, ids)[0]["total"])
    seconds: dict[str, float] = {}
    arrays: dict[str, float] = {}
    for _ in range(repeats):
        for count in counts:
            parts, run = comparison(model, spec_of(count, new), ids)
            seconds[str(count)] = min(parts["total"], seconds.get(str(count), parts["total"]))
            arrays[str(count)] = sum(values.nbytes for values in assemble(run)[1].values()) / 2**20
    eight = seconds["8"]
    return {
        "model": model.title,
        "prompt_tokens": len(ids),
        "new_tokens": new,
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "generate_s": min(plain),
        "forced_s": min(forced),
        "seconds": seconds,
        "ratio": {
            **{name: took / eight for name, took in seconds.items() if name != "8"},
            "forced": min(forced) / min(plain),
        },
        "arrays_mb": arrays,
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "targets": TARGETS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(DEFAULT_MODEL, SECOND_MODEL), default=DEFAULT_MODEL, help="id of the model")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "many_lanes.json")
    parser.add_argument("--lanes", type=int, nargs="+", default=COUNTS, help="counts to measure, with 8")
    args = parser.parse_args()
    result = measure(load(args.model), args.new_tokens, args.repeats, tuple(args.lanes))
    keep(args.out, args.model, result)
    for name, ratio in result["ratio"].items():
        over = "one generate()" if name == "forced" else "8 lanes"
        print(f"{name:>7} over {over}: {ratio:.2f} (target {TARGETS.get(name, '-')})")
    print(
        f"arrays {result['arrays_mb']} MB, peak memory {result['peak_memory_gb']:.2f} GB, seconds {result['seconds']}"
    )


if __name__ == "__main__":
    main()
