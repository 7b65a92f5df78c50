"""Bytes of one layer as a method's own codecs store it, of random numbers: few tokens and heads are encoded, and what
more of them take follows, since bytes grow in proportion to tokens and to heads beside what is stored once."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kvq_core.methods import Codec, Fitted, Method, ModelShape, Prompt, Window

MOST = 1024  # tokens that are encoded as they are
GROUPS = 2  # query heads of a KV head
MEASURED, HEADS = 1024, 2  # tokens and heads whose bits an element are told
LATER = 32  # blocks of later tokens over which bytes that follow from the numbers are taken on the mean
LOOKS = 8  # newest queries that a codec which observes is shown
LEARNED_FROM = 64  # tokens of the prompt that a method with learned data is fitted on


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
    a method that was fitted on a prompt; ``later``: they came after it. What reaches beyond the prompt otherwise was
    stored anew with it."""

    method: Method
    tensor: int
    heads: int
    dims: tuple[int, int]
    prompt: int
    start: int
    tokens: int
    later: bool = False

    def bytes(self) -> Bytes:
        """``model`` is left to ``learned_bytes``. Raises MethodError as ``Method.sized`` does."""
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
        own = self.method.for_tensor("values" if self.tensor else "keys"), self.tensor, heads, self.dims
        if self.later:
            start = min(self.start, MOST)
            starts = range(start, start + self.tokens * (LATER if self.method.from_data else 1), self.tokens)
            found = [_measured(*own, min(self.prompt, MOST), at, self.tokens, True) for at in starts]
            return Bytes(*(sum(each) / len(found) for each in zip(*found, strict=True)))
        if max(self.prompt, self.start + self.tokens) <= MOST:
            return _measured(*own, self.prompt, self.start, self.tokens, False)
        step = self.method.windows()[self.tensor].step or 1
        alone = self.method.token_local[self.tensor]  # a token's codes are its own
        base = 1024 if self.method.from_data or self.method.joint else 64 if alone else 256
        many = 2 * (few := _up(base, step))
        a, b = (self._growing(n, own) for n in (few, many))
        line = a.toward(b, (self.tokens - few) / (many - few))
        return line._replace(block=line.block + self._exact(heads, self.tokens))

    def _growing(self, tokens: int, own: tuple[Method, int, int, tuple[int, int]]) -> Bytes:
        """Measured of so many tokens, without what does not grow with them."""
        found = _measured(*own, self._prompt_of(tokens), min(self.start, MOST), tokens, False)
        return found._replace(block=found.block - self._exact(own[2], tokens))

    def _exact(self, heads: int, tokens: int) -> int:
        shape = ModelShape(1, heads, heads, self.dims[self.tensor], tokens)
        return self.method.exact_bytes(shape, self._prompt_of(tokens))[self.tensor]

    def _prompt_of(self, tokens: int) -> int:
        """The prompt where so many tokens stand for all: with as many beside them, or the share that came together. One
        for all lengths where all that is stored is stored anew."""
        beside = self.prompt - self.tokens
        if self.method.windows()[self.tensor].rewritten and beside >= self.start:
            beside = self.start
        return round(tokens * self.prompt / self.tokens) if beside < 0 else tokens + min(beside, MOST)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


@lru_cache(8)
def _random(tokens: int, heads: int, dims: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values, queries of a layer."""
    g = torch.Generator().manual_seed(dims[0])
    sizes = ((heads, dims[0]), (heads, dims[1]), (heads * GROUPS, dims[0]))
    keys, values, queries = (torch.randn(1, count, tokens, dim, generator=g) for count, dim in sizes)
    return keys, values, queries


def _fit(method: Method, heads: int, dims: tuple[int, int], tokens: int) -> Fitted:
    keys, values, queries = _random(tokens, heads, dims)
    return method.sized(Prompt(keys, values, queries, rotated=keys))


_fitted = lru_cache(64)(_fit)


@lru_cache(16384)
def _measured(
    method: Method, tensor: int, heads: int, dims: tuple[int, int], prompt: int, start: int, tokens: int, later: bool
) -> Bytes:
    codec = _codec(_fitted(method, heads, dims, max(prompt, 1)), tensor)
    end = start + tokens
    x = _random(max(prompt, end), heads, dims)[tensor][:, :, start:end]
    apart = codec.observes and start < prompt < end and not later
    first = prompt - start if apart else tokens
    blocks = [codec.encode(x, start) if later else codec.encode_prompt(x[:, :, :first], start)]
    if apart:
        codec.extend(blocks, x[:, :, first:], prompt)
    if codec.observes and (apart or later):
        keys, _, queries = _random(end, heads, dims)
        asked = queries[:, :, -LOOKS:]
        scores = asked @ keys.repeat_interleave(GROUPS, 1).mT / dims[0] ** 0.5
        codec.observe(blocks, asked, scores.softmax(-1), start)
    once = sum(each.nbytes for each in codec.shared.values())
    return Bytes(sum(sum(b.nbytes.values()) for b in blocks), once, host=float(sum(b.host_bytes for b in blocks)))


def token_bytes(method: Method, tensor: int, heads: int, dims: tuple[int, int], window: Window) -> float:
    """Of a token of keys (``tensor`` 0) or of values (1) in one layer outside the window. Raises MethodError."""
    count = window.packed(2 * MOST)
    return Encoded(method, tensor, heads, dims, 2 * MOST, window.sink, count).bytes().block / count


def encoded_bits(method: Method, tensor: int, dim: int, window: Window | None = None) -> float:
    """Of an element of keys (``tensor`` 0) or of values (1) outside the window, the method's own where none is given,
    of MEASURED tokens in HEADS heads; 16 where nothing is quantized. Raises MethodError."""
    window = window or method.windows()[tensor]
    count = window.packed(MEASURED)
    if not method.quantizes or not count:
        return 16.0
    own = Encoded(method, tensor, HEADS, (dim, dim), MEASURED, window.sink, count).bytes()
    return 8 * own.block / (HEADS * dim * count)


@lru_cache(1024)
def learned_bytes(method: Method, tensor: int, heads: int, dims: tuple[int, int]) -> int:
    """Of what a layer reads that belongs to the model, such as codebooks: all heads at once, as it may grow with their
    square."""
    if method.learned is None:
        return 0
    return _codec(_fit(method, heads, dims, LEARNED_FROM), tensor).model_bytes


def _codec(fitted: Fitted, tensor: int) -> Codec:
    codec = fitted.value if tensor else fitted.key
    assert isinstance(codec, Codec), "tokens that leave a window need a codec"
    return codec
