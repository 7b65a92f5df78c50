"""Layers that hold no keys and values and read those of an earlier one (Gemma 3n, Gemma 4)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from kvq_core.methods import ModelShape
from kvq_core.models.scoring import Scoring
from kvq_core.packed.dense import DenseLayer
from kvq_core.packed.layer import PackedLayer

Holder = PackedLayer | DenseLayer
Layer = TypeVar("Layer", bound=Holder)


@dataclass
class ReadingLayer:
    """Attends to what ``holder`` holds and takes in in the same pass, which its keys and values are; ``last``: no later
    layer does, so that the holder may store them. What it reads is the holder's, so nothing is counted here."""

    holder: Holder
    last: bool
    tokens: int = 0
    nbytes: int = 0
    allocated: int = 0
    host_bytes: int = 0

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        out = self.holder.read(queries, keys, values, how)
        if self.last and isinstance(self.holder, PackedLayer):
            self.holder.settle()
        return out


def with_readers(layers: Sequence[Layer], shape: ModelShape) -> list[Layer | ReadingLayer]:
    """The layers of a model, with readers in the place of those that hold nothing and read an earlier one."""
    readers = Counter(kind.reads for kind in shape.kinds if kind.reads is not None)
    made: list[Layer | ReadingLayer] = [
        replace(layer, readers=readers[i]) if readers[i] and isinstance(layer, PackedLayer) else layer
        for i, layer in enumerate(layers)
    ]
    for i, kind in enumerate(shape.kinds):
        if kind.reads is not None:
            readers[kind.reads] -= 1
            holder = made[kind.reads]
            assert not isinstance(holder, ReadingLayer)
            made[i] = ReadingLayer(holder, last=not readers[kind.reads])
    return made
