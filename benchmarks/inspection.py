"""How often the look at a model is right: its layers at risk against what quantizing each layer alone costs.

On every model given, as it is and under stress that leaves full-precision attention as it was (a constant in the keys,
outlier channels), each layer's keys are stored per token at 3 bits by themselves. A layer whose mean KLD reaches
HARMFUL over the forced tokens is harmful; sensitivity is the share of these that were named, a false alarm a named one
that is not. The thresholds were set on the two models without stress, so the twins are what tells.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.architectures import tiny_of
from kvq_core.inspection.look import Look
from kvq_core.inspection.remedies import MeasuredRemedy
from kvq_core.models import LoadedModel, load, second
from kvq_core.spec import DEFAULT_MODEL, Lane, Stress

HARMFUL = 0.02  # nats of mean KLD that a layer's keys alone cost
BITS = 3
LANES = 10  # measured at a time
TINY = "llama qwen2 qwen3 granite gemma2 gemma3_text gpt_oss phi stablelm smollm3 qwen3_next lfm2".split()
TWINS = {
    "as it is": None,
    "key bias 20, layers 1 and 5": Stress(key_bias=20, layers=(1, 5)),
    "key outliers x32, layers 2 and 6": Stress(key_outlier_scale=32, layers=(2, 6)),
}


def harm(look: Look, layers: Sequence[int]) -> dict[int, float]:
    """Mean KLD that each layer's keys per token at BITS bits cost alone."""
    lanes = [
        Lane(label=str(n), method="per_token", knobs={"bits": BITS, "residual_length": 0}, tensors="keys", layers=(n,))
        for n in layers
    ]
    found: dict[int, float] = {}
    for start in range(0, len(lanes), LANES):
        for name, each in look.measured(lanes[start : start + LANES]).items():
            assert isinstance(each, MeasuredRemedy), each
            found[int(name)] = each.kld
    return found


def measure(model: LoadedModel) -> list[dict[str, Any]]:
    cases = []
    for twin, stress in TWINS.items():
        look = Look(model, stress=stress)
        named, costs = set(look.inspection().at_risk_layers), harm(look, range(model.shape.layers))
        harmful = {layer for layer, kld in costs.items() if kld >= HARMFUL}
        cases.append(
            {
                "model": model.title,
                "twin": twin,
                "layers": len(costs),
                "named": sorted(named),
                "harmful": sorted(harmful),
                "false_alarms": sorted(named - harmful),
                "missed": sorted(harmful - named),
                "kld": [costs[layer] for layer in sorted(costs)],
            }
        )
        print(f"{model.title}, {twin}: named {sorted(named)}, harmful {sorted(harmful)}", flush=True)
    return cases


def measure_tiny() -> dict[str, Any]:
    """Tiny models with random weights, of which no layer is at risk by its making."""
    tokenizer = load(DEFAULT_MODEL).tokenizer
    found: dict[str, Any] = {"models": list(TINY), "layers": 0, "named": 0, "harmful": 0}
    for kind in TINY:
        look = Look(tiny_of(kind, tokenizer))
        layers = look.model.shape.captured
        found["layers"] += len(layers)
        found["named"] += len(look.inspection().at_risk_layers)
        found["harmful"] += sum(kld >= HARMFUL for kld in harm(look, layers).values())
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", default=[], help="a model id or file; may be given several times")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--tiny", action="store_true", help="the tiny models alone; the others stay as they were")
    arguments = parser.parse_args()
    if arguments.tiny:
        held = json.loads(arguments.out.read_text(encoding="utf-8"))
        arguments.out.write_text(json.dumps({**held, "tiny": measure_tiny()}, indent=1) + "\n")
        return
    cases = [case for id in arguments.model or [DEFAULT_MODEL, second.SECOND_MODEL] for case in measure(load(id))]
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "harmful_kld": HARMFUL,
        "bits": BITS,
        "threads": torch.get_num_threads(),
        "layers": sum(case["layers"] for case in cases),
        "harmful": sum(len(case["harmful"]) for case in cases),
        "named_of_harmful": sum(len(case["harmful"]) - len(case["missed"]) for case in cases),
        "false_alarms": sum(len(case["false_alarms"]) for case in cases),
        "cases": cases,
        "tiny": measure_tiny(),
    }
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
