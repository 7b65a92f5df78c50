"""The packed store of one tensor (keys or values) of one row."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvq_core.codecs.blocks import Block, Patch
from kvq_core.codecs.center import Center
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.fold import Fold
from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.window import Window

Change = tuple[int, Tensor]  # a position, and what attention reads of the tokens from there on


@dataclass
class Stream:
    """[sinks fp16 | packed blocks | window fp16] over the layers a lane treats alike, on one device.

    Holds exactly what a real cache would hold, in the method's own key space; it is the truth for bytes, and what
    attention reads is written from ``decode`` alone. Shapes (layers, kv_heads, tokens, head_dim). The codec sees tokens
    less a ``center``'s constant, divided by a ``fold``, turned by a ``rotation``; those in full precision are held as
    they are. ``first``: the position of its first token; ``block``: tokens of a block where they are given up alone.
    """

    window: Window
    codec: Codec | None
    sinks: Tensor
    _recent: list[Tensor]  # put together when somebody reads them: a copy of the window a step costs more than the step
    blocks: list[Block] = field(default_factory=list)
    center: Center | None = None
    rotation: Hadamard | None = None
    first: int = 0
    block: int | None = None
    fold: Fold | None = None

    @classmethod
    def of_prompt(
        cls,
        x: Tensor,
        window: Window,
        codec: Codec | None,
        center: Center | None = None,
        rotation: Hadamard | None = None,
        first: int = 0,
        block: int | None = None,
        fold: Fold | None = None,
    ) -> "Stream":
        """Encode the prompt's x (float32): sinks, all tokens due in one block or by ``block``, and the window."""
        tokens = x.shape[-2]
        sink = tokens if window.step is None else min(tokens, window.sink)
        packed = window.packed(tokens)
        end = sink + packed
        sinks, recent = (part.to(torch.float16) for part in (x[..., :sink, :], x[..., end:, :]))
        stream = cls(window, codec, sinks, [recent], [], center, rotation, first, block, fold)
        if packed:
            assert codec is not None, "a window that lets tokens leave needs a codec"
            start = first + sink
            for due in x[..., sink:end, :].split(block or packed, -2):
                stream.blocks.append(codec.encode_prompt(stream._turned(due, start), start))
                start += due.shape[-2]
        return stream

    @property
    def recent(self) -> Tensor:
        """The window's tokens in fp16."""
        if len(self._recent) > 1:
            self._recent = [torch.cat(self._recent, -2)]
        return self._recent[0]

    @property
    def recent_tokens(self) -> int:
        return sum(x.shape[-2] for x in self._recent)

    @property
    def device(self) -> torch.device:
        return self.sinks.device

    @property
    def tokens(self) -> int:
        return self.sinks.shape[-2] + self.packed_tokens + self.recent_tokens

    @property
    def packed_tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @property
    def enters(self) -> torch.dtype:
        """What new tokens are rounded to: fp16 where a window holds them before they are encoded, else what the codec
        takes."""
        held = self.window.step != 1 or self.window.recent > 0 or self.window.prompt_only
        return torch.float16 if self.codec is None or held else self.codec.enters

    def append(self, x: Tensor) -> None:
        """Add new tokens x, rounded, to the window (to the sinks while those are incomplete)."""
        x = x.to(self.enters)
        room = self.window.sink - self.sinks.shape[-2] if self.window.step is not None else 0
        if room > 0:
            self.sinks = torch.cat([self.sinks, x[..., :room, :].to(torch.float16)], -2)
            x = x[..., room:, :]
        self._recent.append(x)

    def flush(self, prompt: bool = False) -> list[Change]:
        """Encode the tokens now due, ``prompt``: as those of a prompt; what changed by it: nothing, or those tokens."""
        due = 0 if self.window.prompt_only and not prompt else self.window.leaving(self.recent_tokens, prompt)
        return [self.encode(self._take(due).float(), prompt)] if due else []

    def encode(self, x: Tensor, prompt: bool = False) -> Change:
        """Encode tokens x (float32) that come after the packed ones, past the window."""
        assert self.codec is not None
        extend = self.codec.extend_prompt if prompt else self.codec.extend
        first = start = self.packed_range[1]
        if self.codec.rewrites:
            return self._packed_from, self._read(extend(self.blocks, self._turned(x, first), first), self._packed_from)
        read = []
        for due in x.split(self.block or x.shape[-2], -2):
            read.append(self._read(extend(self.blocks, self._turned(due, start), start), start))
            start += due.shape[-2]
        return first, read[0] if len(read) == 1 else torch.cat(read, -2)

    def give_up(self, tokens: int) -> Tensor:
        """Remove the oldest tokens, whole blocks of them, from a stream without sinks; as they were read, float32."""
        given, start = list[Tensor](), self.first
        while self.first < start + tokens:
            block = self.blocks.pop(0)
            assert self.codec is not None
            given.append(self._read(self.codec.decode(block), self.first))
            self.first += block.tokens
        return torch.cat(given, -2)

    @property
    def packed_range(self) -> tuple[int, int]:
        """Positions from the first token that is held encoded to behind the last; equal where none is."""
        return self._packed_from, self._packed_from + self.packed_tokens

    @property
    def _packed_from(self) -> int:
        return self.first + self.sinks.shape[-2]

    def frozen(self, tokens: int) -> int:
        """Length of the prefix of a prompt of so many ``tokens`` that no later step changes."""
        return self.window.frozen(tokens)

    def due(self, tokens: int) -> bool:
        """Whether any are to be encoded once so many ``tokens`` have entered."""
        room = 0 if self.window.step is None else self.window.sink - self.sinks.shape[-2]
        held = self.recent_tokens + max(0, tokens - room)
        return not self.window.prompt_only and self.window.leaving(held) > 0

    def boundaries(self, tokens: int) -> list[int]:
        """Where the encoded tokens end, or will begin, now and once 1, 2, ... ``tokens`` new ones have entered."""
        if self.window.step is None:
            return [self.tokens] * (tokens + 1)
        end, held = self.first + self.window.sink + self.packed_tokens, self.recent_tokens
        found, room = [end], self.window.sink - self.sinks.shape[-2]
        for entered in range(1, tokens + 1):
            held += entered > room
            due = 0 if self.window.prompt_only else self.window.leaving(held)
            end, held = end + due, held - due
            found.append(end)
        return found

    def enter(self, x: Tensor, prompt: bool) -> tuple[int, Tensor]:
        """Add tokens x at once, as if one by one; ``prompt``: they are the prompt's, and encoded as those are.

        Returns the first position that reads differently from now on, and what attention reads from there to the end,
        float32 (layers, kv_heads, tokens, head_dim).
        """
        first = self.tokens
        self.append(x)
        changes = self.flush(prompt)
        sinks = self.sinks.shape[-2]
        start = min([first, *(at for at, _ in changes)])
        pieces = [self.sinks[..., start:, :].float()] if start < sinks else []
        pieces += [values for _, values in changes]
        end = sinks + self.packed_tokens
        pieces.append(self.recent[..., max(0, start - end) :, :].float())
        return start, torch.cat(pieces, -2)

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        """What attention would read of a layer's tokens x (kv_heads, tokens, head_dim) at ``start`` once they are held
        packed; of codecs whose codes are a token's alone."""
        assert self.codec is not None
        own = self._on(layer)
        inner = own._turned(x.to(self.enters).float()[None], start)
        return own._read(self.codec.preview(inner, layer, start), start)[0]

    def _on(self, layer: int) -> "Stream":
        """It with the transforms of one of its layers."""
        center, fold = self.center and self.center.on(layer), self.fold and self.fold.on(layer)
        return replace(self, center=center, fold=fold, rotation=self.rotation and self.rotation.on(layer))

    def _turned(self, x: Tensor, start: int) -> Tensor:
        """Tokens from position ``start`` on as the codec sees them."""
        x = x if self.center is None else self.center.without(x, start)
        x = x if self.fold is None else self.fold.divided(x)
        return x if self.rotation is None else self.rotation.turned(x)

    def _read(self, x: Tensor, start: int) -> Tensor:
        """The inverse of ``_turned``."""
        x = x if self.rotation is None else self.rotation.back(x)
        x = x if self.fold is None else self.fold.back(x)
        return x if self.center is None else self.center.back(x, start)

    def _take(self, due: int) -> Tensor:
        """Remove the oldest ``due`` tokens from the window."""
        taken = []
        while due:
            oldest = self._recent.pop(0)
            first, rest = oldest[..., :due, :], oldest[..., due:, :]
            if rest.shape[-2] or not self._recent:
                self._recent.insert(0, rest)
            taken.append(first)
            due -= first.shape[-2]
        # what is converted next need not be copied, too
        return taken[0] if len(taken) == 1 and taken[0].dtype == torch.float16 else torch.cat(taken, -2)

    @property
    def observes(self) -> bool:
        return self.codec is not None and self.codec.observes and self.window.step is not None

    def observe(self, queries: Tensor, attention: Tensor) -> Patch | None:
        """Let the codec re-evaluate its blocks after a step (Codec.observe); token positions count from the first."""
        assert self.codec is not None
        start = self._packed_from
        asked = queries if self.fold is None else self.fold.asked(queries)
        asked = asked if self.rotation is None else self.rotation.turned(asked)
        patch = self.codec.observe(self.blocks, asked, attention, start) if self.blocks else None
        if patch is None:
            return None
        patch = replace(patch, token=patch.token + start)
        if self.rotation is not None:
            patch = replace(patch, values=self.rotation.rows_back(patch.values, patch.layer, patch.head))
        if self.fold is not None:
            patch = replace(patch, values=self.fold.rows_back(patch.values, patch.layer, patch.head))
        if self.center is not None and len(patch.token):
            patch = replace(patch, values=self.center.rows_back(patch.values, patch.layer, patch.head, patch.token))
        return patch

    def remarks(self) -> tuple[str, ...]:
        return self.codec.remarks(self.blocks) if self.codec is not None else ()

    def usage(self) -> dict[str, Tensor]:
        return self.codec.usage(self.blocks) if self.codec is not None and self.blocks else {}

    def decoded(self) -> Iterator[Tensor]:
        """The cache as attention reads it, in the method's key space and float32, piece by piece in token order."""
        yield self.sinks.float()
        start = self._packed_from
        for block in self.blocks:
            assert self.codec is not None
            yield self._read(self.codec.decode(block), start)
            start += block.tokens
        yield self.recent.float()

    def decode(self) -> Tensor:
        """All pieces together: (layers, kv_heads, tokens, head_dim)."""
        return torch.cat(list(self.decoded()), -2)

    def fork(self) -> "Stream":
        """An independent copy; blocks are immutable and shared."""
        return replace(self, _recent=list(self._recent), blocks=list(self.blocks))

    def nbytes(self) -> dict[str, int]:
        """Bytes by part, summed from the tensors held."""
        held, first = ("untouched", "untouched") if self.window.step is None else ("window", "sinks")
        parts = {held: self.recent.nbytes}
        parts[first] = parts.get(first, 0) + self.sinks.nbytes
        for block in self.blocks:
            for name, size in block.nbytes.items():
                parts[name] = parts.get(name, 0) + size
        if self.codec is not None and self.blocks:
            for name, tensor in self.codec.shared.items():
                parts[name] = parts.get(name, 0) + tensor.nbytes
        parts |= {name: held.nbytes for name, held in self._constants().items() if self.blocks}
        return {name: size for name, size in parts.items() if size}

    def _constants(self) -> dict[str, Tensor]:
        """What is held of each KV head and channel, whatever the tokens, by the part of the bytes that it is."""
        center = {} if self.center is None or self.center.stored is None else {"center": self.center.stored}
        return center | ({} if self.fold is None else {"fold": self.fold.scale})

    @property
    def host_bytes(self) -> int:
        return sum(block.host_bytes for block in self.blocks)

    def bits(self) -> Tensor:
        """Stored bits of each element (layers or 1, kv_heads or 1, tokens, channel groups or 1), fp16 tokens 16."""
        assert self.codec is not None or not self.blocks
        maps = [self.codec.bits(b).expand(-1, -1, b.tokens, -1) for b in self.blocks if self.codec]
        for held in self._constants().values() if maps else ():
            constant = 8 * held.nbytes / (held.numel() * self.packed_tokens)
            maps = [each + constant for each in maps]
        shape = [max((m.shape[d] for m in maps), default=1) for d in (0, 1, 3)]
        ends = [torch.full((1, 1, x.shape[-2], 1), 16.0) for x in (self.sinks, self.recent)]
        maps = [ends[0], *maps, ends[1]]
        return torch.cat([m.expand(shape[0], shape[1], -1, shape[2]) for m in maps], -2)
