"""What a feature of some lanes does in the rows of a run: one interface for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kvq_core.engine.attention import Hidden
from kvq_core.engine.copies import Copies
from kvq_core.engine.places import RowPlaces
from kvq_core.models.scoring import Scoring


@dataclass
class LayerStep:
    """One layer in a pass over all rows. queries (rows, query_heads, fresh, head_dim), keys and values (rows, kv_heads,
    fresh, head_dim; made float32), after RoPE, as the layer computed them; its own tokens follow the ``tokens`` held,
    of which the first ``prefix`` are each lane's.

    Parts may change ``keys`` on their way into the tails, ``asked``, the queries as they meet keys, and ``hidden``.
    """

    layer: int
    how: Scoring
    index: int  # of the layer that holds what this one reads, among those of its device
    copies: Copies
    places: RowPlaces
    queries: Tensor
    keys: Tensor
    values: Tensor
    tokens: int
    prefix: int
    ahead: bool = False  # whether each query is told what it reads, see engine/ahead.py
    hidden: Hidden = field(default_factory=dict)
    weights: Tensor | None = None  # (lanes, kv_heads, slots, groups * fresh, tokens), once attention is over

    def __post_init__(self) -> None:
        self.asked, self.keys, self.values = self.queries.float(), self.keys.float(), self.values.float()

    @property
    def held_by(self) -> int:
        return self.how.holder(self.layer)

    @property
    def enters(self) -> bool:
        """Whether the layer holds keys and values of its own."""
        return self.how.reads is None

    @property
    def fresh(self) -> int:
        return self.keys.shape[2]

    @property
    def own(self) -> slice:
        """Where its tokens stand in the tails."""
        return slice(self.tokens - self.prefix, self.tokens - self.prefix + self.fresh)


class RowPart:
    """A feature of some rows: what it holds is its own, and it does nothing where it does not say so."""

    def reindex(self, lane_of: Sequence[int]) -> None:
        """Rows were forked or dropped: ``lane_of[r]`` is row r's lane from now on, 0 the reference's."""

    def before(self, step: LayerStep) -> None:
        """A layer is about to attend; parts are asked in the order of ``Rows.parts``."""

    def after(self, step: LayerStep) -> None:
        """It has attended, and ``weights`` are known."""
