"""What a model is known by: the hash of its weights, and that of all that decides its answers."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from kvq_core.machine.files import keep_memo, read_memo
from kvq_core.settings import settings

READ = {".json", ".jinja", ".txt", ".model", ".tiktoken"}  # endings of configuration, tokenizer and chat template
SOURCE = "kvq-gguf.json"  # beside a converted model: what it came from, which decides nothing
CONFIGURATIONS = ("config.json", "generation_config.json")
_DECIDES_NOTHING = ("transformers_version", "_name_or_path")  # of a configuration: who wrote it, and where


def stamp(place: Path) -> list[list[Any]]:
    """A model's file, or those of its folder, as they stand: another list whenever one was written, replaced, added or
    removed.

    The time of the last change of a file cannot be set back, as that of its content can.
    """
    return _stamps([place] if place.is_file() else sorted([*place.glob("*.safetensors"), *_settings(place)]))


def _stamps(found: list[Path]) -> list[list[Any]]:
    stats = ((file, file.stat()) for file in found)
    return [[str(f), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for f, s in stats]


def weights_of(folder: Path) -> str:
    """sha256 over the weight files of a folder, remembered under KVQ_HOME for as long as nothing changes there."""
    return _hash_once(folder, lambda: _digest_of_weights(folder))


def _digest_of_weights(folder: Path) -> bytes:
    return hashlib.sha256(b"".join(map(_digest, sorted(folder.glob("*.safetensors"))))).digest()


def _digest(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _hash_once(place: Path, made: Callable[[], bytes]) -> str:
    """What is remembered of a place, else in hexadecimal what is made of it now."""
    now = stamp(place)
    if (held := _remembered(place, now)) is not None:
        return held
    digest = made().hex()
    keep_memo(_memo(place), {"stamp": now, "weights": digest})
    return digest


def sha256_of(file: Path) -> str:
    """sha256 of a large file, remembered like ``weights_of``. Raises OSError where it cannot be read."""
    return _hash_once(file, lambda: _digest(file))


def remember_hash(file: Path, digest: str) -> None:
    """Spare ``sha256_of`` reading a file that was hashed while it was written."""
    keep_memo(_memo(file), {"stamp": stamp(file), "weights": digest})


def _memo(place: Path) -> Path:
    return settings().home / "hashes" / f"{hashlib.sha256(str(place.resolve()).encode()).hexdigest()}.json"


def _remembered(place: Path, now: list[list[Any]]) -> str | None:
    held = read_memo(_memo(place))
    told = held.get("weights") if isinstance(held, dict) and held.get("stamp") == now else None
    return told if isinstance(told, str) else None


def loaded_weights_hash(model: Any) -> str:
    """sha256 over the names and bytes of a model's tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)  # a scalar has no bytes to be viewed as
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def whole_of(weights: str, folder: Path) -> str:
    """sha256 over a hash of weights and every other file of a model folder that decides what the model answers:
    configuration, generation configuration, tokenizer and chat template."""
    digest = hashlib.sha256(weights.encode())
    for file in _settings(folder):
        digest.update(hashlib.sha256(str(file.relative_to(folder)).encode()).digest())
        digest.update(hashlib.sha256(_content(file)).digest())
    return digest.hexdigest()


def whole_in_memory(weights: str, model: Any, tokenizer: Any) -> str:
    """``whole_of`` of a model that came from no folder."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, held in zip(CONFIGURATIONS, (model.config, model.generation_config), strict=True):
            (folder / name).write_text(held.to_json_string())
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        return whole_of(weights, folder)


def _settings(folder: Path) -> Iterator[Path]:
    found = [*folder.glob("*"), *folder.glob("additional_chat_templates/*")]
    read = (file for file in sorted(found) if file.is_file() and (file.suffix in READ or "tokenizer" in file.name))
    return (file for file in read if file.name != SOURCE)


def _content(file: Path) -> bytes:
    data = file.read_bytes()
    if file.name not in CONFIGURATIONS:
        return data
    told = {name: value for name, value in json.loads(data).items() if name not in _DECIDES_NOTHING}
    return json.dumps(told, sort_keys=True).encode()
