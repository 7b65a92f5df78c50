"""A model's configuration where it is on this machine: nothing is loaded, converted or fetched for it."""

from pathlib import Path
from typing import Any, NamedTuple

from kvq_core.errors import KvqError
from kvq_core.models import bundled
from kvq_core.models.choice import check_offered
from kvq_core.models.gguf.folder import read_converted
from kvq_core.models.loader import in_memory
from kvq_core.models.naming import weights_bytes_of
from kvq_core.models.source import ModelSource, path_of
from kvq_core.shape import LayerKind
from kvq_core.sizing.layers import shape_of
from kvq_core.spec import DEFAULT_MODEL


class Configured(NamedTuple):
    """``config`` as its config.json has it, the folder that its weights lie in too, and the bytes of the files that
    they came from; None: not known."""

    config: dict[str, Any]
    folder: Path
    weights_bytes: int | None


def configuration_of(id: str, revision: str | None = None) -> Configured | None:
    """None of a model that is not here as a folder, or in the cache of the Hub's files."""
    from transformers import AutoConfig

    try:
        check_offered(id)
        held, folder = in_memory(id, revision), _folder(id, revision)
        if folder is None:
            return None
        config = held.model.config if held is not None else AutoConfig.from_pretrained(folder, trust_remote_code=False)
        source = ModelSource(str(folder), file=read_converted(folder))
        return Configured(config.to_dict(), folder, weights_bytes_of(source, id, folder) or None)
    except (KvqError, OSError, ValueError):
        return None


def layers_of(id: str, revision: str | None = None) -> tuple[LayerKind, ...] | None:
    """What each layer of a model holds; None where that is not known before it is loaded."""
    found = configuration_of(id, revision)
    try:
        return None if found is None else shape_of(found.config).kinds
    except KvqError:
        return None


def _folder(id: str, revision: str | None) -> Path | None:
    """Where a model's files lie, if they do."""
    from transformers.utils.hub import cached_file

    path = bundled.folder() if id == DEFAULT_MODEL else path_of(id)
    if path is None:
        found = cached_file(id, "config.json", revision=revision, local_files_only=True)
        return None if found is None else Path(found).parent
    return path if (path / "config.json").is_file() else None
