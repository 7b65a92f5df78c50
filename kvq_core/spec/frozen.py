"""What every part of a spec is."""

from pydantic import BaseModel, ConfigDict

from kvq_core.methods.numbers import no_truth


class Frozen(BaseModel):
    """Data that never changes; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    _no_truth = no_truth
