"""Write presets/learn/keys.json: the 16 real keys that the tour's toy quantizes, with where they come from.

The bundled model reads a text of 16 tokens once. Of one KV head of one layer the file keeps the keys, and the last
token's query of one of its query heads, both after RoPE.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from kvq_core.engine.prefill import SharedPrefill  # noqa: E402
from kvq_core.models import load  # noqa: E402
from kvq_core.spec import DEFAULT_MODEL  # noqa: E402

FILE = ROOT / "presets" / "learn" / "keys.json"
TEXT = "The mill stood on a causeway, and its wheel turned with the tide."
LAYER, KV_HEAD, QUERY_HEAD = 21, 1, 4  # a head some of whose key channels are much larger than the others
DIGITS = 4


def keys() -> dict[str, object]:
    """What the file holds: keys (16, head_dim), query (head_dim)."""
    model = load(DEFAULT_MODEL)
    ids = model.encode(TEXT)
    prefill = SharedPrefill(model, ids)
    for _ in prefill.run():
        pass
    group = next(group for group in prefill.groups if LAYER in group.layers)
    at = list(group.layers).index(LAYER)
    return {
        "model": model.title,
        "weights": model.weights_hash,
        "text": TEXT,
        "layer": LAYER,
        "kv_head": KV_HEAD,
        "query_head": QUERY_HEAD,
        "tokens": [model.tokenizer.decode([id]) for id in ids],
        "keys": np.round(group.keys[at, KV_HEAD].float().numpy(), DIGITS).tolist(),
        "query": np.round(group.queries[at, QUERY_HEAD, -1].float().numpy(), DIGITS).tolist(),
    }


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    FILE.write_text(json.dumps(keys(), ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
