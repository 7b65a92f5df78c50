"""Stored tokens: blocks as a codec encodes them, and patches of what reads differently later."""

from dataclasses import dataclass

from torch import Tensor

DECLARED = "declared"  # part of a block whose bytes are not counted


@dataclass(frozen=True)
class Block:
    """Consecutive tokens of all layers, encoded from the original values. Immutable.

    ``tensors`` are what a cache would hold; their bytes are the block's bytes. Part names end up in
    ``memory.bytes_by_part`` with ``key_`` or ``value_`` before them: codes, scales, zeros, ...
    """

    tokens: int
    tensors: dict[str, Tensor]

    @property
    def nbytes(self) -> dict[str, int]:
        return {name: t.numel() * t.element_size() for name, t in self.tensors.items()}

    @property
    def host_bytes(self) -> int:
        """Bytes of a copy kept in host memory for re-encoding: listed apart, in neither bits nor ratio."""
        return 0


@dataclass(frozen=True)
class DeclaredBlock(Block):
    """A block whose ``tensors`` hold what attention reads, in place of what a cache would: its bytes are what somebody
    ``declared``, not counted. They appear as the part DECLARED, which marks them wherever bytes are told."""

    declared: int

    @property
    def nbytes(self) -> dict[str, int]:
        return {DECLARED: self.declared}


@dataclass(frozen=True)
class Patch:
    """Stored tokens that read differently from now on: values[i] (head_dim,) at layer[i], head[i], token[i].

    ``token`` counts from the first stored token, ``layer`` within the codec's layers; all are (n,), values
    (n, head_dim).
    """

    layer: Tensor
    head: Tensor
    token: Tensor
    values: Tensor
