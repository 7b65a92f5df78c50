"""KIVI as plainly as it can be written: full tensors quantized and read back, token by token."""

import torch
from torch import Tensor

from kvq_core.engine.prefill import SharedPrefill
from kvq_core.models import LoadedModel
from kvq_core.models.scoring import Scoring


class NaiveKivi:
    """KIVI's cache of one row as its paper tells it, in float64 and without any of the engine's code.

    Holds original keys and values (rounded to fp16 once generated) and what of them is quantized so far.
    """

    def __init__(self, layers: int, bits: int, group: int, residual: int):
        self.bits, self.group, self.residual = bits, group, residual
        self.keys: list[Tensor] = [torch.empty(0)] * layers
        self.values: list[Tensor] = [torch.empty(0)] * layers
        self.done = [[0, 0] for _ in range(layers)]  # quantized keys, quantized values

    def quantize(self, x: Tensor, dim: int) -> Tensor:
        out = x.clone()
        for start in range(0, x.shape[dim], self.group):
            part = x.narrow(dim, start, self.group).float()  # as lanes do: a tie must fall on the same side
            low, high = part.amin(dim, keepdim=True), part.amax(dim, keepdim=True)
            scale = ((high - low) / (2**self.bits - 1)).half().float()
            scale, low = torch.where(scale > 0, scale, 1.0), low.half().float()
            codes = torch.round((part - low) / scale).clamp(0, 2**self.bits - 1)
            out.narrow(dim, start, self.group).copy_(codes * scale + low)
        return out

    def settle(self, layer: int) -> None:
        total = self.keys[layer].shape[1]
        keys, values = self.done[layer]
        while total - keys >= self.residual:
            now = slice(keys, keys + self.residual)
            self.keys[layer][:, now] = self.quantize(self.keys[layer][:, now], 1)
            keys += self.residual
        if total - values > self.residual:
            now = slice(values, total - self.residual)
            self.values[layer][:, now] = self.quantize(self.values[layer][:, now], 2)
            values = total - self.residual
        self.done[layer] = [keys, values]

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        new = [t[0].half().double() for t in (keys, values)]
        self.keys[layer] = torch.cat([self.keys[layer], new[0]], 1)
        self.values[layer] = torch.cat([self.values[layer], new[1]], 1)
        out = []
        for head in range(queries.shape[1]):
            kv = head // (queries.shape[1] // keys.shape[1])
            scores = self.keys[layer][kv] @ queries[0, head, 0].double() * how.scaling
            out.append(torch.softmax(scores, 0) @ self.values[layer][kv])
        self.settle(layer)
        return torch.stack(out)[None, None].float()


def naive_kivi(model: LoadedModel, ids: list[int], bits: int) -> tuple[NaiveKivi, int]:
    """The naive cache of a prompt, and the token that follows it."""
    prefill = SharedPrefill(model, ids)
    list(prefill.run())
    naive, count = NaiveKivi(3, bits, group=8, residual=16), len(ids)
    for layer in range(3):
        naive.keys[layer] = prefill.groups[0].keys[layer].double()
        naive.values[layer] = prefill.groups[0].values[layer].double()
        naive.settle(layer)
        for part, done in ((naive.keys, count - count % 16), (naive.values, max(0, count - 16))):
            part[layer][:, done:] = part[layer][:, done:].half().double()
    return naive, int(prefill.logits.argmax())
