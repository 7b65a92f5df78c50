"""The weights of a GGUF file: found under transformers' names, dequantized, and written as safetensors.

Tensors are dequantized one after the other and written as they come, so that the memory a conversion takes is that of
the largest one. transformers' own reader takes ten times as long and holds the model twice; the weights are the same
to the bit.
"""

import hashlib
import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import IO, Any

import gguf
import numpy as np

from kvq_core.errors import ModelError, excerpt
from kvq_core.machine.progress import Progress, converting
from kvq_core.models.gguf.configuration import refusal
from kvq_core.models.gguf.families import FAMILIES
from kvq_core.models.gguf.family import BLOCK, Family
from kvq_core.models.gguf.header import Header, TensorEntry
from kvq_core.models.gguf.scaling import FREQUENCIES

# of layers with experts: all experts' matrices, or biases, of one kind in one tensor
_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?")
_PER_TOKEN = (
    "token_embd.weight",
    "output.weight",
    "per_layer_token_embd.weight",
)  # the largest tensors; nothing changes the order of their rows
_CHUNK = 1 << 24  # weights of those that are dequantized at a time
Written = Generator[Progress, None, str]


@dataclass(frozen=True)
class TargetTensor:
    """A tensor as transformers has it: its shape, and those of the file it is made of. ``experts``: of them all."""

    shape: tuple[int, ...]
    entries: tuple[TensorEntry, ...]
    experts: bool = False

    @property
    def numel(self) -> int:
        return prod(self.shape)


def check_kinds(header: Header) -> None:
    """Raises ModelError for types of weights that cannot be dequantized."""
    for kind in {entry.kind for entry in header.entries}:
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            raise refusal(header, f"it holds tensors of type {kind.name}, which cannot be dequantized here") from None


def frequencies(header: Header) -> np.ndarray | None:
    """The numbers by which the file divides RoPE's frequencies (head_dim / 2), where it has some."""
    entry = next((entry for entry in header.entries if entry.name == FREQUENCIES), None)
    return None if entry is None else _read(header.path, entry)


def named(header: Header, model: Any) -> dict[str, TargetTensor]:
    """Tensors by transformers' names for them.

    Raises ModelError where the file's are not those, in name and shape, that the configuration asks for.
    """
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    names = get_gguf_hf_weights_map(model, TensorProcessor(), header.architecture)
    family = FAMILIES[header.architecture]
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    found = _experts(header, shapes)
    taken = {entry.name for made in found.values() for entry in made.entries}
    for entry in (entry for entry in header.entries if entry.name not in taken):
        if family.unused(entry.name, model.config):
            continue
        name = names.get(entry.name) or names.get(entry.name.removesuffix(".weight")) or _named(family, entry.name)
        if name is None and entry.name == FREQUENCIES:
            continue
        if entry.name.startswith("rope_factors_"):
            raise refusal(header, "its RoPE (longrope) changes with the length of the text, which is not read here")
        if name is None or name not in shapes:
            raise refusal(header, f"{header.architecture} has no tensor {excerpt(entry.name)}")
        if _apart_from_ones(shapes[name]) != _apart_from_ones(entry.shape):
            raise _misshapen(header, entry, shapes[name])
        found[name] = TargetTensor(shapes[name], (replace(entry, shape=shapes[name]),))
    if lacking := sorted(shapes.keys() - found.keys()):
        raise refusal(header, f"it lacks {lacking[0]}" + (f" and {len(lacking) - 1} more" if lacking[1:] else ""))
    return dict(sorted(found.items()))


def _named(family: Family, name: str) -> str | None:
    """A tensor of a layer whose name is the architecture's own."""
    block = BLOCK.match(name)
    known = None if block is None else family.names.get(name[block.end() - 1 :])
    return None if block is None or known is None else f"model.layers.{block[1]}{known}"


