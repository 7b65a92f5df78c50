"""What all parts of a spec are."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Data that never changes; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
