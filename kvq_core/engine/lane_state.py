"""The state of one lane of a run: its caches, its own text, its times, and why it failed."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from kvq_core.codecs.doubts import Doubt, refusal
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.kernel_floor import KernelFloor
from kvq_core.errors import KvqError
from kvq_core.machine.memory import is_out_of_memory
from kvq_core.spec import Lane

if TYPE_CHECKING:
    from kvq_core.models.states import States

Finish = Literal["eos", "length", "continuation"]


@dataclass
class LaneState:
    """One lane of a run. ``token_ids`` is the lane's own (free) text, equal to the reference's until it diverges."""

    lane: Lane
    cache: LaneCache | None = None
    free: LaneCache | None = None
    error: str | None = None
    doubts: list[Doubt] = field(default_factory=list)  # of its codecs, which may be errors
    token_ids: list[int] = field(default_factory=list)
    first_divergence: int | None = None
    finish: Finish | None = None
    encode_prompt_s: float = 0.0
    encode_decode_s: float = 0.0
    # of a lane that read the prompt through its cache: what the head reads at Prefill.scored, and at the last token
    prompt_hidden: Tensor | None = None
    last_hidden: Tensor | None = None
    states: "States | None" = None  # of layers that are no attention, of a lane that read the prompt through its cache
    kernel: KernelFloor | None = None  # of the floor that reads the prompt, and decodes, as another kernel
    own_errors: tuple[float, float] | None = None  # of its keys and values, see Filling.errors

    def resolve(self) -> None:
        """Ask for what its codecs were not sure of."""
        self.error, self.doubts = self.error or refusal(self.doubts), []

    @property
    def own_text(self) -> bool:
        return self.first_divergence is not None


def failure_line(error: Exception) -> str:
    """What a failed lane shows. Memory that ran out is no lane's own failure: the run ends with it."""
    if is_out_of_memory(error):
        raise error
    if isinstance(error, KvqError):
        return str(error)
    return " ".join([f"{type(error).__name__}:", *str(error).splitlines()[:1]])[:200]


def joined_states(first: "States | None", running: list[LaneState]) -> "States | None":
    """Those of a batch's rows as they begin, the reference's ``first``: a lane's own where it read the prompt by
    itself, else the reference's. None where the model has none."""
    if first is None:
        return None
    own = (s.states or (first if s.kernel is None else s.kernel.prefill.states) for s in running)
    return first.join([first, *filter(None, own)])
