"""A GGUF file's model as a folder that transformers reads: float32 safetensors, configuration and tokenizer."""

import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from kvq_core.errors import ModelError
from kvq_core.machine import files
from kvq_core.machine.memory import free_bytes
from kvq_core.machine.progress import Progress
from kvq_core.models import identity
from kvq_core.models.gguf import weights
from kvq_core.models.gguf.configuration import check_architecture, configuration, end_ids, refusal
from kvq_core.models.gguf.folder import VERSION, WEIGHTS, Steps, file_sha256
from kvq_core.models.gguf.header import Header
from kvq_core.models.gguf.vocabulary import check_vocabulary, tokenizer


def convert(header: Header, target: Path, pre: str | None = None) -> Steps:
    """Convert a file into the folder ``target``, in place of what lies there. Written aside and renamed: whoever is
    killed leaves nothing, and a reader finds a whole folder or none. ``pre``: see ``vocabulary.tokenizer``.

    Raises ModelError in one line: an architecture, a key, a type or a shape that is not read here, weights that are no
    numbers, a disk or a memory that cannot hold the model.
    """
    try:
        model, entries = planned(header)
        _check_room(header, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        files.sweep(target.parent, f".{target.name}-*")
        with files.folder_aside(target.parent, target.name) as new:
            digest = yield from _fill(header, model, entries, new, pre)
            files.sync_folder(new)
            shutil.rmtree(target, ignore_errors=True)
            new.rename(target)
            files.sync(target.parent)
        identity.remember_hash(target / WEIGHTS, digest)
    except ModelError:
        raise
    except OSError as error:
        room = f"It takes {4 * header.numel / 1e9:.1f} GB: make room there, or set KVQ_HOME to another folder"
        raise refusal(header, f"{target}: {error.strerror}. {room}") from None
    except Exception as error:  # whatever other people's files make their readers raise
        raise refusal(header, " ".join(str(error).split())[:200] or type(error).__name__) from None


def planned(header: Header) -> tuple[Any, dict[str, weights.TargetTensor]]:
    """transformers' model, with shapes and no numbers, and the file's tensors by its names: everything about a file
    that can be judged before a weight is read."""
    from transformers import AutoModelForCausalLM

    check_architecture(header)
    check_vocabulary(header)
    weights.check_kinds(header)
    config = configuration(header, weights.frequencies(header))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    ends = end_ids(header)
    model.generation_config.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)
    return model, weights.named(header, model)


def _check_room(header: Header, target: Path) -> None:
    """Raises ModelError where the disk of ``target`` cannot hold the converted weights, or memory not load them."""
    place = next(folder for folder in (target, *target.parents) if folder.exists())
    needed, room, free = 4 * header.numel, shutil.disk_usage(place).free, free_bytes()
    if needed > room:
        raise refusal(
            header,
            f"converted it takes {needed / 1e9:.3g} GB, and {room / 1e9:.3g} GB of the disk are free. Make room there, "
            "or set KVQ_HOME to another folder",
        )
    if needed > free and not torch.cuda.is_available():
        raise refusal(
            header,
            f"it needs {needed / 1e9:.3g} GB for its weights in float32, and {free / 1e9:.3g} GB of memory are free. "
            "Pick a smaller model",
        )


def _fill(
    header: Header, model: Any, entries: dict[str, weights.TargetTensor], folder: Path, pre: str | None
) -> Generator[Progress, None, str]:
    """All files of a model, the last of which says what they came from; returns the sha256 of the weights."""
    tokenizer(header, pre).save_pretrained(folder)
    model.config.architectures, model.config.dtype = [type(model).__name__], torch.float32
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    held = {file.name: file_sha256(file) for file in folder.iterdir()}
    with (folder / WEIGHTS).open("wb") as stream:
        digest = yield from weights.write(header, model.config, entries, stream)
    told = {"version": VERSION, "sha256": identity.sha256_of(header.path), "file": header.path.name, "mix": header.mix}
    told["size"] = header.path.stat().st_size
    files.keep_memo(folder / identity.SOURCE, {**told, "files": {**held, WEIGHTS: digest}})
    return digest
