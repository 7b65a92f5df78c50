"""Where each row of a batch sits among the lanes whose prefix it reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowPlaces:
    """Row r reads the prefix of held lane ``lanes[r]`` as its slot ``slots[r]``; ``rows`` (lanes, slots) is the
    inverse, in which a free slot repeats row 0. ``alone``: every lane has one row, in the order of the lanes, so that
    nothing has to be gathered."""

    rows: Tensor
    lanes: Tensor
    slots: Tensor
    alone: bool
    at: list[tuple[int, int]]  # each row's lane among those held, and its slot
    heads: dict[int, Tensor] = field(default_factory=dict)  # 0, 1, ... of so many KV heads, as ``by_lane`` needs them

    @classmethod
    def of(cls, lane_of: Sequence[int], held: Sequence[int], device: torch.device) -> "RowPlaces":
        """``lane_of[r]`` is row r's lane, ``held`` the lanes whose prefix is held, in order."""
        at = [held.index(lane) for lane in lane_of]
        slots = [at[:row].count(lane) for row, lane in enumerate(at)]
        rows = torch.zeros(len(held), max(slots) + 1, dtype=torch.long)
        placed = list(zip(at, slots, strict=True))
        for row, (lane, slot) in enumerate(placed):
            rows[lane, slot] = row
        alone = at == list(range(len(held)))
        return cls(rows.to(device), torch.tensor(at, device=device), torch.tensor(slots, device=device), alone, placed)

    def by_lane(self, x: Tensor) -> Tensor:
        """x (rows, kv_heads, ...) as (lanes, kv_heads, slots, ...)."""
        if self.alone:
            return x[:, :, None]
        heads = self.heads.get(x.shape[1])
        if heads is None:
            heads = self.heads[x.shape[1]] = torch.arange(x.shape[1], device=x.device)[:, None]
        return x[self.rows[:, None], heads]

    def by_row(self, x: Tensor) -> Tensor:
        """x (lanes, kv_heads, slots, ...) as (rows, kv_heads, ...)."""
        return x[:, :, 0] if self.alone else x[self.lanes, :, self.slots]

    def of_row(self, x: Tensor, row: int) -> Tensor:
        """A row's part of x (lanes, kv_heads, slots, ...): (kv_heads, ...)."""
        return x[self.lanes[row], :, self.slots[row]]
