"""``make bench``: what reading the prompt through its own cache costs a lane, beside reading it in full precision.

The lanes of a text decode in one run, each fed the text's own next tokens. Nothing here is timed, so a busy machine
changes nothing. The JSON has a part a model; measuring one leaves the others' as they are.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import HERE, keep
from benchmarks.methods import lanes_on, numbers
from kvq_core.claims import setting
from kvq_core.claims.texts import token_ids
from kvq_core.claims.verdict import spreads
from kvq_core.models import LoadedModel, load
from kvq_core.spec import DEFAULT_MODEL

METHODS = {
    "KIVI, 2 bits": {"method": "kivi", "knobs": {"bits": 2}},
    "InnerQ, 2 bits, keys not normalized": {"method": "innerq", "knobs": {"bits": 2, "normalize_keys": "off"}},
}
TEXTS = ("topics_1", "topics_2", "topics_3", "long_prompt")  # of the claims' texts, those that are long enough
PROMPT, CHUNK, LATER = 1024, 256, 64  # tokens


def lanes() -> list[dict[str, Any]]:
    """Every method twice: the prompt in full precision, and in chunks through the lane's own cache."""
    readings: dict[str, Any] = {"full": "full", "chunked": {"chunk": CHUNK}}
    return [
        {**lane, "label": f"{name}, {how}", "prefill": reading}
        for name, lane in METHODS.items()
        for how, reading in readings.items()
    ]


def compared(full: list[dict[str, float]], chunked: list[dict[str, float]]) -> dict[str, Any]:
    """A method's mean KLD over the texts either way; ``more``: by how much of itself it grows, over all and by text."""
    before, after = (spreads(found)["kld"] for found in (full, chunked))
    by_text = [b["kld"] / a["kld"] - 1 for a, b in zip(full, chunked, strict=True)]
    ways = {"full": before.model_dump(), "chunked": after.model_dump()}
    return {**ways, "more": after.mean / before.mean - 1, "more_by_text": by_text}


def measure(model: LoadedModel, texts: list[str]) -> dict[str, Any]:
    chosen = setting()
    found: list[list[dict[str, float]]] = []  # by text, by lane
    for text in texts:
        ids, source = token_ids(model, chosen.text[text], PROMPT + LATER)
        found.append([numbers(lane) for lane in lanes_on(model, ids, PROMPT, lanes())[1:]])
        print(f"{text}: {source}: {[round(lane['kld'], 4) for lane in found[-1]]}", file=sys.stderr)
    by_lane = [list(of_texts) for of_texts in zip(*found, strict=True)]
    return {
        "model": model.title,
        "prompt_tokens": PROMPT,
        "chunk": CHUNK,
        "later_tokens": LATER,
        "texts": texts,
        "methods": {name: compared(*by_lane[2 * at : 2 * at + 2]) for at, name in enumerate(METHODS)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="id of the model; the bundled one without it")
    parser.add_argument("--out", type=Path, default=HERE / "prefill.json")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=TEXTS)
    args = parser.parse_args()
    result = measure(load(args.model), list(args.texts))
    keep(args.out, args.model, result)
    for name, each in result["methods"].items():
        print(f"{name:<40} KLD {each['full']['mean']:.3f} -> {each['chunked']['mean']:.3f} ({each['more']:+.0%})")


if __name__ == "__main__":
    main()
