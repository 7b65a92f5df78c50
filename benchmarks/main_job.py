"""``make bench``: what the main job costs, as ratios measured in one run on this machine.

Reference + 7 lanes, forced and free rows, captures on, against ONE plain ``generate()`` of the same prompt and length
in the same process. Machines are noisy, so nothing here is asserted; the JSON, a part a model, is what the README
quotes.
"""

import argparse
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.measured import HERE, keep
from kvq_core.engine.script import Script
from kvq_core.models import LoadedModel, load
from kvq_core.models.second import SECOND_MODEL
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.prompt import render
from kvq_core.pipeline.state import Run
from kvq_core.presets import presets
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, parse_spec

TARGETS = {DEFAULT_MODEL: {"ratio": 3.0, "peak_memory_gb": 4.0}, SECOND_MODEL: {"ratio": 3.0, "peak_memory_gb": 9.0}}
PROMPT_TOKENS = {SECOND_MODEL: 500}  # of the preset's prompt; the default model reads all of it
LANES = [
    {"label": "KIVI 4b", "method": "kivi", "knobs": {"bits": 4}},
    {"label": "KIVI 2b", "method": "kivi", "knobs": {"bits": 2}},
    {"label": "KIVI 2b, 32 sinks", "method": "kivi", "knobs": {"bits": 2, "sink_tokens": 32}},
    {"label": "SQuat 2b", "method": "squat", "knobs": {"bits": 2, "block_size": 16}},
    {"label": "SQuat-pre 2b", "method": "squat", "knobs": {"bits": 2, "rope": "pre"}},
    {"label": "Per token 4b", "method": "per_token", "knobs": {"bits": 4}},
    {"label": "Per channel 4b", "method": "per_channel", "knobs": {"bits": 4}},
]


def spec_of(new: int) -> ComparisonSpec:
    base = presets()["long-prompt"].spec
    return parse_spec({"prompt": base.prompt, "max_new_tokens": new, "ignore_eos": True, "lanes": LANES})


def generate(model: LoadedModel, ids: list[int], new: int) -> tuple[float, list[int]]:
    """One plain generate(): seconds and tokens."""
    held, config = model.model.config._attn_implementation, model.model.generation_config
    eos, config.eos_token_id = config.eos_token_id, None  # as ignore_eos: keep going, suppress nothing
    model.model.set_attn_implementation("sdpa")
    try:
        prompt = torch.tensor([ids])
        began = time.perf_counter()
        out = model.model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=new)
        return time.perf_counter() - began, out[0, len(ids) :].tolist()
    finally:
        config.eos_token_id = eos
        model.model.set_attn_implementation(held)


def comparison(model: LoadedModel, spec: ComparisonSpec, ids: list[int]) -> tuple[dict[str, float], Run]:
    """One whole comparison: seconds by stage, assembling the record included."""
    began = time.perf_counter()
    run = Run("0" * 16, model, spec, Script.of_prompt(ids))
    for _ in run.stages():
        pass
    at = time.perf_counter()
    assemble(run)
    parts = {**run.seconds, "assemble": time.perf_counter() - at}
    parts["total"] = time.perf_counter() - began
    return parts, run


def measure(model: LoadedModel, new: int, repeats: int) -> dict[str, Any]:
    spec = spec_of(new)
    ids = render(model, spec)[: PROMPT_TOKENS.get(model.id)]
    generate(model, ids[:64], 4)  # warm-up: thread pools, allocator
    plain, runs, run = [], [], None
    for _ in range(repeats):  # interleaved, so that a slow spell of the machine hits both
        seconds, tokens = generate(model, ids, new)
        plain.append(seconds)
        run = None  # not two comparisons' caches at once
        parts, run = comparison(model, spec, ids)
        runs.append(parts)
    best = min(runs, key=lambda parts: parts["total"])
    steps = run.first.decode.step_seconds
    return {
        "model": model.title,
        "prompt_tokens": len(ids),
        "new_tokens": new,
        "lanes": len(LANES),
        "threads": torch.get_num_threads(),
        "generate_s": min(plain),
        "comparison_s": best["total"],
        "ratio": best["total"] / min(plain),
        "parts_s": {name: best[name] for name in ("prefill", "encode", "decode", "assemble")},
        "ms_per_step": 1000 * sum(steps) / len(steps),
        "rows_mean": sum(run.first.decode.step_rows) / len(steps),
        "lane_encode_s": {s.lane.label: s.encode_prompt_s for s in run.first.decode.states},
        "lane_upkeep_s": {s.lane.label: s.encode_decode_s for s in run.first.decode.states},
        "reference_equals_generate": tokens == run.first.decode.token_ids,
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "targets": TARGETS[model.id],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=TARGETS, default=DEFAULT_MODEL, help="id of the model")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "main_job.json")
    args = parser.parse_args()
    result = measure(load(args.model), args.new_tokens, args.repeats)
    keep(args.out, args.model, result)
    targets = result["targets"]
    print(f"prompt {result['prompt_tokens']} tokens, {result['new_tokens']} new, {result['lanes']} lanes + noise floor")
    print(f"one generate()        {result['generate_s']:7.2f} s")
    print(f"whole comparison      {result['comparison_s']:7.2f} s   ratio {result['ratio']:.2f}", end=" ")
    print(f"(target {targets['ratio']})")
    for name, seconds in result["parts_s"].items():
        print(f"  {name:<20}{seconds:7.2f} s   {seconds / result['generate_s']:.2f}")
    print(f"a step                {result['ms_per_step']:7.1f} ms, {result['rows_mean']:.1f} rows on average")
    print(f"peak memory           {result['peak_memory_gb']:7.2f} GB (target {targets['peak_memory_gb']:g})")
    print(f"reference row equals generate(): {result['reference_equals_generate']}")


if __name__ == "__main__":
    main()
