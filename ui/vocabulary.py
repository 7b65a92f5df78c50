"""Words for the token ids of a record's top-5 lists."""

from collections.abc import Callable
from functools import lru_cache

from kvq_core.record import Record
from kvq_core.spec import DEFAULT_MODEL


def vocabulary(record: Record) -> Callable[[int], str]:
    """Text of a token id: from the bundled tokenizer, else from the texts of the run, else the id itself."""
    texts = [(record.reference.prompt_token_ids, record.reference.prompt_tokens)]
    texts += [(row.token_ids, row.tokens) for row in (record.reference, *record.lanes)]
    seen = {id: piece for ids, pieces in texts for id, piece in zip(ids, pieces, strict=False) if piece}
    bundled = _bundled() if record.environment.model == DEFAULT_MODEL else None

    def word(id: int) -> str:
        if bundled is not None:
            return bundled(id)
        return seen.get(id, f"token {id}")

    return word


@lru_cache(maxsize=1)
def _bundled() -> Callable[[int], str] | None:
    """The default model's tokenizer alone: reading a stored run must not load the model."""
    from tokenizers import Tokenizer

    from kvq_core.models.load import bundled_folder

    file = bundled_folder() / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    return lambda id: tokenizer.decode([id], skip_special_tokens=False)
