"""Bits an element of every deployed format, by the channels of a head: what real packed tensors take, as
``benchmarks/format_bits.py`` measured them. A table, so that nothing needs to be loaded to read it."""

import json
from functools import cache
from typing import Any

from pydantic import Field

from kvq_core.codecs.window import Window
from kvq_core.frozen import Frozen
from kvq_core.shape import LayerKind
from kvq_core.sizing.layers import SHIPPED

FILE = SHIPPED / "formats.json"
HEAD_DIMS = (32, 64, 80, 96, 112, 128, 192, 256, 512, 576)


class FormatBits(Frozen):
    """``name`` in words, ``method`` and ``knobs`` as a lane has them, and what engines call it. ``windows`` of keys and
    of values: sinks, recent, step and whether a prompt leaves as a whole; ``boundary``: first and last layers that stay
    fp16. ``bits``: of a key and of a value element, by head_dim; a head_dim that it cannot have is not there."""

    name: str
    method: str
    knobs: dict[str, Any]
    engines: dict[str, str]
    windows: tuple[tuple[int, int, int, bool], tuple[int, int, int, bool]]
    boundary: int = 0
    bits: dict[int, tuple[float, float]] = Field(min_length=1)

    @property
    def plain(self) -> bool:
        """Whether nothing is quantized."""
        return all(bits == (16.0, 16.0) for bits in self.bits.values())

    def why_not(self, layers: tuple[LayerKind, ...]) -> str | None:
        """Why heads of this model cannot be stored so, or their bytes are not known."""
        dims = {dim for layer in layers for dim in (layer.key_dim, layer.value_dim) if dim}
        lost = sorted(dims - set(self.bits))
        if not lost or self.plain:
            return None
        known = ", ".join(map(str, sorted(self.bits)))
        return (
            f"heads of {', '.join(map(str, lost))} channels cannot be stored so, or were not measured; known: {known}"
        )

    def layer_bytes(self, layer: LayerKind, tokens: int, dtype_bytes: int = 2) -> float:
        """Of keys and values of so many tokens in one layer; a key that only chooses tokens stays as it is."""
        index = layer.index_dim * tokens * dtype_bytes
        if self.plain or not layer.elements:
            return layer.elements * tokens * 2.0
        total = float(index)
        for tensor, dim in enumerate((layer.key_dim, layer.value_dim)):
            packed = self._packed(tensor, tokens)
            bits = self.bits[dim][tensor] * packed + 16 * (tokens - packed)
            total += layer.kv_heads * dim * bits / 8
        return total

    def token_bytes(self, layer: LayerKind) -> float:
        """Of one token, windows left out, as a page of an engine holds it."""
        if self.plain:
            return layer.elements * 2.0
        keys, values = self.bits[layer.key_dim][0], self.bits[layer.value_dim][1]
        head = (keys * layer.key_dim + values * layer.value_dim) / 8
        return layer.kv_heads * head + 2.0 * layer.index_dim

    def _packed(self, tensor: int, tokens: int) -> int:
        sink, recent, step, whole = self.windows[tensor]
        return Window(sink, recent, step, whole_prompt=whole).packed(tokens)


@cache
def formats() -> tuple[FormatBits, ...]:
    """Unquantized ones first."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(FormatBits.model_validate(each) for each in found["formats"])
