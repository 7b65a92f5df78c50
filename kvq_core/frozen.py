"""What data that is read or written is made of."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Data that never changes; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
