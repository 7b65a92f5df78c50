"""Write presets/lab/tensors.safetensors: keys, values and queries of a few heads of both models, for the lab.

Each model reads the first tokens of one prompt once. Of some layers and KV heads the file keeps, before RoPE, keys and
values of all tokens and the newest tokens' queries of the KV head's first query head, each channel as its mean, a step
and 8-bit codes. The model's own cosines and sines lie beside them, so that a page turns keys as the model does.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from kvq_core.engine.prefill import SharedPrefill  # noqa: E402
from kvq_core.models import load  # noqa: E402
from kvq_core.presets import FOLDER, preset  # noqa: E402
from kvq_core.spec import DEFAULT_MODEL  # noqa: E402

FILE = FOLDER / "lab" / "tensors.safetensors"
TOKENS, QUERIES = 256, 32
PROMPT = "qwen-keys"  # the preset it is of
MODELS = {"gguf:1d9614638d18024d": (0, 1, 4, 12, 22), DEFAULT_MODEL: (0, 8, 15, 21)}  # with the layers of each


def reduced(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """x (layers, heads, n, head_dim) as 8-bit ``codes`` of that shape, and ``mean`` and ``step`` (layers, heads,
    head_dim) float32."""
    mean = x.mean(-2)
    step = (x - mean[..., None, :]).abs().amax(-2) / 127
    step = torch.where(step > 0, step, torch.ones_like(step))
    codes = ((x - mean[..., None, :]) / step[..., None, :]).round().clamp(-127, 127).to(torch.int8)
    return {"codes": codes, "mean": mean, "step": step}


def restored(part: dict[str, torch.Tensor]) -> torch.Tensor:
    """What a reader makes of ``reduced``: float32, a product and then a sum."""
    return part["codes"].float() * part["step"][..., None, :] + part["mean"][..., None, :]


def of_model(name: str, layers: tuple[int, ...], prompt: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What the file says of a model, and its tensors."""
    model = load(name)
    ids = model.encode(prompt)[:TOKENS]
    prefill = SharedPrefill(model, ids)
    for _ in prefill.run():
        pass
    (group,) = (own.of(layers) for own in prefill.groups)
    rope, first = model.rope(TOKENS), group.queries.shape[1] // group.keys.shape[1]
    asked, start = group.queries[:, ::first, -QUERIES:], TOKENS - QUERIES
    plain = {"keys": rope.unrotate(group.keys, 0), "values": group.values, "queries": rope.unrotate(asked, start)}
    parts = {part: reduced(x.float()) for part, x in plain.items()}
    back = {part: restored(own) for part, own in parts.items()}
    keys, queries = rope.rotate(back["keys"], 0), rope.rotate(back["queries"], start)
    half = group.keys.shape[-1] // 2
    assert len(rope.cos) >= TOKENS and torch.equal(rope.cos[:, :half], rope.cos[:, half:])
    told = {
        "id": name,
        "title": model.title,
        "weights": model.weights_hash,
        "layers": layers,
        "of_layers": sum(len(own.layers) for own in prefill.groups),
        "queries_a_head": first,
        "interleaved": model.ref.interleaved,
        "tokens": [model.tokenizer.decode([id]) for id in ids],
        "key_error": float((keys - group.keys).norm() / group.keys.norm()),
        "attention_moved": float((weights(queries, keys) - weights(asked, group.keys)).abs().sum(-1).mean() / 2),
    }
    tensors = {f"{part}/{field}": tensor for part, own in parts.items() for field, tensor in own.items()}
    return told, tensors | {"cos": rope.cos[:TOKENS, :half], "sin": rope.sin[:TOKENS, :half]}


def weights(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Attention of the newest tokens over all: (layers, heads, queries, tokens)."""
    scores = queries.double() @ keys.double().mT * keys.shape[-1] ** -0.5
    later = torch.arange(TOKENS) > torch.arange(TOKENS - QUERIES, TOKENS)[:, None]
    return torch.softmax(scores.masked_fill(later, -torch.inf), -1)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    prompt = preset(PROMPT).spec.prompt
    models, tensors = list[dict[str, Any]](), dict[str, torch.Tensor]()
    for index, (name, layers) in enumerate(MODELS.items()):
        told, own = of_model(name, layers, prompt)
        models.append(told)
        tensors |= {f"{index}/{part}": tensor.contiguous() for part, tensor in own.items()}
        print(f"{told['title']}: keys off by {told['key_error']:.2%}, attention by {told['attention_moved']:.2%}")
    FILE.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, FILE, {"lab": json.dumps({"preset": PROMPT, "models": models}, ensure_ascii=False)})
    print(f"{FILE.relative_to(ROOT)}: {FILE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