def _experts(header: Header, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TargetTensor]:
    """The tensors that hold all experts of a layer. Raises ModelError where the file's have other shapes."""
    expert, held = FAMILIES[header.architecture].expert, {entry.name: entry for entry in header.entries}
    found: dict[str, TargetTensor] = {}
    for name, shape in shapes.items():
        told = _EXPERTS.fullmatch(name)
        if expert is None or told is None:
            continue
        kinds = ("gate", "up") if told[2] == "gate_up" else ("down",)
        names = [f"blk.{told[1]}.ffn_{kind}_exps.{'bias' if told[3] else 'weight'}" for kind in kinds]
        if not held.keys() >= set(names):
            continue  # what is lacking is told with all else that is
        entries = [held[name] for name in names]
        blank = [np.broadcast_to(np.int8(0), entry.shape[1:]) for entry in entries]
        alike = len({entry.shape for entry in entries}) == 1
        if not alike or (entries[0].shape[0], *expert(blank).shape) != shape:
            raise _misshapen(header, entries[0], shape)
        found[name] = TargetTensor(shape, tuple(entries), experts=True)
    return found


def _misshapen(header: Header, entry: TensorEntry, shape: tuple[int, ...]) -> ModelError:
    told = f"{list(entry.shape)}, and its header asks for {list(shape)}"
    return refusal(header, f"tensor {excerpt(entry.name)} has the shape {told}")


def _apart_from_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of a tensor without those of one, which llama.cpp leaves out."""
    return tuple(size for size in shape if size != 1)


def write(header: Header, config: Any, entries: dict[str, TargetTensor], file: IO[bytes]) -> Written:
    """The weights as safetensors, byte for byte as ``save_pretrained`` would write them; yields how many of how many
    are done and returns the file's sha256.

    Raises ModelError for weights that are no numbers, OSError where they cannot be written.
    """
    digest, total = hashlib.sha256(), sum(entry.numel for entry in entries.values())
    for data, done in _pieces(header, config, entries):
        file.write(data)
        digest.update(data)
        yield converting(done, total)
    return digest.hexdigest()


def _pieces(header: Header, config: Any, entries: dict[str, TargetTensor]) -> Iterator[tuple[Any, int]]:
    """The bytes of a safetensors file and, after each piece, how many weights are done."""
    yield _described(entries), 0
    done = 0
    for made in entries.values():
        for weights in _numbers(header, made, config):
            if not np.isfinite(weights).all():
                name = excerpt(made.entries[0].name)
                raise refusal(header, f"tensor {name} holds NaN or infinity: its weights are damaged")
            done += weights.size
            yield np.ascontiguousarray(weights, np.float32).data.cast("B"), done


def _numbers(header: Header, made: TargetTensor, config: Any) -> Iterator[np.ndarray]:
    """The numbers of a tensor, in parts."""
    family = FAMILIES[header.architecture]
    if not made.experts:
        for part in _parts(made.entries[0]):
            yield family.weights(part.name, _read(header.path, part), config)
        return
    assert family.expert is not None
    for number in range(made.shape[0]):
        yield family.expert([_read(header.path, _expert(entry, number)) for entry in made.entries])


def _expert(entry: TensorEntry, number: int) -> TensorEntry:
    """Of all experts' tensor the part that is one's."""
    size = entry.size // entry.shape[0]
    return replace(entry, shape=entry.shape[1:], start=entry.start + number * size, size=size)


def _described(entries: dict[str, TargetTensor]) -> bytes:
    """What a safetensors file begins with: names, shapes and places."""
    ends = np.cumsum([4 * entry.numel for entry in entries.values()]).tolist()
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, entry), begin, end in zip(entries.items(), [0, *ends], ends, strict=False):
        described[name] = {"dtype": "F32", "shape": entry.shape, "data_offsets": [begin, end]}
    head = json.dumps(described, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def _parts(entry: TensorEntry) -> Iterator[TensorEntry]:
    """A tensor in parts that memory holds easily, cut between rows."""
    if entry.name not in _PER_TOKEN:
        yield entry
        return
    rows, width = entry.shape
    step, held = max(1, _CHUNK // width), entry.size // rows
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        yield TensorEntry(entry.name, (count, width), entry.kind, entry.start + begin * held, count * held)


def _read(path: Path, entry: TensorEntry) -> np.ndarray:
    """The float32 numbers of a tensor."""
    raw = np.fromfile(path, np.uint8, entry.size, offset=entry.start)
    if raw.size != entry.size:
        raise ModelError(f"Model file {excerpt(path.name)} was changed while it was read. Try again.")
    held = raw.reshape(-1, entry.size * entry.shape[-1] // entry.numel)
    return gguf.dequantize(held, entry.kind).reshape(entry.shape)
