"""Files of the Hub, fetched so that a download that broke goes on where it stopped, in whichever process: the Hub's own
client begins anew in each (huggingface_hub 2.4)."""

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kvq_core.errors import ModelError
from kvq_core.machine import files
from kvq_core.machine.progress import Progress, downloading
from kvq_core.models import identity
from kvq_core.models.gguf.folder import WEIGHTS, Steps
from kvq_core.settings import settings

_ETAG = re.compile(r"[\w.-]{1,200}")
_SHA256 = re.compile(r"[0-9a-f]{64}")  # the etag of a large file is the hash of what it holds
_TRIES = 5  # without a byte more, as the Hub's client has it
_CONNECT = 5  # seconds that the Hub has to take a connection
FetchedFile = Generator[Progress, None, Path]


def reachable() -> bool:
    """Whether the Hub takes a connection, or a proxy stands between: its client would try for half a minute, a file."""
    from huggingface_hub import constants

    place = urlsplit(constants.ENDPOINT)
    host, port = place.hostname or "", place.port or (80 if place.scheme == "http" else 443)
    behind_proxy = getproxies().keys() & {place.scheme, "all"} and not proxy_bypass(host)
    if constants.HF_HUB_OFFLINE or behind_proxy:
        return not constants.HF_HUB_OFFLINE
    try:
        socket.create_connection((host, port), _CONNECT).close()
    except OSError:
        return False
    return True


def unreachable() -> OSError:
    """Of what is neither here nor to be had."""
    from huggingface_hub import constants

    return ConnectionError(f"it is not on this machine, and {constants.ENDPOINT} cannot be reached")


def fetch(repo: str, name: str, revision: str | None) -> FetchedFile:
    """A file in the Hub's cache, telling bytes that came and all of them. Raises what the Hub's client raises, OSError
    for a disk that cannot be written, and ModelError for one that is too small and for content that is not the Hub's.
    """
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.file_download import repo_folder_name

    held = try_to_load_from_cache(repo, name, revision=revision)
    if isinstance(held, str) and not reachable():
        return Path(held)
    try:
        told = _told(repo, name, revision)
    except Exception:  # the client says it better, or has the file and needs no connection
        told = None
    if told is not None and told.size is not None and _ETAG.fullmatch(told.etag or ""):
        cached = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
        yield from _fetch(told, cached / "blobs" / told.etag)
    return Path(hf_hub_download(repo, name, revision=revision))


def fetched_weights(repo: str, revision: str | None, check: Callable[[], object]) -> Steps:
    """The weights of a model into the Hub's cache, from which transformers takes them: it would fetch them without a
    word. What cannot be had is left for it to tell. ``check`` is called before anything large comes. Raises ModelError
    as that does, for a disk that is too small, and for content that is not the Hub's."""
    try:
        if not (names := _lacking(repo, revision)):
            return
        check()
        tolds = {name: _told(repo, name, revision) for name in names}
        total, before = sum(told.size for told in tolds.values()), 0
        for name, told in tolds.items():
            for step in fetch(repo, name, revision):
                yield downloading(before + step.done, total)
            before += told.size
    except ModelError:
        raise
    except Exception:  # no connection, no such repository or file, no permission
        return


def _lacking(repo: str, revision: str | None) -> list[str]:
    """The files of a model's weights that are not in the Hub's cache."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    if isinstance(try_to_load_from_cache(repo, WEIGHTS, revision=revision), str) or not reachable():
        return []
    try:
        _told(repo, WEIGHTS, revision)
        names = [WEIGHTS]
    except EntryNotFoundError:
        index = json.loads(Path(hf_hub_download(repo, f"{WEIGHTS}.index.json", revision=revision)).read_bytes())
        names = sorted(set(index["weight_map"].values()))
    return [name for name in names if not isinstance(try_to_load_from_cache(repo, name, revision=revision), str)]


def fetched_to(repo: str, name: str, folder: Path) -> FetchedFile:
    """A file in a folder, under its name. Raises as ``fetch`` does."""
    yield from _fetch(_told(repo, name, None), folder / name)
    return folder / name


def _told(repo: str, name: str, revision: str | None) -> Any:
    """What the Hub says of a file: its size, its etag and where it lies."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    return get_hf_file_metadata(hf_hub_url(repo, name, revision=revision))


def _fetch(told: Any, target: Path) -> Steps:
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
            yield from _continue(told, file)
            file.flush()
            os.fsync(file.fileno())
        if _SHA256.fullmatch(told.etag or "") and identity.sha256_of(part) != told.etag:
            part.unlink()
            raise ModelError(f"What came of {target.name} is not what the Hub has; it was removed. Try again.")
        part.rename(target)


def _continue(told: Any, file: Any) -> Steps:
    """Append what is lacking; where the connection breaks, tries again a few times, anew after each byte that came."""
    tries = 0
    while (begun := file.tell()) < told.size:
        try:
            yield from _streamed(told, file)
        except OSError:  # what the Hub answers, and the disk: another try changes nothing
            raise
        except Exception:  # of the connection
            tries = 1 if file.tell() > begun else tries + 1
            if tries > _TRIES:
                raise
            time.sleep(1)


def _streamed(told: Any, file: Any) -> Steps:
    """Append what one connection brings."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

    headers = build_hf_headers()
    if urlsplit(told.location).netloc != urlsplit(constants.ENDPOINT).netloc:
        headers.pop("authorization", None)  # of the Hub, and of nobody it sends us to
    if begun := file.tell():
        headers["Range"] = f"bytes={begun}-"
    options: dict[str, Any] = {
        "headers": headers,
        "timeout": constants.HF_HUB_DOWNLOAD_TIMEOUT,
        "retry_on_exceptions": (),
    }
    with http_stream_backoff("GET", told.location, retry_on_status_codes=(408, 429), **options) as response:
        hf_raise_for_status(response)
        if begun and response.status_code == 200:  # all of it, whatever was asked for
            file.truncate(0)
        for chunk in response.iter_bytes(chunk_size=constants.DOWNLOAD_CHUNK_SIZE):
            file.write(chunk)
            yield downloading(file.tell(), told.size)
    if file.tell() != told.size:
        raise OSError(f"{file.tell():,} bytes came, and the Hub says {told.size:,}")


def _check_room(target: Path, needed: int) -> None:
    room = shutil.disk_usage(target.parent).free
    if needed > room:
        raise ModelError(
            f"The rest of {target.name} takes {needed / 1e9:.3g} GB, and {room / 1e9:.3g} GB of the disk of "
            f"{target.parent} are free. Make room there, or set HF_HUB_CACHE to another folder."
        )
