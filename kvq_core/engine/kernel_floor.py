"""The floor "another kernel": the reference once more, with hidden states rounded as other kernels round them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvq_core.engine.prefill import Precision, SharedPrefill
from kvq_core.models import LoadedModel
from kvq_core.models.rounding import KernelNoise, round_row


@dataclass
class KernelFloor:
    """A run's own pass of the prompt, and the rounding that goes on in its row of the decode."""

    rounding: KernelNoise
    prefill: SharedPrefill = field(init=False)

    def read(
        self, model: LoadedModel, ids: list[int], scored: Sequence[int], turns: Sequence[int], held: Precision
    ) -> Iterator[int]:
        """Prefill the prompt, a chunk a turn; yields the number of tokens done."""
        noisy = model.computed_by(round_row(model.model, self.rounding, 0))
        self.prefill = SharedPrefill(noisy, ids, scored, turns, held)
        yield from self.prefill.run()

    def stepping(self, model: LoadedModel, row: int) -> LoadedModel:
        """The model of decode steps in which this floor is that row."""
        return model.computed_by(round_row(model.model, self.rounding, row))
