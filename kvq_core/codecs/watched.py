"""A codec from outside this project, watched: what it does wrong is its lane's failure, in one line that names it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from kvq_kernels import Path
from torch import Tensor

from kvq_core.codecs.blocks import Block, DeclaredBlock, Patch
from kvq_core.codecs.codec import Codec
from kvq_core.codecs.forms import Packed
from kvq_core.errors import KvqError, MethodError, abbreviate

SLACK = 1e-3  # of the counted bits: what rounding may lose of those that are claimed


@contextmanager
def errors_of(whose: str) -> Iterator[None]:
    """Errors inside as a MethodError of one line that begins with ``whose``. Memory that ran out stays what it is."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except KvqError as error:
        raise MethodError(_line(whose, str(error))) from error
    except Exception as error:
        if "can't allocate memory" in str(error):
            raise
        raise MethodError(_line(whose, f"{type(error).__name__}: {error}".removesuffix(": "))) from error


def _line(whose: str, said: str) -> str:
    return said if said.startswith(f"{whose}: ") else f"{whose}: {abbreviate(' '.join(said.split()), 300)}"


class WatchedCodec(Codec):
    """``inner``, checked whenever it stores: shapes, finite numbers, and that the bits and bytes it claims are no fewer
    than its tensors take. ``whose`` begins every refusal."""

    def __init__(self, inner: Codec, whose: str):
        self.inner, self.whose = inner, whose
        for name in Codec.__annotations__:  # what a codec says of itself beside its methods
            setattr(self, name, getattr(inner, name))

    @property
    def encoder_bytes(self) -> int:
        return self.inner.encoder_bytes

    @property
    def model_bytes(self) -> int:
        return self.inner.model_bytes

    def encode(self, x: Tensor, start: int) -> Block:
        with errors_of(self.whose):
            return self._checked(self.inner.encode(x, start), x)

    def encode_prompt(self, x: Tensor, start: int) -> Block:
        with errors_of(self.whose):
            return self._checked(self.inner.encode_prompt(x, start), x)

    def extend(self, blocks: list[Block], x: Tensor, start: int) -> Tensor:
        with errors_of(self.whose):
            return self._extended(blocks, x, self.inner.extend(blocks, x, start))

    def extend_prompt(self, blocks: list[Block], x: Tensor, start: int) -> Tensor:
        with errors_of(self.whose):
            return self._extended(blocks, x, self.inner.extend_prompt(blocks, x, start))

    def begun(self, tokens: int) -> Codec:
        with errors_of(self.whose):
            return WatchedCodec(self.inner.begun(tokens), self.whose)

    def preview(self, x: Tensor, layer: int, start: int) -> Tensor:
        with errors_of(self.whose):
            return _sound(self.inner.preview(x, layer, start), x)

    def observe(self, blocks: list[Block], queries: Tensor, attention: Tensor, start: int) -> Patch | None:
        with errors_of(self.whose):
            patch = self.inner.observe(blocks, queries, attention, start)
            if patch is not None and not torch.isfinite(patch.values).all():
                raise MethodError("observe gave NaN or infinity")
            return patch

    def remarks(self, blocks: list[Block]) -> tuple[str, ...]:
        try:
            with errors_of(self.whose):
                return tuple(map(str, self.inner.remarks(blocks)))
        except MethodError as error:  # the lane has run: what it would say of itself is no reason to lose it
            return (str(error),)

    def usage(self, blocks: list[Block]) -> dict[str, Tensor]:
        with errors_of(self.whose):
            return self.inner.usage(blocks)

    def decode(self, block: Block) -> Tensor:
        with errors_of(self.whose):
            return self.inner.decode(block)

    def bits(self, block: Block) -> Tensor:
        with errors_of(self.whose):
            return self.inner.bits(block)

    def packed(self, path: Path) -> Packed:
        with errors_of(self.whose):
            return self.inner.packed(path)

    def _checked(self, block: Block, x: Tensor) -> Block:
        """The block of tokens x, if it is what it says."""
        if not isinstance(block, Block):
            raise MethodError(f"encode gave {type(block).__name__}, not a Block")
        if block.tokens != x.shape[-2]:
            raise MethodError(f"encode gave a block of {block.tokens} tokens for {x.shape[-2]}")
        _sound(self.inner.decode(block), x)
        self._count(block, x.numel())
        return block

    def _extended(self, blocks: list[Block], x: Tensor, read: Tensor) -> Tensor:
        if blocks:
            self._count(blocks[-1], blocks[-1].tokens * x[..., :1, :].numel())
        held = sum(block.tokens for block in blocks)  # what is stored anew is read anew
        if isinstance(read, Tensor) and read.shape == (*x.shape[:2], held, x.shape[-1]):
            return _finite(read, x)
        return _sound(read, x)

    def _count(self, block: Block, elements: int) -> None:
        """Raises MethodError where a block takes more than is said of it."""
        if isinstance(block, DeclaredBlock):
            return
        held = sum(t.numel() * t.element_size() for t in block.tensors.values())
        if (told := sum(block.nbytes.values())) < held:
            raise MethodError(f"claims {told:,} bytes for a block whose tensors take {held:,}")
        claimed, counted = float(self.inner.bits(block).float().mean()), 8 * held / elements
        if not claimed >= counted * (1 - SLACK):
            raise MethodError(f"claims {claimed:.4g} bits an element where its tensors take {counted:.4g}")


def _sound(read: Tensor, x: Tensor) -> Tensor:
    """What was read of tokens x. Raises MethodError for another shape, and for what is no number."""
    if not isinstance(read, Tensor):
        raise MethodError(f"reads back {type(read).__name__}, not a tensor")
    if read.shape != x.shape:
        raise MethodError(f"reads back {tuple(read.shape)} for tokens of shape {tuple(x.shape)}")
    return _finite(read, x)


def _finite(read: Tensor, x: Tensor) -> Tensor:
    """Raises MethodError for what is no number, where the tokens are."""
    if not torch.isfinite(read).all() and torch.isfinite(x).all():
        raise MethodError("reads back NaN or infinity")
    return read
