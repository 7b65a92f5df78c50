"""Rows of a tensor as a file holds them, multiplied by a factor each: blocks' scales change, and no code.

Where the scales lie: ggml-common.h. A row whose type has no scale fine enough is told by its error.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGML_QUANT_SIZES

_HALVES: dict[Kind, tuple[int, ...]] = {  # bytes of a block at which its fp16 scales begin
    **dict.fromkeys((Kind.Q4_0, Kind.Q5_0, Kind.Q8_0, Kind.IQ1_S, Kind.IQ4_NL, Kind.IQ4_XS), (0,)),
    **dict.fromkeys((Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ3_XXS, Kind.IQ3_S), (0,)),
    **dict.fromkeys((Kind.Q4_1, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K), (0, 2)),
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q6_K: (208,),
    Kind.TQ1_0: (52,),
    Kind.TQ2_0: (64,),
}
_FLOATS = (Kind.F32, Kind.F16, Kind.BF16)
_SPREAD, _PLACES = 48, np.array([12, 8, 4, 0], np.uint16)  # IQ1_M: a scale over the top bits of four words
MEANT = tuple({*_HALVES, *_FLOATS, Kind.IQ1_M, Kind.MXFP4, Kind.NVFP4})


def scaled(raw: np.ndarray, kind: Kind, factors: np.ndarray) -> np.ndarray:
    """Rows (rows, bytes) as they lie in a file, each times its factor (rows,). Raises ValueError for other types."""
    if kind in _FLOATS:
        return floats_as(dequantized(raw, kind) * factors[:, None], kind)
    rows, size = len(raw), GGML_QUANT_SIZES[kind][1]
    blocks = raw.reshape(rows, -1, size).copy()
    by = factors.astype(np.float32)[:, None]
    if kind in _HALVES:
        for at in _HALVES[kind]:
            held = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]
            blocks[..., at : at + 2] = _half(held.astype(np.float32) * by)[..., None].view(np.uint8)
    elif kind == Kind.IQ1_M:
        words = np.ascontiguousarray(blocks[..., _SPREAD:]).view(np.uint16)
        parts = (words & 0xF000) >> _PLACES
        held = np.bitwise_or.reduce(parts, -1).view(np.float16).astype(np.float32)
        spread = (_half(held * by).view(np.uint16)[..., None] << _PLACES) & 0xF000
        blocks[..., _SPREAD:] = ((words & 0x0FFF) | spread).astype(np.uint16).view(np.uint8)
    elif kind in (Kind.MXFP4, Kind.NVFP4):
        _exponents(blocks, kind, factors)
    else:
        raise ValueError(f"rows of {kind.name} have no scales that are known")
    return blocks.reshape(raw.shape)


def errors(raw: np.ndarray, new: np.ndarray, kind: Kind, factors: np.ndarray) -> np.ndarray:
    """How far each of the new rows is from the old one times its factor, in parts of that (rows,)."""
    wanted = dequantized(raw, kind) * factors[:, None]
    size = np.linalg.norm(wanted, axis=1)
    apart: np.ndarray = np.linalg.norm(dequantized(new, kind) - wanted, axis=1) / np.maximum(
        size, np.finfo(np.float32).tiny
    )
    return apart


def dequantized(raw: np.ndarray, kind: Kind) -> np.ndarray:
    """float32 (rows, columns) of rows as they lie in a file."""
    found: np.ndarray = gguf.dequantize(np.ascontiguousarray(raw), kind).reshape(len(raw), -1)
    return found


def floats_as(x: np.ndarray, kind: Kind) -> np.ndarray:
    """Numbers as bytes (rows, bytes) of a type without blocks, each rounded to the nearest."""
    return np.ascontiguousarray(gguf.quantize(x.astype(np.float32), kind)).view(np.uint8).reshape(len(x), -1)


def _half(x: np.ndarray) -> np.ndarray:
    """In fp16, the largest it has where that is passed."""
    most = np.finfo(np.float16).max
    return np.clip(x, -most, most).astype(np.float16)


def _exponents(blocks: np.ndarray, kind: Kind, factors: np.ndarray) -> None:
    """Move the exponents of scales without mantissa bits to spare, in place: exact for powers of two within range."""
    by = np.round(np.log2(np.abs(factors))).astype(np.int16)[:, None, None]
    if kind == Kind.MXFP4:  # e8m0
        blocks[..., :1] = np.clip(blocks[..., :1].astype(np.int16) + by, 0, 254)
        return
    held = blocks[..., :4].astype(np.int16)  # ue4m3: 4 bits of exponent, 3 of mantissa
    moved = np.where(held >> 3 > 0, held + (by << 3), held)
    blocks[..., :4] = np.clip(moved, 0, 0x7E)
