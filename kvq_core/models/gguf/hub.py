"""GGUF files of the Hub, named as llama.cpp's ``-hf`` names them: ``owner/repo:Q4_K_M`` or ``owner/repo:file.gguf``."""

import re
from collections.abc import Callable
from pathlib import Path

from kvq_core.errors import ModelError, abbreviate, excerpt
from kvq_core.models.gguf.fetching import FetchedFile, fetch, reachable

PART = re.compile(r"[-.]\d+-of-(?!0*1\.)\d+\.gguf$", re.IGNORECASE)  # of a model in more than one, by its name
_ID = re.compile(r"([\w.-]+/[\w.-]+):([^:]+)")
_PARTS = (
    "models in parts are not read. Merge them with llama.cpp's llama-gguf-split --merge and give the file's path, or "
    "pick a quantization in one file."
)
MOST = 12  # names that a message lists


def parts(id: str) -> tuple[str, str] | None:
    """Repository and wanted file or quantization of a model id; None for ids of another form."""
    found = None if id.startswith((".", "~", "/")) else _ID.fullmatch(id)
    return (found[1], found[2]) if found else None


def download(repo: str, wanted: str, revision: str | None) -> FetchedFile:
    """The file in the Hub's cache, fetched where it is not there, telling bytes; an interrupted download goes on.

    Raises ModelError where the repository cannot be had, or none or several of its files are meant.
    """
    from huggingface_hub import list_repo_files

    if not reachable() and (held := _held(repo, wanted, revision)) is not None:
        return held
    try:
        name = _named(repo, wanted, lambda: list_repo_files(repo, revision=revision))
        if PART.search(name):
            raise ModelError(f"{repo}:{abbreviate(name)} is one of the parts of a model, and {_PARTS}")
        return (yield from fetch(repo, name, revision))
    except ModelError:
        raise
    except Exception as error:  # no connection, no such repository or file, no permission, no room
        said = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"Model '{repo}:{wanted}' could not be had from the Hub: {said[:200].rstrip(' .:')}. Check its name and "
            "the connection, or give the path of a .gguf file."
        ) from None


def _named(repo: str, wanted: str, names: Callable[[], list[str]]) -> str:
    """The file that is meant, of those there are."""
    return wanted if wanted.lower().endswith(".gguf") else chosen(repo, wanted, names())


def _held(repo: str, wanted: str, revision: str | None) -> Path | None:
    """The file in the Hub's cache; None where it is not there."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
        held = [file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf")]
        path = folder / _named(repo, wanted, lambda: held)
    except (OSError, ValueError, ModelError):
        return None
    return path if path.is_file() else None


def chosen(repo: str, quantization: str, names: list[str]) -> str:
    """The one file of that quantization, in whatever case its name has it.

    Raises ModelError with the files there are where none or several match.
    """
    models = sorted(name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower())
    pattern = re.compile(rf"(?:^|[-./]){re.escape(quantization)}(?:[-.]\d+-of-\d+)?\.gguf", re.IGNORECASE)
    found = [name for name in models if pattern.search(name)]
    if len(found) == 1:
        return found[0]
    if found and all(map(PART.search, found)):
        raise ModelError(
            f"{repo} has the quantization {excerpt(quantization)} in {len(found)} parts alone, and {_PARTS}"
        )
    shown = found or models
    listed = ", ".join(shown[:MOST]) + (f" and {len(shown) - MOST} more" if len(shown) > MOST else "")
    how = "has several files" if found else "has no .gguf file"
    raise ModelError(
        f"{repo} {how} of the quantization {excerpt(quantization)}; there are: {listed or 'none'}. Give one as "
        f"{repo}:file.gguf."
    )
