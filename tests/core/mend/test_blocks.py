"""Scales of ggml's blocks: codes stay, rows are multiplied."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGML_QUANT_SIZES

from kvq_core.mend.blocks import MEANT, dequantized, errors, scaled
from kvq_core.mend.tensors import MOST_ERROR

FACTORS = np.array([1.0, 0.25, 3.7, 0.031, 1 / 30, 9.1], np.float32)
POWERS = np.array([1.0, 0.25, 4.0, 0.5, 8.0, 2.0], np.float32)
EXPONENTS = (Kind.MXFP4, Kind.NVFP4)  # scales without bits of mantissa to spare


def halves(kind: Kind) -> tuple[int, ...]:
    """Where the fp16 scales of a block begin, ggml-common.h."""
    ends = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q6_K: (208,), Kind.TQ1_0: (52,), Kind.TQ2_0: (64,)}
    return ends.get(kind, (0, 2) if kind in (Kind.Q4_1, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K) else (0,))


def scale_bytes(kind: Kind) -> set[int]:
    own = {Kind.MXFP4: range(1), Kind.NVFP4: range(4), Kind.IQ1_M: range(48, 56)}
    return set(own[kind]) if kind in own else {at + more for at in halves(kind) for more in (0, 1)}


def rows_of(kind: Kind, columns: int = 256) -> np.ndarray:
    """Rows of random weights of that type; of types that cannot be written here random codes under sensible scales."""
    draws = np.random.default_rng(3)
    plain = draws.normal(0, 0.5, (len(FACTORS), columns)).astype(np.float32)
    try:
        return np.ascontiguousarray(gguf.quantize(plain, kind)).view(np.uint8).reshape(len(plain), -1)
    except NotImplementedError:
        return random_rows(kind, columns, 0.01)


def random_rows(kind: Kind, columns: int, scale: float) -> np.ndarray:
    """Random codes under scales that all blocks share: as ``scaled`` finds them, by multiplying them to be so."""
    block, size = GGML_QUANT_SIZES[kind]
    draws = np.random.default_rng(4)
    raw = draws.integers(0, 256, (len(FACTORS), columns // block, size), dtype=np.uint8)
    half = np.array([scale], np.float16).view(np.uint8)
    if kind == Kind.IQ1_M:
        word = int(np.array([scale], np.float16).view(np.uint16)[0])
        words = raw[..., 48:].view(np.uint16)
        words &= 0x0FFF
        words |= np.array([(word >> shift & 0xF) << 12 for shift in (0, 4, 8, 12)], np.uint16)
    elif kind == Kind.MXFP4:
        raw[..., 0] = 120
    elif kind == Kind.NVFP4:
        raw[..., :4] = 0x38
    else:
        for at in halves(kind):
            raw[..., at : at + 2] = half
    return raw.reshape(len(FACTORS), -1)


@pytest.mark.parametrize("kind", sorted(MEANT), ids=lambda kind: kind.name)
def test_rows_are_multiplied_and_codes_stay(kind: Kind) -> None:
    raw, factors = rows_of(kind), POWERS if kind in EXPONENTS else FACTORS
    new = scaled(raw, kind, factors)
    wanted = dequantized(raw, kind) * factors[:, None]
    assert np.linalg.norm(wanted, axis=1).min() > 0
    apart = np.linalg.norm(dequantized(new, kind) - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert apart.max() < MOST_ERROR
    assert np.allclose(errors(raw, new, kind, factors), apart)
    assert np.array_equal(new[0], raw[0])  # its factor is 1
    if kind not in (Kind.F32, Kind.F16, Kind.BF16):
        size = GGML_QUANT_SIZES[kind][1]
        changed = set(np.flatnonzero((new != raw).reshape(-1, size).any(0)).tolist())
        assert changed and changed <= scale_bytes(kind)
        if kind == Kind.IQ1_M:  # the lower bits of these words are scales of groups
            assert np.array_equal(
                (new ^ raw).reshape(-1, size)[:, 48:].view(np.uint16) & 0x0FFF,
                np.zeros((len(new) * raw.shape[1] // size, 4)),
            )


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q6_K], ids=lambda kind: kind.name)
def test_subnormal_scales_are_bounded_or_told(kind: Kind) -> None:
    """Rows of sd .02, 256 wide: d is some 1.5e-5 of Q6_K, among fp16's last steps."""
    raw = random_rows(kind, 256, 1.5e-5)
    few = scaled(raw, kind, np.full(len(raw), 0.25, np.float32))
    assert errors(raw, few, kind, np.full(len(raw), 0.25, np.float32)).max() < MOST_ERROR
    much = np.full(len(raw), 1 / 300, np.float32)
    assert errors(raw, scaled(raw, kind, much), kind, much).max() > MOST_ERROR  # such a tensor becomes F16


@pytest.mark.parametrize("kind", EXPONENTS, ids=lambda kind: kind.name)
def test_a_factor_that_exponents_cannot_hold_is_told(kind: Kind) -> None:
    raw, factors = rows_of(kind), np.full(len(FACTORS), 1.4, np.float32)
    assert errors(raw, scaled(raw, kind, factors), kind, factors).min() > MOST_ERROR


def test_a_type_without_scales_is_refused() -> None:
    with pytest.raises(ValueError, match="I8"):
        scaled(np.zeros((1, 32), np.uint8), Kind.I8, np.ones(1, np.float32))
