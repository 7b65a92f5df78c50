"""The unquantized cache of one attention layer, which packed ones are compared with."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from kvq_kernels import Store
from torch import Tensor

from kvq_core.models.scoring import Scoring, causal_attention
from kvq_core.packed.ragged import RaggedLayer


@dataclass
class DenseLayer:
    """Keys and values as they are, in ``dtype``, read by torch's own attention."""

    dtype: torch.dtype
    room: int = 0
    window: int | None = None  # tokens that are read at most; all are held here, and so many counted
    tokens: int = 0
    buffers: list[Tensor] = field(default_factory=list)
    host_bytes: int = 0

    @property
    def nbytes(self) -> int:
        count = self.tokens if self.window is None else min(self.tokens, self.window)
        return sum(t[..., :count, :].numel() * t.element_size() for t in self.buffers)

    @property
    def allocated(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.buffers)

    @property
    def whole(self) -> list[Store]:
        """Steps of torch's own attention are not the same launches."""
        return []

    def mark(self) -> list[Hashable]:
        """What ``rewind`` needs to forget what enters from now on."""
        return [self.tokens]

    def rewind(self, marks: Sequence[Hashable]) -> None:
        """Be as when the mark was made, or empty."""
        (count,) = marks or (0,)
        assert isinstance(count, int)
        self.tokens = count

    def apart(self, padding: Sequence[int]) -> RaggedLayer:
        """Rows of their own for prompts with so many tokens of padding before them; nothing may have entered yet."""
        return RaggedLayer.of(lambda: DenseLayer(self.dtype, self.room, self.window), padding)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        prompt = not self.tokens  # which attends to itself in full precision, whatever is kept of it
        self.fill(None, keys, values)
        if prompt:
            return causal_attention(queries, keys, values, how)
        return self._over(queries, how)

    def read(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        """Attention of a layer that holds nothing, over what this one holds; ``keys`` and ``values`` entered last."""
        if self.tokens == keys.shape[-2]:  # the prompt
            return causal_attention(queries, keys, values, how)
        return self._over(queries, how)

    def _over(self, queries: Tensor, how: Scoring) -> Tensor:
        past_keys, past_values = (t[..., : self.tokens, :].to(queries.dtype) for t in self.buffers)
        if queries.shape[-2] > 1 or not how.plain:
            return causal_attention(queries, past_keys, past_values, how)
        out = torch.nn.functional.scaled_dot_product_attention(
            queries, past_keys, past_values, scale=how.scaling, enable_gqa=True
        )
        return out.transpose(1, 2)

    def fill(self, queries: Tensor | None, keys: Tensor, values: Tensor) -> None:
        """Enter tokens."""
        end = self.tokens + keys.shape[-2]
        if not self.buffers or end > self.buffers[0].shape[-2]:
            size = max(self.room, end + (max(256, end // 8) if self.buffers else 0))
            grown = [x.new_empty((*x.shape[:2], size, x.shape[-1]), dtype=self.dtype) for x in (keys, values)]
            for old, new in zip(self.buffers, grown, strict=False):
                new[..., : self.tokens, :] = old[..., : self.tokens, :]
            self.buffers = grown
        for buffer, x in zip(self.buffers, (keys, values), strict=True):
            buffer[..., self.tokens : end, :] = x
        self.tokens = end
