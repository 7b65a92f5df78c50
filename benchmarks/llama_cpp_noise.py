"""How far a mean KLD of ``llama_cpp.py`` scatters by rounding alone: the same keys again, with values of formats that
cost next to nothing by themselves here, and, with --engine, with other chunks of the prompt in llama.cpp, which change
no sum but its order. Writes ``llama_cpp_noise.json``; keys' types that are in it already are left out. Texts are those
of ``llama_cpp.py``; --engine needs xllamacpp.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.llama_cpp import PROMPT, SCORED, TEXTS, TOP, mean_kld, texts, written_in_float32
from benchmarks.measured import HERE, figures, keep
from kvq_core.models import LoadedModel, load
from kvq_core.models.bundled import bundled_gguf
from kvq_core.servers.llama_cpp import LlamaCpp, Types, version
from kvq_core.servers.simulated import READ_IN, PromptPairs, kld_of
from kvq_core.servers.tops import Top
from kvq_core.spec import DEFAULT_MODEL

VALUES: dict[str, dict[str, Any] | None] = {  # values of lanes here; None: fp16
    "f16": None,
    "q8_0": {"method": "q8_0"},
    "q8_0 unrotated": {"method": "q8_0", "knobs": {"rotate": False}},
    "int8_per_token_head": {"method": "int8_per_token_head"},
    "per_token 8 bits": {"method": "per_token", "knobs": {"bits": 8, "group_size": 32, "residual_length": 0}},
}
CHUNKS = (512, 256, 128, 64, 48)  # n_ubatch of llama.cpp


def lanes(keys: str) -> list[dict[str, Any]]:
    """Those of the same keys, then those of the values by themselves."""
    of = {name: [] if rule is None else [{**rule, "tensors": "values"}] for name, rule in VALUES.items()}
    own = [{"method": keys, "tensors": "keys"}]
    both = [{"label": f"{keys}/{name}", "rules": [*own, *rules], "prefill": READ_IN} for name, rules in of.items()]
    return both + [{"label": name, "rules": rules, "prefill": READ_IN} for name, rules in of.items() if rules]


def here(model: LoadedModel, keys: str, asked: PromptPairs) -> dict[str, Any]:
    """Mean KLD of the same keys beside each of the values, and of these values alone."""
    told = lanes(keys)
    return summed(told, [[kld for kld, _ in of] for of in kld_of(model, told, asked)])


def summed(told: list[dict[str, Any]], klds: list[list[np.ndarray]]) -> dict[str, Any]:
    """``klds`` of every lane and text. ``apart``: the largest quotient that lanes of the same keys have on one text."""
    means = [float(np.concatenate(of).mean()) for of in klds]
    by_text = [[float(kld.mean()) for kld in text] for text in zip(*klds[: len(VALUES)], strict=True)]
    found = {lane["label"]: mean for lane, mean in zip(told, means, strict=True)}
    return {"ours": means[: len(VALUES)], "values_alone": max(means[len(VALUES) :]), "lanes": found} | {
        "apart": max(max(of) / min(of) for of in by_text)
    }


def theirs(file: Path, types: Types, asked: PromptPairs, ubatch: int) -> list[list[Top]]:
    with LlamaCpp(file, types, PROMPT + SCORED + 48, ubatch, threads=1) as engine:
        return [engine.logprobs(ids, forced, TOP)[1:] for ids, forced in asked]


def measure(keys: str, count: int, engine: bool) -> dict[str, Any]:
    model = load(DEFAULT_MODEL)
    asked = texts(model, count, SCORED + 1)
    found = {**here(model, keys, asked), "texts": count, "scored": SCORED}
    print(found, flush=True)
    if not engine:
        return found
    with tempfile.TemporaryDirectory() as folder:
        file = written_in_float32(bundled_gguf(), Path(folder) / "float32.gguf")
        reference = theirs(file, Types("f32", "f32"), asked, CHUNKS[0])
        found["llama_cpp"] = []
        for ubatch in CHUNKS:
            found["llama_cpp"].append(mean_kld(reference, theirs(file, Types(keys, "f16"), asked, ubatch)))
            print(ubatch, found["llama_cpp"][-1], flush=True)
    return {**found, "chunks": CHUNKS, "package": f"xllamacpp {version()}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", default="q4_1", help="types, with commas (q4_1)")
    parser.add_argument("--texts", type=int, default=len(TEXTS), help="how many (6)")
    parser.add_argument("--engine", action="store_true", help="llama.cpp as well")
    args = parser.parse_args()
    for keys in args.keys.split(","):
        if keys not in (figures("llama_cpp_noise") or {}):
            keep(HERE / "llama_cpp_noise.json", keys, measure(keys, args.texts, args.engine))


if __name__ == "__main__":
    main()
