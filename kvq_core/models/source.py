"""What a model id stands for: the bundled model, a GGUF file, a local directory or one of the Hub; and the id by which
a local one is known on every machine."""

import os
import shutil
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from kvq_core.errors import PATH, ModelError, abbreviate, excerpt
from kvq_core.machine import files
from kvq_core.machine.progress import Progress
from kvq_core.models import bundled, identity
from kvq_core.models.gguf import hub
from kvq_core.models.gguf.fetching import reachable, unreachable
from kvq_core.models.gguf.folder import Converted, FoundFile, last, read_converted
from kvq_core.models.gguf.published import PREFIX, SECOND_MODEL, TITLE
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL

COPIES = 8  # of a directory that are remembered: one may be removed while another is at work
NAME = 255  # bytes of a file's name, which file systems take at most
# By a directory's id the places that this process was given it by: the memo of them may be out of reach.
places: dict[str, list[str]] = {}
FILE, FOLDER = PREFIX, "dir:"  # what the ids of a converted GGUF file and of a directory begin with; a hash follows


@dataclass(frozen=True)
class ModelSource:
    """Where a model is loaded from."""

    place: str  # a folder, or a Hub id
    revision: str | None = None
    file: Converted | None = None  # of a converted GGUF file


def find(id: str, revision: str | None) -> Generator[Progress, None, ModelSource]:
    """What an id stands for. A GGUF file that is not on this machine yet is downloaded, and converted, telling how far.

    Raises ModelError for ids that are none of these, or not allowed on this instance.
    """
    if (named := hub.parts(id)) is not None:
        file = yield from _converted((yield from announce(hub.download(*named, revision))))
        return ModelSource(str(file.folder), file=file)
    path = path_of(id)
    if revision is not None and (path is not None or id == DEFAULT_MODEL):
        raise ModelError(
            f"revision = {revision!r}: {excerpt(id)} is on this machine and has no revisions; leave it out."
        )
    if id == DEFAULT_MODEL:
        return ModelSource(str((yield from announce(bundled.converting(bundled.folder())))))
    if path is None:
        return ModelSource(_checked_hub_id(id), revision)
    if id.startswith(FILE):
        if (held := read_converted(path)) is None:
            known = f" It is {TITLE}: make second-model fetches and converts it." if id == SECOND_MODEL else ""
            raise ModelError(
                f"Model {excerpt(id)} is not converted on this machine: give the path of its .gguf file, once, or its "
                f"name on the Hub, such as owner/repo:file.gguf.{known}"
            )
        return ModelSource(str(path), file=held)
    if settings().public or not (path.is_file() if _is_gguf(path) else (path / "config.json").is_file()):
        raise ModelError(
            f"Model {abbreviate(repr(id), PATH)} is not a model directory or .gguf file this instance may read; "
            "give a Hub id such as 'Qwen/Qwen3-0.6B', a .gguf file, or a directory with config.json and safetensors."
        )
    if _is_gguf(path):
        file = yield from _converted(path)
        return ModelSource(str(file.folder), file=file)
    return ModelSource(str(path))


def resolve(id: str, revision: str | None) -> ModelSource:
    """``find``, to its end."""
    return last(find(id, revision))


class Files(NamedTuple):
    """The folder a model's files lie in, for a model of the Hub the commit they are of, and how transformers is to read
    them: a branch may move while it is loaded, and a Hub that cannot be reached is not to be asked."""

    folder: Path
    commit: str | None
    options: dict[str, Any]


def files_of(source: ModelSource) -> Files:
    """Where a model is read from. Raises OSError for one that cannot be had."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    options: dict[str, Any] = {"revision": source.revision, "trust_remote_code": False}
    if Path(source.place).is_dir():
        return Files(Path(source.place), None, options)
    online = reachable()
    try:
        config = cached_file(source.place, "config.json", revision=source.revision, local_files_only=not online)
    except OSError:
        if online:
            raise
        raise unreachable() from None
    commit = extract_commit_hash(config, None)
    options |= {"revision": commit or source.revision, "local_files_only": not online}
    return Files(Path(str(config)).parent, commit, options)


def path_of(id: str) -> Path | None:
    """Where on this machine the model of an id lies; None for the bundled one and for those of the Hub.

    Raises ModelError for an id that can be none.
    """
    if id.startswith(FILE):
        return _folder(id.removeprefix(FILE))
    if id.startswith(FOLDER):
        return _remembered(id)
    if hub.parts(id) is not None:
        return None
    copied = id.strip().strip("\"'")  # as file managers and shells put it into the clipboard
    plain = unquote(copied[7:].removeprefix("localhost")) if copied.startswith("file://") else copied
    path = Path(plain)
    with suppress(RuntimeError):  # of a user who is not known here
        path = path.expanduser()
    if any(len(os.fsencode(part)) > NAME for part in path.parts):
        raise ModelError(f"Model {abbreviate(repr(id), PATH)} is not a model directory or .gguf file: too long a name.")
    return path if path.is_absolute() or plain.startswith((".", "~")) or _is_gguf(path) else None


def portable(source: ModelSource, id: str, whole: str) -> str:
    """The id by which a loaded model is known on every machine: local ones by what decides their answers, of which
    ``whole`` is the hash. A directory's place is remembered, so that its runs can be made again on this machine."""
    if source.file is not None:
        return f"{FILE}{source.file.sha256[:16]}"
    if path_of(id) is None:
        return id
    told = _told(whole)
    if id.startswith(FOLDER) and told != id:
        raise ModelError(f"Model {excerpt(id)} was changed where it lies; give the path of its directory.")
    folder = str(Path(source.place).resolve())
    places[told] = [folder, *(held for held in places.get(told, []) if held != folder)][:COPIES]
    with suppress(OSError), files.alone(_memo(told)):
        files.keep_memo(_memo(told), {"folders": _folders(told)[:COPIES]})
    return told


