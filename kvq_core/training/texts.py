"""Text that codebooks are trained on, cut into sequences of token ids."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvq_core.errors import SpecError, abbreviate, excerpt
from kvq_core.models import LoadedModel

# Tokens: long enough for context to matter, short enough for first tokens (attention sinks) to be seen often.
SEQUENCE = 512
BUILT_IN = "pydoc_data.topics"


@dataclass(frozen=True)
class Texts:
    """Documents and the words that name their source in a codebook's metadata."""

    source: str
    documents: tuple[str, ...]


def read_texts(source: str | None) -> Texts:
    """Documents of a source: None for the standard library's help topics, a text file, or ``hub:owner/name[:column]``.

    Raises SpecError where the source cannot be read.
    """
    if source is None:
        from pydoc_data.topics import topics

        return Texts(BUILT_IN, tuple(topics[name] for name in sorted(topics)))
    if source.startswith("hub:"):
        return Texts(source, tuple(_hub(source.removeprefix("hub:"))))
    path = Path(source).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SpecError(
            f"Text {excerpt(source)} cannot be read: {reason}. Give a UTF-8 text file, or hub:owner/name for a dataset."
        ) from None
    return Texts(path.name, tuple(part for part in text.split("\f") if part.strip()))


def _hub(name: str) -> Iterator[str]:
    """Rows of a Hub dataset's text column, read from its first parquet file."""
    repo, _, column = name.partition(":")
    try:
        import pandas
        from huggingface_hub import HfApi, hf_hub_download

        files = sorted(f for f in HfApi().list_repo_files(repo, repo_type="dataset") if f.endswith(".parquet"))
        train = [f for f in files if "train" in f] or files
        if not train:
            raise SpecError(f"Dataset {excerpt(repo)} holds no parquet files; give a text file instead.")
        rows = pandas.read_parquet(hf_hub_download(repo, train[0], repo_type="dataset"), columns=[column or "text"])
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SpecError(
            f"Dataset {excerpt(repo)} could not be read: {abbreviate(first, 200)}. Give a text file instead."
        ) from None
    yield from (text for text in rows[column or "text"] if isinstance(text, str) and text.strip())


@dataclass(frozen=True)
class Sequences:
    """Token ids to run the model on: ``train`` and ``held_out`` come from different parts of the text."""

    train: list[list[int]]
    held_out: list[list[int]]


def sequences(model: LoadedModel, texts: Texts, train: int, held_out: int, seed: int) -> Sequences:
    """At least ``train`` and ``held_out`` tokens in sequences of at most SEQUENCE, drawn from all over the text.

    Where the model has a chat template, every other training sequence is a user message under it, because prompts
    will be; held-out sequences are plain text, so that the template's repeated tokens do not flatter the error.
    Raises SpecError where the text is too short.
    """
    ids = model.encode("\n\n".join(texts.documents))
    length = min(SEQUENCE, model.shape.context, max(1, len(ids) // 8))
    pieces = [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]
    random.Random(seed).shuffle(pieces)
    need = -(-held_out // length), -(-train // length)
    if sum(need) > len(pieces):
        raise SpecError(
            f"{texts.source} gives {len(ids)} tokens; {train} to train on and {held_out} held out are needed. "
            "Give a longer text or ask for fewer tokens."
        )
    held, kept = pieces[: need[0]], pieces[need[0] : sum(need)]
    templated = bool(getattr(model.tokenizer, "chat_template", None))
    return Sequences([_as_prompt(model, p) if templated and i % 2 else p for i, p in enumerate(kept)], held)


def _as_prompt(model: LoadedModel, piece: list[int]) -> list[int]:
    text = str(model.tokenizer.decode(piece, skip_special_tokens=True))
    return model.render(text, None, True)[: max(len(piece), 2)]
