"""Tiny models that read text, to be looked at before a run."""

from dataclasses import replace

import torch

from kvq_core.models import LoadedModel
from tests.support.tiny_models import VOCABULARY, tiny


class Letters:
    """A token a character; what it decodes, it encodes to the same tokens."""

    chat_template = None
    eos_token_id = 2

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(c) % (VOCABULARY - 3) for c in text]}

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(0x1000 * (VOCABULARY - 3) + id - 3) for id in ids)


def small(name: str, constant: float = 0.0, layer: int = 1) -> LoadedModel:
    """A tiny model that reads text; ``constant``: what its keys of one layer carry, by the bias of the projection."""
    model = replace(tiny(name), tokenizer=Letters(), model_hash=f"{name}-{constant:g}-{layer}")
    if not constant:
        return model
    held = model.model
    bias = held.model.layers[layer].self_attn.k_proj.bias
    changed = type(held)(held.config)
    changed.load_state_dict(held.state_dict())
    with torch.no_grad():
        changed.model.layers[layer].self_attn.k_proj.bias.copy_(bias * constant)
    changed.set_attn_implementation(held.config._attn_implementation)
    return replace(model, model=changed.eval().requires_grad_(False))
