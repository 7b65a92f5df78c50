"""A plain transformers loop with a quantized cache of the tests' own."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from kvq_core.models import LoadedModel

GROUP = 8


def rounded(x: Tensor, bits: int, dim: int) -> Tensor:
    """Asymmetric groups of GROUP elements along a dimension, fp16 scale and minimum."""
    out = x.clone()
    for start in range(0, x.shape[dim], GROUP):
        part = x.narrow(dim, start, GROUP).float()  # as lanes do: a tie must fall on the same side
        low, high = part.amin(dim, keepdim=True), part.amax(dim, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).half().float()
        scale, low = torch.where(scale > 0, scale, 1.0), low.half().float()
        codes = torch.round((part - low) / scale).clamp(0, 2**bits - 1)
        out.narrow(dim, start, GROUP).copy_(codes * scale + low)
    return out


class PlainCache(DynamicCache):
    """What a server's cache holds of one sequence, in float64: (1, kv_heads, tokens, head_dim) a layer.

    ``axis``: along which keys share a scale, "channels" of a token or "tokens" of a channel (KIVI, whose values wait
    for ``residual`` newer ones and whose keys leave ``residual`` at a time).
    """

    def __init__(self, bits: int, axis: str, residual: int, stored: bool):
        super().__init__()
        self.bits, self.axis, self.residual, self.stored = bits, axis, residual, stored
        self.held: dict[int, list[Tensor]] = {}
        self.done: dict[int, list[int]] = {}
        self.exact = 0  # tokens of the first chunk, which are encoded from full precision

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.held[layer_idx][0].shape[-2] if layer_idx in self.held else 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        count = query_length if isinstance(query_length, int) else len(query_length)
        return self.get_seq_length(layer_idx) + count, 0

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        new = [key_states, value_states]
        past = self.held.get(layer_idx)
        if self.stored:
            new = [x.half().double() for x in new]
        self.held[layer_idx] = [torch.cat([a, b], -2) for a, b in zip(past, new, strict=True)] if past else new
        self.done.setdefault(layer_idx, [0, 0])
        if self.stored:
            self.settle(layer_idx)
        return tuple(self.held[layer_idx])

    def settle(self, layer: int) -> None:
        """Round what has left the window."""
        keys, values = self.held[layer]
        total = keys.shape[-2]
        leaving = [total - self.residual, total - self.residual]
        if self.axis == "tokens":
            leaving[0] = total // self.residual * self.residual
        for at, (x, end) in enumerate(zip((keys, values), leaving, strict=True)):
            start, end = self.done[layer][at], max(self.done[layer][at], end)
            dim = -2 if at == 0 and self.axis == "tokens" else -1
            x = x.clone()
            x[..., start:end, :] = rounded(x[..., start:end, :], self.bits, dim)
            self.held[layer][at], self.done[layer][at] = x, end

    def end_chunk(self, exact: bool) -> None:
        """Tokens enter as computed where ``exact``, as the first chunk's do, else rounded to fp16; then some leave."""
        for layer, held in self.held.items():
            for at, x in enumerate(held):
                start = self.done[layer][at]
                if not exact:
                    x = torch.cat([x[..., :start, :], x[..., start:, :].half().double()], -2)
                held[at] = x
            if not self.stored:
                self.settle(layer)
                for at in (0, 1):
                    start, x = self.done[layer][at], held[at]
                    held[at] = torch.cat([x[..., :start, :], x[..., start:, :].half().double()], -2)


def plain_logits(model: LoadedModel, ids: list[int], follow: list[int], chunk: int, cache: PlainCache) -> Tensor:
    """Logits of every position of prompt and given answer (tokens, vocabulary), in float64 through transformers."""
    whole = deepcopy(model.model).double()
    whole.set_attn_implementation("eager")
    pieces = [ids[start : start + chunk] for start in range(0, len(ids), chunk)] + [[token] for token in follow]
    found, start = [], 0
    with torch.no_grad():
        for at, piece in enumerate(pieces):
            positions = torch.arange(start, start + len(piece))[None]
            out = whole(input_ids=torch.tensor([piece]), position_ids=positions, past_key_values=cache, use_cache=True)
            cache.end_chunk(exact=at == 0)
            found.append(out.logits[0])
            start += len(piece)
    return torch.cat(found).float()


def check_alike(found: Tensor, expected: Tensor, exact: Tensor) -> None:
    """Equal but for single codes on the other side of a tie, which float32 and float64 put there: what is left is small
    beside what quantization does to the ``exact`` logits."""
    off, effect = (found - expected).abs(), (expected - exact).abs().mean()
    assert effect > 3e-4, "nothing was quantized"
    assert off.mean() < 0.1 * effect
    assert off.median() < 0.02 * effect
