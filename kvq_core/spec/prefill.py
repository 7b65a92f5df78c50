"""How a lane reads the prompt: in full precision, or in chunks of which the earlier ones come from its own cache."""

from typing import Literal

from pydantic import Field

from kvq_core.spec.frozen import Frozen


class Chunks(Frozen):
    """A prompt that enters a lane's cache chunk by chunk, each reading the earlier ones as the cache holds them."""

    chunk: int = Field(512, ge=1, le=1 << 20, description="Tokens of a chunk.")
    own_chunk: Literal["raw", "stored"] = Field(
        "raw",
        description="What a token reads of its own chunk: keys and values as computed, or as the cache stores them, in "
        "decoding as well: then the result does not depend on the chunk.",
    )
    fit: Literal["prompt", "first_chunk"] = Field(
        "prompt",
        description="What methods are fitted on: the whole prompt read in full precision, which no server has seen "
        "when the first chunk is stored, or the first chunk alone.",
    )


Reading = Literal["full", "deployed"] | Chunks
