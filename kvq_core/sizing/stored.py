"""Bytes of one layer as a method's own codecs store it, of random numbers: few tokens and heads are encoded, and what
more of them take follows, since bytes grow in proportion to tokens and to heads beside what is stored once."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kvq_core.methods import Codec, Fitted, Method, ModelShape, Prompt

MOST = 1024  # tokens that are encoded as they are
GROUPS = 2  # query heads of a KV head


class Bytes(NamedTuple):
    """``block``: of encoded tokens; ``once``: what a stream holds beside them; ``model``: what belongs to the model;
    ``host``: of the copy in the host's memory."""

    block: float = 0.0
    once: float = 0.0
    model: float = 0.0
    host: float = 0.0

    def toward(self, other: "Bytes", share: float) -> "Bytes":
        """On the line through both, ``share`` of the way."""
        return Bytes(*(a + (b - a) * share for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Encoded:
    """``tokens`` of keys (``tensor`` 0) or of values (1) in one layer, encoded together from position ``start`` on by
    a method that was fitted on a prompt; ``later``: they came after it."""

    method: Method
    tensor: int
    heads: int
    dims: tuple[int, int]
    prompt: int
    start: int
    tokens: int
    later: bool = False

    def bytes(self) -> Bytes:
        """Raises MethodError as ``Method.sized`` does."""
        few, many = (8, 16) if self.method.joint else (2, 4)
        if self.heads <= many:
            return self._of_heads(self.heads)
        if self.method.from_data and not self.method.joint:  # two measurements of widths tell no line
            one = self._of_heads(many)
            return Bytes(*(each * self.heads / many for each in one))
        once = {heads: self._formula(heads) for heads in (few, many, self.heads)}
        a, b = (self._of_heads(heads) for heads in (few, many))
        a, b = (each._replace(once=each.once - once[heads]) for each, heads in ((a, few), (b, many)))
        line = a.toward(b, (self.heads - few) / (many - few))
        return line._replace(once=line.once + once[self.heads])

    def _formula(self, heads: int) -> float:
        shape = ModelShape(1, heads, heads, self.dims[self.tensor], max(self.prompt, 1))
        return float(self.method.fixed_bytes(shape)[self.tensor])

    def _of_heads(self, heads: int) -> Bytes:
        prompt = min(self.prompt, MOST) if self.later else self.prompt
        if max(prompt, self.start + self.tokens) <= MOST or self.later:
            return _measured(self.method, self.tensor, heads, self.dims, prompt, self.start, self.tokens, self.later)
        step = self.method.windows()[self.tensor].step or 1
        base, rest = 1024 if self.method.from_data or self.method.joint else 256, self.prompt - self.tokens
        few, many = (_up(count, step) for count in (base, 2 * base))
        a, b = (
            _measured(self.method, self.tensor, heads, self.dims, n + min(rest, MOST), min(self.start, MOST), n, False)
            for n in (few, many)
        )
        return a.toward(b, (self.tokens - few) / (many - few))


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


@lru_cache(8)
def _random(tokens: int, heads: int, dims: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values, queries of a layer."""
    g = torch.Generator().manual_seed(dims[0])
    sizes = ((heads, dims[0]), (heads, dims[1]), (heads * GROUPS, dims[0]))
    keys, values, queries = (torch.randn(1, count, tokens, dim, generator=g) for count, dim in sizes)
    return keys, values, queries


@lru_cache(64)
def _fitted(method: Method, heads: int, dims: tuple[int, int], tokens: int) -> Fitted:
    keys, values, queries = _random(tokens, heads, dims)
    return method.sized(Prompt(keys, values, queries, rotated=keys))


@lru_cache(16384)
def _measured(
    method: Method, tensor: int, heads: int, dims: tuple[int, int], prompt: int, start: int, tokens: int, later: bool
) -> Bytes:
    fitted = _fitted(method, heads, dims, max(prompt, 1))
    codec = fitted.value if tensor else fitted.key
    assert isinstance(codec, Codec), "tokens that leave a window need a codec"
    x = _random(max(prompt, start + tokens), heads, dims)[tensor][:, :, start : start + tokens]
    block = codec.encode(x, start) if later else codec.encode_prompt(x, start)
    once = sum(each.nbytes for each in codec.shared.values())
    return Bytes(sum(block.nbytes.values()), once, codec.model_bytes, block.host_bytes)
