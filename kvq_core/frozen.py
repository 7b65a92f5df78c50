"""The base of all data that is read from files or written to them: frozen, and strict about fields."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Data that never changes; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
