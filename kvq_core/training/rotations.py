"""Rotations of keys and values from texts, for OSCAR: the covariances of what a model's attention reads there."""

import io
from pathlib import Path

import torch
from torch import Tensor

from kvq_core.codebooks.files import Codebook, Target
from kvq_core.errors import KvqError
from kvq_core.machine import files
from kvq_core.methods.formats.fitted_rotation import covariances, engine_file, fitted_rotation
from kvq_core.methods.formats.oscar import Oscar
from kvq_core.methods.formats.rotated_int2 import RotatedInt2
from kvq_core.training.collect import AttendedSamples


def fit_rotations(train: AttendedSamples, held_out: AttendedSamples, target: Target) -> dict[str, Tensor]:
    """``key_rotation``, ``key_eigenvalues`` and the same of values, (layers, d, d) and (layers, d) float32; errors of
    both tensors' texts by layer, (layers, 2) float64: ||x - x'||^2 / ||x||^2 of keys and of values."""
    rows = train.keys.shape[1] * train.keys.shape[2]
    usual, errors, found = Oscar(), dict[str, list[Tensor]](), dict[str, Tensor]()
    of_both = covariances(train.keys, train.values, train.gram if target == "qqt" else None)
    clips = {"key": usual.clip_key, "value": usual.clip_value}
    for (kind, clip), covariance in zip(clips.items(), of_both, strict=True):
        rotation, eigenvalues = fitted_rotation(covariance, rows)
        found |= {f"{kind}_rotation": rotation, f"{kind}_eigenvalues": eigenvalues}
        for name, texts in (("train_error", train), ("held_out_error", held_out)):
            x = texts.keys if kind == "key" else texts.values
            errors.setdefault(name, []).append(_errors(x, rotation, clip))
    return found | {name: torch.stack(each, -1) for name, each in errors.items()}


def _errors(x: Tensor, rotation: Tensor, clip: float) -> Tensor:
    """Of x (layers, kv_heads, tokens, d), layer by layer, (layers,) float64."""
    found = []
    for layer, own in zip(x[:, None].float(), rotation[:, None], strict=True):
        codec = RotatedInt2(clip=clip, kept=own)
        read = codec.decode(codec.encode(layer, 0))
        found.append((read - layer).double().square().sum() / layer.double().square().sum())
    return torch.stack(found)


def export(book: Codebook, place: Path) -> list[Path]:
    """Write kept rotations as the two files, of keys and of values, that SGLang reads beside the model; their paths.

    Raises KvqError for codebooks that are no rotations, and where nothing can be written.
    """
    if book.info.kind != "rotations":
        raise KvqError(f"{book.info.file_name} holds {book.info.kind}; only rotations are exported.")
    tensors, written = book.tensors(), []
    for kind in ("key", "value"):
        objective = f"{book.info.settings['target']}_{kind}s"
        rotation, eigenvalues = tensors[f"{kind}_rotation"], tensors[f"{kind}_eigenvalues"]
        data = io.BytesIO()
        torch.save(engine_file(rotation, eigenvalues, tuple(range(book.info.layers)), objective), data)
        path = place / f"{book.info.file_name}.{kind}s.pt"
        try:
            files.write(path, data.getvalue())
        except OSError as error:
            raise KvqError(f"{path} cannot be written: {error.strerror}. Give another folder with --to.") from None
        written.append(path)
    return written
