"""What a record holds of prompts that were read through caches, and of a conversation's answers."""

from pydantic import BaseModel, ConfigDict


class RecordPart(BaseModel):
    """Of a record: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class PromptMetrics(RecordPart):
    """Of a lane that read the prompt through its own cache; ``positions`` of the prompt, each scored by the token that
    follows it, the first new token last. Nats."""

    n_scored: int
    first_position: int
    kld_mean: float
    kld_median: float
    kld_p99: float
    kld_max: float
    flips: int
    flip_rate: float
    ppl_ratio: float
    first_token_kld: float
    first_token_same: bool  # as the reference's most probable token
    own_key_error: float  # ||dK||_F / ||K||_F against the keys the lane itself computed, mean over layers
    own_value_error: float


class TurnMetrics(RecordPart):
    """Of one answer of a conversation: all tokens but its first are scored. Nats."""

    tokens: int
    n_scored: int
    kld_mean: float
    kld_p99: float
    flips: int
    flip_rate: float
