"""The second model of tests, claims and benchmarks: another family than the bundled one, with biases on its keys.

``python -m kvq_core.cli.second_model`` finds its file or fetches it, checks and converts it, and prints its id.
"""

from collections.abc import Generator
from pathlib import Path

from kvq_core.errors import ModelError
from kvq_core.machine.progress import Progress
from kvq_core.models import identity
from kvq_core.models.gguf.fetching import FetchedFile, fetched_to
from kvq_core.models.gguf.folder import read_converted
from kvq_core.models.gguf.published import NAME, REPO, SECOND_MODEL, SHA256, SIZE
from kvq_core.models.source import find, path_of
from kvq_core.settings import settings


def is_converted() -> bool:
    """Whether ``SECOND_MODEL`` can be loaded at once."""
    folder = path_of(SECOND_MODEL)
    return folder is not None and read_converted(folder) is not None


def local_file() -> Path | None:
    """The model's file where it lies on this machine: KVQ_SECOND_MODEL, or the downloads of KVQ_HOME.

    Raises ModelError where KVQ_SECOND_MODEL names no file, or the file is another one.
    """
    given, kept = settings().second_model, settings().home / "downloads" / NAME
    if given is not None and not given.is_file():
        raise ModelError(f"KVQ_SECOND_MODEL = {given} is no file; give the path of {NAME}, or leave it out.")
    file = given or kept
    return _checked(file) if file.is_file() else None


def download_second() -> FetchedFile:
    """The file from the Hub, in the downloads of KVQ_HOME, telling how far it is; an interrupted download goes on where
    it stopped.

    Raises ModelError where it cannot be had.
    """
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # it warns of each try, and the last error says it all
    try:
        return _checked((yield from fetched_to(REPO, NAME, settings().home / "downloads")))
    except ModelError:
        raise
    except Exception as error:  # no connection, no room, no permission
        said = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"The second model could not be had from the Hub: {said[:200].rstrip(' .:')}. Put {NAME} of {REPO} into "
            f"{settings().home / 'downloads'}, or name it with KVQ_SECOND_MODEL=file."
        ) from None


def prepare_second() -> Generator[Progress, None, None]:
    """Find or fetch it, check and convert it; raises ModelError where it cannot be had."""
    if not is_converted():
        file = local_file() or (yield from download_second())
        yield from find(str(file.resolve()), None)


def _checked(file: Path) -> Path:
    size = file.stat().st_size
    digest = identity.sha256_of(file) if size == SIZE else None
    if digest == SHA256:
        return file
    found = f"{size:,} bytes, not {SIZE:,}" if digest is None else f"the sha256 {digest}, not {SHA256}"
    raise ModelError(f"{file} is not {NAME} of {REPO}: it has {found}. Put the published file there.")
