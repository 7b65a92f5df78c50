"""How a tensor is stored in a cache: what is packed, when, and what is kept as it is around that."""

from typing import NamedTuple

from kvq_kernels.dispatch import KernelError
from kvq_kernels.grouped import Axis, Grid, check_axis


class Layout(NamedTuple):
    """How a tensor is stored: grid and grouped axis of the packed part, and the windows around it.

    After every append, ``step`` tokens, the oldest of the recent ones, are packed whenever ``recent + step`` are held.
    """

    grid: Grid
    axis: Axis
    sinks: int = 0
    recent: int = 0
    step: int = 1

    def check(self) -> None:
        """Raises KernelError where nothing can be stored so."""
        check_axis(self.axis)
        if self.step < 1 or self.sinks < 0 or self.recent < 0:
            raise KernelError(
                f"sinks = {self.sinks}, recent = {self.recent}, step = {self.step}: sinks and recent are 0 or more, "
                "step is 1 or more."
            )
        if self.axis == "tokens" and self.step % self.grid.group_size:
            raise KernelError(
                f"step = {self.step} packs parts of a group of {self.grid.group_size} tokens; use a multiple of it."
            )

    def due(self, held: int) -> int:
        """How many of ``held`` recent tokens are to be packed now."""
        return 0 if held < self.recent + self.step else (held - self.recent) // self.step * self.step
