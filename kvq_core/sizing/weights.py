"""Bytes of a model's weights: of its files where they are there, else of the weights its configuration asks for."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kvq_core.errors import ModelError
from kvq_core.frozen import Frozen
from kvq_core.shape import ModelShape
from kvq_core.sizing.layers import Config, families

OF_FILES = "of its files"
FILES = ("*.safetensors", "pytorch_model*.bin", "*.gguf")


class Parameters(NamedTuple):
    """Numbers of weights: outside of experts, and in experts."""

    dense: int
    experts: int


Count = Callable[[Config], Parameters]  # of a configuration; raises ModelError where they are not known


class Weights(Frozen):
    """``nbytes``, None where they are not known, and how they are."""

    nbytes: int | None
    how: str


def weights_of(folder: Path, config: Config, shape: ModelShape, count: Count, known: int | None = None) -> Weights:
    """Of a folder with a configuration, with weights or without, which ``count`` tells then. ``known``: bytes of the
    files that they came from, where the folder holds them converted."""
    if known is not None:
        return Weights(nbytes=known, how=OF_FILES)
    for pattern in FILES:
        if files := sorted(folder.glob(pattern)):
            return Weights(nbytes=sum(file.stat().st_size for file in files), how=OF_FILES)
    return count_weights(config, shape, count)


def weights_in_memory(known: int | None, numel: int) -> Weights:
    """Of a model that can be run: as the files hold them that it came from, or all ``numel`` of them in 16 bits."""
    if known:
        return Weights(nbytes=known, how=OF_FILES)
    return Weights(nbytes=2 * numel, how=f"{numel / 1e9:.3g}B weights in 16 bits")


def count_weights(config: Config, shape: ModelShape, count: Count) -> Weights:
    """From a configuration alone, all of those that ``count`` finds."""
    try:
        dense, experts = count(config)
    except ModelError as error:
        return Weights(nbytes=None, how=f"not known from this configuration ({error})")
    dense_bits, expert_bits, how = _bits(config, shape)
    nbytes = round((dense * dense_bits + experts * expert_bits) / 8)
    said = f"about {(dense + experts) / 1e9:.3g}B weights {how}"
    if any(config.get(name) for name in ("vision_config", "audio_config")):
        said += ", of the language model alone"
    return Weights(nbytes=nbytes, how=said)


def _bits(config: Config, shape: ModelShape) -> tuple[float, float, str]:
    """Of a weight, of an expert's weight, and in words."""
    given, plain = config.get("quantization_config") or {}, 8.0 * shape.dtype_bytes
    if (named := families()["quantized"].get(str(given.get("quant_method")))) is not None:
        return named.get("other", plain), named["experts"], named["how"].format(dtype=shape.dtype)
    if isinstance(given.get("bits"), int):  # GPTQ, AWQ: a scale and a zero-point for a group
        width = given["bits"] + 32 / (given.get("group_size") or 128)
        return width, width, f"at {given['bits']} bits"
    return plain, plain, f"in {shape.dtype}"
