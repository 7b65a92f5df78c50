"""How a lane reads the prompt: in full precision, or in chunks of which the earlier ones come from its own cache."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from kvq_core.spec.part import SpecPart


class Chunks(SpecPart):
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


def _from_words(given: Any) -> Any:
    """``512``, ``512 stored``, ``256 raw first_chunk``: what is left out is as usual; anything else as it is."""
    told = isinstance(given, str | int) and not isinstance(given, bool)
    words = str(given).split() if told else []
    if not words or not words[0].isascii() or not words[0].isdigit():
        return given
    return {"chunk": int(words[0]), **{_WORDS.get(word, word): word for word in words[1:]}}


_WORDS = {word: name for name in ("own_chunk", "fit") for word in get_args(Chunks.model_fields[name].annotation)}
Reading = Annotated[Literal["full", "deployed"] | Chunks, BeforeValidator(_from_words)]


def in_words(reading: Any) -> str:
    """A lane's ``prefill``, or what a record says of it, as one writes it in a word or two, which is read back as the
    same."""
    if isinstance(reading, dict):
        reading = Chunks(**reading)
    if not isinstance(reading, Chunks):
        return str(reading)
    return f"{reading.chunk} {reading.own_chunk}" + (" first_chunk" if reading.fit == "first_chunk" else "")
