"""What a model that was read from files is known by, in which type it is read, and what is told where it cannot be."""

from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from kvq_core.errors import PATH, ModelError, abbreviate, did_you_mean
from kvq_core.models import bundled, identity
from kvq_core.models.choice import KNOWN
from kvq_core.models.source import ModelSource, portable
from kvq_core.models.source import title as title_of
from kvq_core.spec import DEFAULT_MODEL

TOKENIZER = "tokenizer.*", "tokenizer_config.json", "vocab.*", "*.model", "*.tiktoken"  # one of them, at least


def known_by(source: ModelSource, id: str, folder: Path, commit: str | None) -> dict[str, Any]:
    """Fields of a LoadedModel: id and title by which it is known on every machine, and its hashes."""
    file = source.file
    weights = commit or (file.sha256 if file else identity.weights_of(folder))
    whole = commit or (file.whole if file else identity.whole_of(weights, folder))
    name = portable(source, id, whole)
    return {
        "id": name,
        "title": dict(KNOWN).get(name, title_of(source, id)).removesuffix(" (bundled)"),
        "weights_hash": weights[:16],
        "model_hash": whole[:16],
        "quantization": file.mix if file else None,
        "weights_bytes": weights_bytes_of(source, id, folder),
    }


def weights_bytes_of(source: ModelSource, id: str, folder: Path) -> int | None:
    """Of the file that holds the weights as they are shipped; None of a GGUF file that an older version converted."""
    if source.file is not None:
        return source.file.size
    if id == DEFAULT_MODEL:
        return bundled.SIZE
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


class Incomplete(ModelError):
    """Of a directory that lacks a file which no model goes without."""


def tokenizer_of(id: str, source: ModelSource, options: dict[str, Any]) -> Any:
    """The model's tokenizer. Raises ModelError for a directory that has none, and what transformers raises."""
    from transformers import AutoTokenizer

    folder = Path(source.place)
    if folder.is_dir() and not any(file for pattern in TOKENIZER for file in folder.glob(pattern)):
        raise Incomplete(
            f"Model directory {abbreviate(repr(id), PATH)} has no tokenizer; put its tokenizer.json, or "
            "tokenizer.model, beside config.json."
        )
    return AutoTokenizer.from_pretrained(source.place, **options)


def dtype_here() -> torch.dtype:
    """The type weights are read in: half precision where there is a GPU."""
    if not torch.cuda.is_available():
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def unreadable(id: str, error: Exception) -> ModelError:
    """Of whatever other people's files make their readers raise."""
    hint = "" if "/" in id else did_you_mean(id, dict(KNOWN))  # a name of the Hub may be right, and not be reached
    said = shorten(str(error).rstrip(" .:"), 200, placeholder=" ...") or type(error).__name__
    return ModelError(
        f"Model {id!r} could not be loaded: {said}. Check its id or folder, and the connection for a model of the Hub; "
        f"{DEFAULT_MODEL} needs neither.{hint}"
    )
