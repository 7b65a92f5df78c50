"""One tensor of a layer, keys or values, held packed and read packed: what attention asks of it."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
from kvq_kernels import KernelError, Layout, Mark, Path, Store, packed_scores, packed_values
from torch import Tensor

from kvq_core.codecs.forms import BlockReader, Packed
from kvq_core.codecs.stream import Stream
from kvq_core.errors import MethodError
from kvq_core.methods import Codec, Window
from kvq_core.packed.rope_tables import RopeTables
from kvq_core.packed.transforms import Transform

AS_IT_IS = Transform()


class Side(Protocol):
    """Keys or values of a layer; shapes (rows, kv_heads, tokens, head_dim), keys in the method's own space."""

    @property
    def tokens(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes of what is stored, summed from the tensors held."""

    @property
    def allocated(self) -> int:
        """The same with room for more tokens and with what is kept to find and read stored ones at once."""

    @property
    def enters(self) -> torch.dtype:
        """What new tokens are rounded to before anything else."""

    def extend(self, x: Tensor) -> None:
        """Enter tokens, packing what is due."""

    def scores(self, q: Tensor) -> Tensor:
        """Of keys: q (rows, kv_heads, n, head_dim) after RoPE -> float32 (rows, kv_heads, n, tokens)."""

    def weigh(self, p: Tensor) -> Tensor:
        """Of values: p (rows, kv_heads, n, tokens) -> float32 (rows, kv_heads, n, head_dim)."""

    @property
    def observes(self) -> bool:
        """Whether ``observe`` changes anything."""

    def observe(self, queries: Tensor, attention: Tensor) -> None:
        """See a step's queries and attention weights, both with all query heads, over the tokens held now."""

    def mark(self) -> Any:
        """What ``rewind`` needs to forget what enters from now on."""

    def rewind(self, mark: Any) -> None:
        """Be as when the mark was made."""


@dataclass
class StoreSide:
    """Groups of codes in a growing store. ``turns``: it holds keys before RoPE."""

    store: Store
    turns: RopeTables | None
    path: Path
    enters: ClassVar[torch.dtype] = torch.float16

    @property
    def tokens(self) -> int:
        return self.store.tokens

    @property
    def nbytes(self) -> int:
        return self.store.nbytes

    @property
    def allocated(self) -> int:
        return self.store.allocated

    def extend(self, x: Tensor) -> None:
        self.store.extend(x)

    def scores(self, q: Tensor) -> Tensor:
        store, layout = self.store, self.store.layout
        first, n = store.sink_tokens, store.packed_tokens
        turn = self.turns.turn(first, first + n, q.device) if self.turns is not None else None
        parts = [_against(q, store.sinks(), 0, self.turns)]
        if n:
            asked = q.float()  # rounded queries would add what they lose times a constant of the keys
            if store.norms is not None:
                asked = asked * store.norms.float()  # packed keys are stored divided by them
            parts.append(packed_scores(asked, store.groups(), layout.grid, layout.axis, n, self.path, turn=turn))
        return torch.cat([*parts, _against(q, store.recent(), first + n, self.turns)], -1)

    def weigh(self, p: Tensor) -> Tensor:
        store, layout = self.store, self.store.layout
        sinks, packed, recent = p.split(
            [store.sink_tokens, store.packed_tokens, store.later_tokens - store.packed_tokens], -1
        )
        out = _weighted(sinks, store.sinks()) + _weighted(recent, store.recent())
        if store.packed_tokens:
            dim = store.sink.shape[-1]
            out += packed_values(packed, store.groups(), layout.grid, layout.axis, dim, self.path)
        return out

    observes = False

    def observe(self, queries: Tensor, attention: Tensor) -> None:
        """Groups of codes stay as they are."""

    def mark(self) -> Mark:
        return self.store.mark()

    def rewind(self, mark: Mark) -> None:
        self.store.rewind(mark)


@dataclass
class StreamSide:
    """Blocks of any codec, as the lane of a comparison holds them; rows of the batch stand where layers do.

    ``form`` is None where no token ever leaves the window.
    """

    stream: Stream
    turns: RopeTables | None
    form: Packed | None
    reads: list[BlockReader] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.stream.tokens

    @property
    def nbytes(self) -> int:
        return sum(self.stream.nbytes().values())

    @property
    def allocated(self) -> int:
        return self.nbytes + sum(read.index_bytes for read in self.reads)

    @property
    def host_bytes(self) -> int:
        return self.stream.host_bytes

    @property
    def enters(self) -> torch.dtype:
        return self.stream.enters

    def extend(self, x: Tensor) -> None:
        self.stream.append(x)
        self.stream.flush()

    def scores(self, q: Tensor) -> Tensor:
        parts, start = [_against(q, self.stream.sinks, 0, self.turns)], self.stream.sinks.shape[-2]
        turned = q if self.stream.rotation is None else self.stream.rotation.turned(q.float())
        for read in self._read():
            scores = read.scores(turned)
            parts.append(scores if self.stream.center is None else scores + self._constant(q, start, read.block.tokens))
            start += read.block.tokens
        return torch.cat([*parts, _against(q, self.stream.recent, start, self.turns)], -1)

    def weigh(self, p: Tensor) -> Tensor:
        counts = [self.stream.sinks.shape[-2], *(block.tokens for block in self.stream.blocks)]
        sinks, *packed, recent = p.split([*counts, self.stream.recent.shape[-2]], -1)
        out = _weighted(sinks, self.stream.sinks) + _weighted(recent, self.stream.recent)
        for read, part in zip(self._read(), packed, strict=True):
            weighed = read.weigh(part)
            out += weighed if self.stream.rotation is None else self.stream.rotation.back(weighed)
        return out

    def _constant(self, q: Tensor, start: int, tokens: int) -> Tensor:
        """Scores of what centred keys are stored without."""
        assert self.stream.center is not None
        constant = self.stream.center.at(start, tokens).expand(-1, -1, tokens, -1)
        return q.float() @ (constant if self.turns is None else self.turns.rotate(constant, start)).mT

    @property
    def observes(self) -> bool:
        return self.stream.observes

    def mark(self) -> Stream:
        return replace(self.stream, _recent=list(self.stream._recent), blocks=list(self.stream.blocks))

    def rewind(self, mark: Stream) -> None:
        self.stream, self.reads = mark, []

    def observe(self, queries: Tensor, attention: Tensor) -> None:
        if self.stream.observes:
            self.stream.observe(queries, attention)

    def _read(self) -> list[BlockReader]:
        """The blocks as they stand, read anew where one was replaced."""
        stream, start = self.stream, self.stream.sinks.shape[-2]
        for i, block in enumerate(stream.blocks):
            assert self.form is not None
            if i == len(self.reads) or self.reads[i].block is not block:
                read = self.form.read(block, start, self.turns)
                self.reads[i:] = [read]
                stream.blocks[i] = read.block
            start += block.tokens
        return self.reads


def side_of(
    codec: Codec | None,
    window: Window,
    x: Tensor,
    turns: RopeTables | None,
    path: Path,
    room: int = 0,
    behind: Transform = AS_IT_IS,
    side: Literal["keys", "values"] = "keys",
) -> Side:
    """Enter a prompt's x (rows, kv_heads, tokens, head_dim) float32, in the method's key space, into a packed cache.

    A store takes groups of codes whose tokens leave the window for good as they age: it grows in place and is what the
    fused attention reads. All other codecs, and what is stored ``behind`` a constant or a rotation, keep the blocks a
    comparison's lane keeps. Raises MethodError where the codec has no packed form.
    """
    if codec is None or window.step is None:
        return StreamSide(Stream.of_prompt(x, window, codec), turns, None)
    try:
        form = codec.packed(path)
        if form.groups is None or window.prompt_only or window.rewritten or behind != AS_IT_IS:
            stream = Stream.of_prompt(x, window, codec, behind.center, behind.rotation)
            return StreamSide(stream, turns, form)
        groups = form.groups
        layout = Layout(groups.grid, groups.axis, window.sink, window.recent, window.step)
        store = Store.empty(x, layout, side, room, groups.norms, groups.encode, path)
    except KernelError as error:
        raise MethodError(f"packed execution: {error}") from None
    store.fill(x)
    return StoreSide(store, turns, path)


def _against(q: Tensor, kept: Tensor, start: int, turns: RopeTables | None) -> Tensor:
    """Scores of full-precision keys, the first of them at position ``start``."""
    keys = kept.float()
    return q.float() @ (keys if turns is None else turns.rotate(keys, start)).transpose(-1, -2)


def _weighted(p: Tensor, kept: Tensor) -> Tensor:
    """Weighted sum of full-precision values; on a GPU without a float32 copy of them."""
    if p.is_cuda and p.dtype == torch.float16:
        return (p @ kept).float()
    return p.float() @ kept.float()
