"""llama.cpp's and ik_llama.cpp's blocks and bfloat16: by hand, byte by byte, beside gguf's own code, and against the
errors that were measured of them."""

import math
import struct

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvq_core.methods import Codec, Method, Prompt, make
from kvq_core.methods.formats.planes import pack_planes, unpack_planes

BYTES = {"q8_0": 34, "q6_0": 26, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}
KVALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
f32 = np.float32


def codecs(method: Method, head_dim: int) -> tuple[Codec, Codec]:
    x = torch.zeros(1, 1, 1, head_dim)
    fitted = method.fit(Prompt(x, x, None))
    assert fitted.key is not None and fitted.value is not None
    return fitted.key, fitted.value


def plain(name: str, head_dim: int = 64) -> Codec:
    """Without a rotation."""
    return codecs(make(name, rotate=False), head_dim)[0]


def stored(codec: Codec, x: Tensor) -> Tensor:
    return codec.decode(codec.encode(x, 0))


def blocks(count: int, seed: int) -> Tensor:
    """(1, 1, count, 32) of all sizes, some with ties, constants, zeros."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 1, count, 32, generator=g) * torch.logspace(-4, 3, count)[:, None]
    x[0, 0, 0], x[0, 0, 1], x[0, 0, 2] = 0, 0.375, -2.5
    x[0, 0, 3, :2] = torch.tensor([5e3, -5e3])
    x[0, 0, 4] = torch.arange(32) % 5 - 2.0
    x[0, 0, 5] = 0
    x[0, 0, 5, 7] = -3.0
    return x


# --- a second implementation: one block, element by element, to ggml's bytes and back -------------------------------


def largest(x: np.ndarray) -> f32:
    found = f32(0)
    for v in x:
        if abs(v) > abs(found):
            found = v
    return found


def half(v: float) -> float:
    return struct.unpack("<e", struct.pack("<e", v))[0]


def to_bytes(name: str, x: np.ndarray) -> bytes:
    """A block of 32 as ggml's C code writes it."""
    if name == "q8_0":
        d = f32(max(abs(x)) / f32(127))
        scaled = [float(v * (f32(1) / d if d else f32(0))) for v in x]
        return struct.pack("<e32b", d, *(int(math.copysign(math.floor(abs(v) + 0.5), v)) for v in scaled))
    if name in ("q4_1", "q5_1"):
        last = 15 if name == "q4_1" else 31
        low = min(x)
        d = f32((max(x) - low) / f32(last))
        scaled = [(v - low) * (f32(1) / d if d else f32(0)) for v in x]
        return struct.pack("<ee", d, low) + nibbles([min(last, int(v + f32(0.5))) for v in scaled], name == "q5_1")
    if name == "iq4_nl":
        return iq4_nl(x)
    zero = {"q4_0": 8, "q5_0": 16, "q6_0": 32}[name]
    d = f32(largest(x) / f32(-zero))
    scaled = [v * (f32(1) / d if d else f32(0)) for v in x]
    codes = [min(2 * zero - 1, int(v + f32(zero + 0.5))) for v in scaled]
    if name != "q6_0":
        return struct.pack("<e", d) + nibbles(codes, name == "q5_0")
    squares = sum(float(w) ** 2 * (c - zero) ** 2 for w, c in zip(scaled, codes, strict=True))
    if squares:
        d = sum(float(w) ** 2 * float(v) * (c - zero) for w, v, c in zip(scaled, x, codes, strict=True)) / squares
    high = bytes(
        sum(codes[j + 8 * part + 16 * up] >> 4 << 4 * part + 2 * up for part in (0, 1) for up in (0, 1))
        for j in range(8)
    )
    return struct.pack("<e", d) + high + nibbles([c & 15 for c in codes], False)


def iq4_nl(x: np.ndarray) -> bytes:
    if max(abs(x)) < 1e-15:
        return struct.pack("<e", 0.0) + bytes(16)
    first = f32(largest(x) / f32(KVALUES[0]))
    scaled = [float(v * (f32(1) / first)) for v in x]
    codes = [max(range(16), key=lambda i: (-abs(v - KVALUES[i]), i)) for v in scaled]
    above = sum(float(v) ** 3 * KVALUES[c] for v, c in zip(x, codes, strict=True))
    below = sum(float(v) ** 2 * KVALUES[c] ** 2 for v, c in zip(x, codes, strict=True))
    return struct.pack("<e", above / below) + nibbles(codes, False)


def nibbles(codes: list[int], fifth: bool) -> bytes:
    high = struct.pack("<I", sum((c >> 4) << j for j, c in enumerate(codes))) if fifth else b""
    return high + bytes((codes[j] & 15) | (codes[j + 16] & 15) << 4 for j in range(16))


