"""How a lane reads the prompt, in words."""

from typing import Any

from kvq_core.spec import in_words


def read_in_words(prefill: Any) -> list[str]:
    """How a lane reads the prompt, a Lane's or a record's ``prefill``; nothing of one that does as papers do."""
    words = in_words(prefill)
    if words in ("full", "deployed"):
        return [] if words == "full" else ["prompt as deployed"]
    return [f"prompt in chunks, {words}"]
