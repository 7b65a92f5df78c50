"""``make bench``: what every method stores and changes with its default knobs, on the texts of the claims.

The lanes of a text decode in one run, each fed the text's own next tokens, from a cache of the text's first tokens: all
of them answer the same questions. Nothing here is timed, so a busy machine changes nothing. The JSON has a part a
model; measuring one leaves the others' as they are.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import HERE, keep
from kvq_core.claims import setting
from kvq_core.claims.texts import token_ids
from kvq_core.claims.verdict import spreads
from kvq_core.engine.script import Script
from kvq_core.methods import make, methods
from kvq_core.models import LoadedModel, load
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.batch import NOISE_FLOOR
from kvq_core.pipeline.state import Run
from kvq_core.record.fields import RESULTS_VERSION, LaneRecord
from kvq_core.spec import DEFAULT_MODEL, MAX_LANES, parse_spec


def numbers(lane: LaneRecord) -> dict[str, float]:
    """The figures of a lane that did not fail."""
    m, memory = lane.metrics, lane.memory
    assert m is not None and memory is not None and m.kld_mean is not None
    return {
        "key_bits": memory.key_bits,
        "value_bits": memory.value_bits,
        "kld": m.kld_mean,
        "kld_p99": m.kld_p99,
        "flip_rate": m.flip_rate,
        "ppl_ratio": m.ppl_ratio,
    }  # type: ignore[dict-item]


def measured(model: LoadedModel, ids: list[int], names: list[str]) -> list[LaneRecord]:
    """The noise floor and a lane a method, from one run."""
    lanes = [{"label": name, "method": name} for name in names]
    return lanes_on(model, ids, setting().prompt_tokens, lanes)


def lanes_on(model: LoadedModel, ids: list[int], prompt: int, lanes: list[dict[str, Any]]) -> list[LaneRecord]:
    """The noise floor and these lanes, from one run: the first tokens are the prompt, the others the answer."""
    spec = parse_spec(
        {
            "prompt": "-",
            "chat": False,
            "continuation": model.tokenizer.decode(ids[prompt:]),
            "lanes": lanes,
            "capture": {"detail": "off"},
        }
    )
    run = Run("0" * 16, model, spec, Script.of_prompt(ids[:prompt]))
    for _ in run.stages():
        pass
    record, _ = assemble(run)
    return [record.noise_floor, *record.lanes]


def row(lanes: list[LaneRecord]) -> dict[str, Any]:
    """A method's figures over the texts, or the reason why there are none, such as codebooks nobody has trained."""
    summary = {"summary": make(lanes[0].method).summary()}
    if error := next((lane.error for lane in lanes if lane.error), None):
        return summary | {"error": error}
    return summary | {name: spread.model_dump() for name, spread in spreads([numbers(lane) for lane in lanes]).items()}


def measure(model: LoadedModel, names: list[str]) -> dict[str, Any]:
    chosen = setting()
    found: dict[str, list[LaneRecord]] = {}
    for text in chosen.texts:
        ids, source = token_ids(model, chosen.text[text], chosen.tokens)
        print(f"{text}: {source}", file=sys.stderr)
        runs = [measured(model, ids, names[at : at + MAX_LANES]) for at in range(0, len(names), MAX_LANES)]
        for lane in [*runs[0], *(lane for run in runs[1:] for lane in run[1:])]:
            found.setdefault(lane.method, []).append(lane)
    return {
        "model": model.title,
        "results_version": RESULTS_VERSION,
        "prompt_tokens": chosen.prompt_tokens,
        "later_tokens": chosen.later_tokens,
        "texts": list(chosen.texts),
        "methods": {name: row(lanes) for name, lanes in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="id of the model; the bundled one without it")
    parser.add_argument("--methods", nargs="+", choices=methods(), help="these alone; what is known of others stays")
    parser.add_argument("--out", type=Path, default=HERE / "methods.json")
    args = parser.parse_args()
    model = load(args.model)
    known = json.loads(args.out.read_text()).get(model.id, {}).get("methods", {}) if args.methods else {}
    result = measure(model, args.methods or [name for name in methods() if name != NOISE_FLOOR.method])
    result["methods"] = dict(sorted({**known, **result["methods"]}.items()))
    keep(args.out, model.id, result)
    for name, each in result["methods"].items():
        if "error" in each:
            print(f"{name:<12} {each['error']}")
            continue
        bits, kld = f"{each['key_bits']['mean']:5.2f} {each['value_bits']['mean']:5.2f}", each["kld"]
        print(f"{name:<12} bits {bits}   KLD {kld['mean']:.4f} ({kld['min']:.4f} to {kld['max']:.4f})")


if __name__ == "__main__":
    main()
