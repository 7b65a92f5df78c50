"""One attention layer whose cache exists in packed form only."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from kvq_kernels import KernelError, Path, Store, decode_attention
from torch import Tensor

from kvq_core.errors import MethodError
from kvq_core.methods import Method, Prompt, Window
from kvq_core.models.lockstep import causal_attention
from kvq_core.packed.formats import form_of


class Layer(Protocol):
    """A layer's cache and the attention over it."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Store the new tokens and attend: queries (batch, query_heads, n, head_dim), keys and values
        (batch, kv_heads, n, head_dim), all after RoPE -> (batch, n, query_heads, head_dim)."""

    @property
    def tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass
class PackedLayer:
    """The first tokens it sees are the prompt: they attend to themselves in full precision, and the method is fitted on
    them. Later tokens come one by one through the fused attention; several at once read the dequantized cache, which
    exists while they do. ``room``: packed tokens to allocate ahead."""

    method: Method
    windows: tuple[Window, Window]
    path: Path = "auto"
    room: int = 0
    stores: list[Store] = field(default_factory=list)  # keys, values

    @property
    def tokens(self) -> int:
        return self.stores[0].tokens if self.stores else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held, from the tensors."""
        return sum(store.nbytes for store in self.stores)

    @property
    def allocated(self) -> int:
        return sum(store.allocated for store in self.stores)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        fresh = keys.shape[-2]
        if not self.stores:
            out = causal_attention(queries, keys, values, scaling)
            self.fill(queries, keys, values)
            return out
        if fresh == 1:
            for store, x in zip(self.stores, (keys, values), strict=True):
                store.append(x)
            out = decode_attention(queries, self.stores[0], self.stores[1], scaling, self.path).transpose(1, 2)
            for store in self.stores:
                store.settle()
            return out
        past_keys, past_values = (
            torch.cat([store.dense(), x.half().float()], -2)
            for store, x in zip(self.stores, (keys, values), strict=True)
        )
        out = causal_attention(queries.float(), past_keys, past_values, scaling).to(queries.dtype)
        for store, x in zip(self.stores, (keys, values), strict=True):
            store.extend(x)
        return out

    def fill(self, queries: Tensor | None, keys: Tensor, values: Tensor) -> None:
        """Fit the method on the prompt and enter it; every row of the batch is fitted by itself.

        Raises MethodError where the method has no packed form.
        """
        asked = queries.float() if queries is not None and self.method.needs_queries else None
        exact = keys.float(), values.float()
        fitted = self.method.fit(Prompt(*exact, asked))  # a row of the batch stands where a layer does
        for codec, window, x in zip((fitted.key, fitted.value), self.windows, exact, strict=True):
            if codec is None:
                raise MethodError(f"{self.method.title} leaves keys or values unquantized and has no packed execution.")
            form = form_of(codec, window, self.path)
            try:
                store = Store.empty(x, form.layout, self.room, form.norms, form.encode, self.path)
            except KernelError as error:
                raise MethodError(f"packed execution: {error}") from None
            store.fill(x)
            self.stores.append(store)


@dataclass
class DenseLayer:
    """The cache to compare with: keys and values as they are, in ``dtype``, read by torch's own attention."""

    dtype: torch.dtype
    room: int = 0
    tokens: int = 0
    buffers: list[Tensor] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(t[..., : self.tokens, :].numel() * t.element_size() for t in self.buffers)

    @property
    def allocated(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.buffers)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        self.fill(None, keys, values)
        past_keys, past_values = (t[..., : self.tokens, :].to(queries.dtype) for t in self.buffers)
        if keys.shape[-2] > 1:
            return causal_attention(queries, past_keys, past_values, scaling)
        out = torch.nn.functional.scaled_dot_product_attention(
            queries, past_keys, past_values, scale=scaling, enable_gqa=True
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
