"""Files of the Hub, fetched so that a download that broke goes on where it stopped, in whichever process: the Hub's own
client begins anew in each (huggingface_hub 2.4)."""

import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvq_core.errors import ModelError
from kvq_core.machine import files
from kvq_core.models import identity
from kvq_core.settings import settings

_ETAG = re.compile(r"[\w.-]{1,200}")
_SHA256 = re.compile(r"[0-9a-f]{64}")  # the etag of a large file is the hash of what it holds


def fetched(repo: str, name: str, revision: str | None) -> Path:
    """A file in the Hub's cache. Raises what the Hub's client raises, OSError for a disk that cannot be written, and
    ModelError for one that is too small and for content that is not the Hub's."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.file_download import repo_folder_name

    try:
        told = _told(repo, name, revision)
    except Exception:  # the client says it better, or has the file and needs no connection
        told = None
    if told is not None and told.size is not None and _ETAG.fullmatch(told.etag or ""):
        cached = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
        _fetch(told, cached / "blobs" / told.etag)
    return Path(hf_hub_download(repo, name, revision=revision))


def fetched_to(repo: str, name: str, folder: Path) -> Path:
    """A file in a folder, under its name. Raises as ``fetched`` does."""
    _fetch(_told(repo, name, None), folder / name)
    return folder / name


def _told(repo: str, name: str, revision: str | None) -> Any:
    """What the Hub says of a file: its size, its etag and where it lies."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    return get_hf_file_metadata(hf_hub_url(repo, name, revision=revision))


def _fetch(told: Any, target: Path) -> None:
    """Fetch what is not there yet of a file, aside, and put it in its place."""
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.alone(settings().home / "hashes" / f"hub-{target.name}"):
        if target.exists():
            return
        with part.open("ab") as file:
            if file.tell() > told.size:
                file.truncate(0)
            _check_room(target, told.size - file.tell())
            _continue(told, file)
            file.flush()
            os.fsync(file.fileno())
        if _SHA256.fullmatch(told.etag or "") and identity.sha256_of(part) != told.etag:
            part.unlink()
            raise ModelError(f"What came of {target.name} is not what the Hub has; it was removed. Try again.")
        part.rename(target)


def _continue(told: Any, file: Any) -> None:
    """Append what is lacking; tries again a few times, as the Hub's client does."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers()
    if urlsplit(told.location).netloc != urlsplit(constants.ENDPOINT).netloc:
        headers.pop("authorization", None)  # of the Hub, and of nobody it sends us to
    http_get(told.location, file, resume_size=file.tell(), headers=headers, expected_size=told.size)


def _check_room(target: Path, needed: int) -> None:
    room = shutil.disk_usage(target.parent).free
    if needed > room:
        raise ModelError(
            f"The rest of {target.name} takes {needed / 1e9:.3g} GB, and {room / 1e9:.3g} GB of the disk of "
            f"{target.parent} are free. Make room there, or set HF_HUB_CACHE to another folder."
        )
