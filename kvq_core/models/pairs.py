"""The pairs of channels that RoPE turns together, and how fast it turns them, read off the rotation itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvq_core.models.rope import Rope

SLOW = 1 / 32  # radians over a whole context, within which a pair hardly turns
_LEAST = 1e-12  # of a rotation's matrix at position 1, beside which an entry is rounding


@dataclass(frozen=True)
class Pairs:
    """The pairs of a head of one layer. ``of`` (head_dim,): the pair of each channel; ``theta`` (pairs,): the angle it
    turns by from one position to the next, 0 of a channel that is not turned, which is a pair of its own."""

    of: Tensor
    theta: Tensor

    @classmethod
    def of_rope(cls, rope: Rope, layer: int) -> "Pairs":
        """Of a model's layer; ``rope`` as the model has it for two positions or more."""
        own = rope.table_of(layer)
        dim = own.norm.shape[-1]
        if not rope.rotates(layer):
            return cls(torch.arange(dim), torch.zeros(dim))
        turn = own.matrices(1, 1, own.cos.device)[0][0].double().cpu()
        turned = (turn - torch.diag(turn.diagonal())).abs()
        other = torch.where(turned.amax(1) > _LEAST, turned.argmax(1), torch.arange(dim))
        _, of = torch.minimum(torch.arange(dim), other).unique(return_inverse=True)
        angle = torch.atan2(turned.amax(1), turn.diagonal())
        theta = torch.zeros(int(of.max()) + 1, dtype=torch.float64)
        theta[of] = torch.where(other == torch.arange(dim), torch.zeros_like(angle), angle)
        return cls(of, theta.float())

    def slow(self, context: int) -> Tensor:
        """Which pairs turn by no more than ``SLOW`` over so many tokens: bool (pairs,)."""
        return self.theta * context <= SLOW

    def sums(self, x: Tensor) -> Tensor:
        """The sum over each pair's channels: x (..., head_dim) -> (..., pairs)."""
        return x.new_zeros(*x.shape[:-1], len(self.theta)).index_add_(-1, self.of.to(x.device), x)

    def spread(self, x: Tensor) -> Tensor:
        """What each pair has, at each of its channels: x (..., pairs) -> (..., head_dim)."""
        return x[..., self.of.to(x.device)]

    def members(self, pair: int) -> list[int]:
        """The channels of a pair."""
        return (self.of == pair).nonzero().flatten().tolist()


def pairs_of(rope: Rope, layers: Sequence[int]) -> list[Pairs]:
    """Of some layers; those that the same tables turn share them. ``rope``: of all the layers of a model, for two
    positions or more."""
    tables = [(rope.number_of(layer), rope.rotates(layer)) for layer in layers]
    made = {table: Pairs.of_rope(rope, layer) for table, layer in zip(reversed(tables), reversed(layers), strict=True)}
    return [made[table] for table in tables]
