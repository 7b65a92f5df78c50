"""``make bench``: what every method stores and changes with its default knobs, on the texts of the claims.

The lanes of a text decode in one run, each fed the text's own next tokens, from a cache of the text's first tokens: all
of them answer the same questions. Nothing here is timed, so a busy machine changes nothing.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kvq_core.claims import setting
from kvq_core.claims.texts import token_ids
from kvq_core.claims.verdict import spreads
from kvq_core.methods import make, methods
from kvq_core.models import LoadedModel, load
from kvq_core.pipeline.assemble import assemble
from kvq_core.pipeline.state import Run
from kvq_core.record.fields import LaneRecord
from kvq_core.spec import DEFAULT_MODEL, MAX_LANES, parse_spec


def numbers(lane: LaneRecord) -> dict[str, float]:
    """Raises SystemExit where the lane failed: a table with holes would pass for a whole one."""
    if lane.metrics is None or lane.memory is None or lane.metrics.kld_mean is None:
        raise SystemExit(f"{lane.method}: {lane.error or 'not measured'}")
    m, memory = lane.metrics, lane.memory
    return {
        "key_bits": memory.key_bits,
        "value_bits": memory.value_bits,
        "kld": m.kld_mean,
        "kld_p99": m.kld_p99,
        "flip_rate": m.flip_rate,
        "ppl_ratio": m.ppl_ratio,
    }  # type: ignore[dict-item]


def measured(model: LoadedModel, ids: list[int], names: list[str]) -> list[LaneRecord]:
    """The noise floor and a lane a method, from one run: the first tokens are the prompt, the others the answer."""
    prompt = setting().prompt_tokens
    spec = parse_spec(
        {
            "prompt": "-",
            "chat": False,
            "continuation": model.tokenizer.decode(ids[prompt:]),
            "lanes": [{"label": name, "method": name} for name in names],
            "capture": {"detail": "off"},
        }
    )
    run = Run("0" * 16, model, spec, ids[:prompt])
    for _ in run.stages():
        pass
    record, _ = assemble(run)
    return [record.noise_floor, *record.lanes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "methods.json")
    args = parser.parse_args()
    model, chosen = load(DEFAULT_MODEL), setting()
    names = [name for name, cls in methods().items() if cls.quantizes]
    found: dict[str, list[dict[str, float]]] = {}
    for text in chosen.texts:
        ids, source = token_ids(model, chosen.text[text], chosen.tokens)
        print(f"{text}: {source}", file=sys.stderr)
        runs = [measured(model, ids, names[at : at + MAX_LANES]) for at in range(0, len(names), MAX_LANES)]
        for lane in [*runs[0], *(lane for run in runs[1:] for lane in run[1:])]:
            found.setdefault(lane.method, []).append(numbers(lane))
    result: dict[str, Any] = {
        "model": model.title,
        "prompt_tokens": chosen.prompt_tokens,
        "later_tokens": chosen.later_tokens,
        "texts": list(chosen.texts),
        "methods": {
            name: {"summary": make(name).summary()} | {key: s.model_dump() for key, s in spreads(each).items()}
            for name, each in found.items()
        },
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, each in result["methods"].items():
        bits, kld = f"{each['key_bits']['mean']:5.2f} {each['value_bits']['mean']:5.2f}", each["kld"]
        print(f"{name:<12} bits {bits}   KLD {kld['mean']:.4f} ({kld['min']:.4f} to {kld['max']:.4f})")


if __name__ == "__main__":
    main()