def from_bytes(name: str, held: bytes) -> list[float]:
    (d,), rest = struct.unpack("<e", held[:2]), held[2:]
    if name == "q8_0":
        return [d * c for c in struct.unpack("<32b", rest)]
    low = 0.0
    if name in ("q4_1", "q5_1"):
        (low,), rest = struct.unpack("<e", rest[:2]), rest[2:]
    codes = [rest[-16:][j % 16] >> 4 * (j // 16) & 15 for j in range(32)]
    if name in ("q5_0", "q5_1"):
        (high,) = struct.unpack("<I", rest[:4])
        codes = [c | (high >> j & 1) << 4 for j, c in enumerate(codes)]
    if name == "q6_0":
        codes = [c | (rest[j % 8] >> 4 * (j % 16 // 8) + 2 * (j // 16) & 3) << 4 for j, c in enumerate(codes)]
    if name == "iq4_nl":
        return [d * KVALUES[c] for c in codes]
    zero = {"q4_0": 8, "q5_0": 16, "q6_0": 32}.get(name, 0)
    return [d * (c - zero) + low for c in codes]


@pytest.mark.parametrize("name", BYTES)
def test_blocks_are_those_of_the_c_code_byte_for_byte(name: str) -> None:
    x, codec = blocks(120, 3), plain(name, 32)
    block = codec.encode(x, 0)
    theirs = [to_bytes(name, row.numpy()) for row in x[0, 0]]
    assert {len(held) for held in theirs} == {BYTES[name]}
    assert sum(block.nbytes.values()) == 120 * BYTES[name]
    assert codec.bits(block).item() == BYTES[name] / 4
    expected = torch.tensor([from_bytes(name, held) for held in theirs], dtype=torch.float64)
    torch.testing.assert_close(codec.decode(block)[0, 0].double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_blocks_are_those_of_ggufs_own_quantizers(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name.upper()]
    x = blocks(200, 4).view(1, 1, 100, 64)
    theirs = gguf.quants.dequantize(gguf.quants.quantize(x[0, 0].numpy(), kind), kind)
    torch.testing.assert_close(stored(plain(name), x)[0, 0], torch.tensor(theirs), rtol=1e-6, atol=0)


def test_bf16_is_ggufs_and_loses_sixty_four_times_the_power_of_fp16() -> None:
    x = torch.randn(2, 3, 40, 64, generator=torch.Generator().manual_seed(1))
    kind, codec = gguf.GGMLQuantizationType.BF16, codecs(make("bf16"), 64)[0]
    theirs = gguf.quants.dequantize(gguf.quants.quantize(x.numpy(), kind), kind)
    assert torch.equal(stored(codec, x), torch.tensor(theirs))
    block = codec.encode(x, 0)
    assert codec.bits(block).item() == 16 and sum(block.nbytes.values()) == 2 * x.numel()
    lost, half_lost = ((y - x).square().sum() for y in (stored(codec, x), x.half().float()))
    assert 50 < lost / half_lost < 80


@pytest.mark.parametrize(
    ("name", "expected", "atol"),
    [
        ("q4_0", [1.0, -0.875, 0.5, 0.0], 0),
        ("q5_0", [1.0, -0.9375, 0.5, 0.0], 0),
        ("q8_0", [0.99994, -0.99994, 0.50391, 0.0], 1e-5),
    ],
)
def test_a_block_by_hand(name: str, expected: list[float], atol: float) -> None:
    x = torch.zeros(1, 1, 1, 32)
    x[..., :3] = torch.tensor([1.0, -1.0, 0.5])
    torch.testing.assert_close(stored(plain(name, 32), x)[0, 0, 0, :4], torch.tensor(expected), rtol=0, atol=atol)


def test_a_range_by_hand() -> None:
    """From -3 to 4.5 in fifteen steps of .5: halves go up, and what is given back starts at -3."""
    x = torch.zeros(1, 1, 1, 32)
    x[..., :5] = torch.tensor([-3.0, 4.5, 0.2, 0.25, -2.8])
    assert stored(plain("q4_1", 32), x)[0, 0, 0, :6].tolist() == [-3.0, 4.5, 0.0, 0.5, -3.0, 0.0]


def test_iq4_nl_has_no_zero() -> None:
    x = torch.zeros(1, 1, 1, 32)
    x[..., 5] = -12.7
    read = stored(plain("iq4_nl", 32), x)[0, 0, 0]
    torch.testing.assert_close(read[5].item(), -12.7, rtol=1e-3, atol=0)
    torch.testing.assert_close(read[0].item(), 0.1, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("q8_0", 2.87e-5),
        ("q6_0", 4.45e-4),
        ("q5_1", 1.43e-3),
        ("q5_0", 1.83e-3),
        ("q4_1", 6.13e-3),
        ("iq4_nl", 6.19e-3),
        ("q4_0", 7.41e-3),
    ],
)
def test_the_error_on_normal_numbers_is_the_published_one(name: str, expected: float) -> None:
    x = torch.randn(1, 1, 8192, 128, generator=torch.Generator().manual_seed(0))
    found = (stored(plain(name, 128), x) - x).square().mean() / x.square().mean()
    assert found.item() == pytest.approx(expected, rel=0.03)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 8), st.floats(-6, 3), st.integers(0, 1 << 16), st.sampled_from([*BYTES]))
def test_any_shape_is_stored_token_by_token_alike(tokens: int, count: int, size: float, seed: int, name: str) -> None:
    x = torch.randn(2, 3, tokens, 32 * count, generator=torch.Generator().manual_seed(seed)) * 10**size
    x[0, 0, 0, :32] = 0
    codec = plain(name, 32 * count)
    read = stored(codec, x)
    assert read.shape == x.shape and read.isfinite().all() and not read[0, 0, 0, :32].any()
    for token in range(tokens):
        assert torch.equal(stored(codec, x[:, :, token : token + 1]), read[:, :, token : token + 1])
    largest = x.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True).expand(-1, -1, -1, -1, 32).flatten(-2)
    assert ((read - x).abs() <= largest / 7 + 1e-7).all()


def test_a_block_too_small_for_a_scale_reads_as_zeros() -> None:
    x = torch.full((1, 1, 1, 32), 1e-40)
    for name in BYTES:
        assert stored(plain(name, 32), x).abs().max() < 1e-7, name


@pytest.mark.parametrize("bits", range(1, 9))
def test_planes_hold_every_code_in_whole_bytes(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (3, 2, 64), generator=torch.Generator().manual_seed(bits)).to(torch.uint8)
    packed = pack_planes(codes, bits)
    assert packed.shape == (3, 2, 8 * bits) and packed.dtype == torch.uint8
    assert torch.equal(unpack_planes(packed, bits), codes)