def known_as(id: str) -> str:
    """The id that ``portable`` gives the model of an id when it is loaded, without loading it; a GGUF file that is not
    converted yet is. Raises ModelError for ids that are no model's."""
    if id.startswith((FILE, FOLDER)) or (path_of(id) is None and hub.parts(id) is None):
        return id
    source = resolve(id, None)
    folder = Path(source.place)
    return portable(source, id, "" if source.file else _whole(folder))


def title(source: ModelSource, id: str) -> str:
    """How people know the model; a path stays on its machine."""
    if source.file is not None:
        return Path(source.file.file).stem
    return id if path_of(id) is None else Path(source.place).resolve().name


def _converted(path: Path) -> Generator[Progress, None, Converted]:
    """A GGUF file's conversion, kept under the file's hash; one process converts while others wait."""
    from kvq_core.models.gguf.conversion import convert  # with it the reader of files, which most models never need
    from kvq_core.models.gguf.header import read_header

    header = read_header(path)
    digest = identity.sha256_of(path)
    target = _folder(digest[:16])
    if (found := read_converted(target)) is not None:
        return found
    try:
        with files.alone(settings().home / "hashes" / target.name):
            if (found := read_converted(target)) is None:
                for left in target.parent.glob(f".{target.name}-*"):  # by a killed process: no other is in here
                    shutil.rmtree(left, ignore_errors=True)
                yield from announce(convert(header, target))
                found = read_converted(target)
    except OSError as error:
        raise ModelError(f"KVQ_HOME = {settings().home} cannot be written: {error.strerror}.") from None
    if found is None:
        raise ModelError(f"Model file {excerpt(path.name)} was changed while it was converted. Try again.")
    return found


def conversion_progress() -> Progress | None:
    """How far the file is that is being downloaded or converted; None where none is. Does not wait."""
    return next(iter(_now.values()), None)


_now: dict[str, Progress] = {}  # of the one file that is on its way in this process


def announce(steps: Generator[Progress, None, FoundFile]) -> Generator[Progress, None, FoundFile]:
    """The same steps, which others may ask for meanwhile."""
    try:
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                found: FoundFile = end.value
                return found
            _now["step"] = step
            yield step
    finally:
        _now.clear()
        steps.close()


def _folder(hash16: str) -> Path:
    if len(hash16) != 16 or not set(hash16) <= set("0123456789abcdef"):
        raise ModelError(f"Model {excerpt(FILE + hash16)} is not valid: {FILE} is followed by 16 hexadecimal digits.")
    return settings().home / "models" / f"gguf-{hash16}"


def _memo(id: str) -> Path:
    return settings().home / "hashes" / f"{id.replace(':', '-')}.json"


def _remembered(id: str) -> Path:
    """Where it was loaded from last, of the places where it still is as it was."""
    held = [Path(folder) for folder in _folders(id)] if id.removeprefix(FOLDER).isalnum() else []
    if not held:
        raise ModelError(f"Model {excerpt(id)} was not loaded on this machine; give the path of its directory.")
    # the only one is compared where it is loaded
    return held[0] if len(held) == 1 else next((folder for folder in held if _lies_in(folder, id)), held[0])


def _lies_in(folder: Path, id: str) -> bool:
    """Whether a directory holds what it held when that id was given to it."""
    try:
        return (folder / "config.json").is_file() and _told(_whole(folder)) == id
    except (OSError, ValueError):  # removed or rewritten, also while it is read
        return False


def _told(whole: str) -> str:
    return f"{FOLDER}{whole[:16]}"


def _whole(folder: Path) -> str:
    return identity.whole_of(identity.weights_of(folder), folder)


def _folders(id: str) -> list[str]:
    """The directories that a model was loaded from, the last one first: by this process, then by others."""
    held: Any = files.read_memo(_memo(id))
    told = (
        held.get("folders", [held.get("folder")]) if isinstance(held, dict) else []
    )  # of earlier versions there is one
    found = [*places.get(id, []), *(told if isinstance(told, list) else [])]
    return list(dict.fromkeys(folder for folder in found if isinstance(folder, str)))


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf"


def _checked_hub_id(id: str) -> str:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(id)
    except HFValidationError:
        raise ModelError(f"Model id {id[:80]!r} is not valid; a Hub id looks like 'owner/name'.") from None
    return id
