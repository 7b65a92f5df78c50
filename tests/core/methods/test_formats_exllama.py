"""ExLlamaV3's cache against its arithmetic in float64, written apart: Cardano's formula where it has a compander."""

import math
import struct

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from kvq_core.methods import Codec, Method, ModelShape, Prompt, make
from kvq_core.methods.per_token import PerToken
from kvq_core.spec import Lane
from tests.core.methods.test_formats_llama import stored

H32 = np.array([[(-1) ** (i & j).bit_count() for j in range(32)] for i in range(32)]) / math.sqrt(32)


def codecs(method: Method, head_dim: int = 64) -> tuple[Codec, Codec]:
    x = torch.zeros(1, 1, 1, head_dim)
    fitted = method.fit(Prompt(x, x, None))
    assert fitted.key is not None and fitted.value is not None
    return fitted.key, fitted.value


def codec(bits: int, compander: float = 0.0) -> Codec:
    return codecs(make("exl3", bits=bits, compander=compander))[0]


def by_hand(x: np.ndarray, bits: int, a: float) -> tuple[np.ndarray, np.ndarray]:
    """A group of 32: what is read of it, and how far each turned number lies from the nearest bound, in steps."""
    y = H32 @ x.astype(np.float64)
    s = abs(y).max() + 1e-10
    t = y / s
    if 0 < a < 1:  # the one real root of (1 - a) t^3 + a t = y / s
        half, third = t / (1 - a) / 2, a / (1 - a) / 3
        root = np.sqrt(half**2 + third**3)
        t = np.cbrt(half + root) + np.cbrt(half - root)
    place = t * 2 ** (bits - 1) + 2 ** (bits - 1)
    code = np.clip(np.floor(place), 0, 2**bits - 1)
    level = (2 * code + 1) / 2**bits - 1
    if a:
        level = a * level + (1 - a) * level**3
    (scale,) = struct.unpack("<e", struct.pack("<e", s))
    inside = abs(place - np.round(place))
    return H32 @ (scale * level), np.where(abs(place - 2 ** (bits - 1)) > 2 ** (bits - 1) - 0.5, 1, inside)


@pytest.mark.parametrize(("bits", "a"), [*((b, 0.0) for b in range(2, 9)), (3, 0.65), (4, 0.2), (8, 0.9), (5, 1.0)])
def test_groups_are_those_of_the_kernel(bits: int, a: float) -> None:
    x = torch.randn(1, 1, 60, 64, generator=torch.Generator().manual_seed(bits)) * torch.logspace(-2, 2, 60)[:, None]
    x[0, 0, 0] = 0
    read = stored(codec(bits, a), x)[0, 0].view(-1, 32).double().numpy()
    compared = 0
    for own, found in zip(x.view(-1, 32).numpy(), read, strict=True):
        expected, away = by_hand(own, bits, a)
        if away.min() > 1e-4 or not own.any():  # float32 may put what lies on a bound on either side
            np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * max(abs(own)))
            compared += 1
    assert compared > 90


@pytest.mark.parametrize("bits", range(2, 9))
def test_bytes_are_half_a_bit_more_than_the_codes(bits: int) -> None:
    x = torch.randn(2, 3, 7, 96, generator=torch.Generator().manual_seed(1))
    own = codecs(make("exl3", bits=bits), 96)[0]
    block = own.encode(x, 0)
    assert own.bits(block).item() == bits + 0.5
    assert sum(block.nbytes.values()) * 8 == (bits + 0.5) * x.numel()


def test_one_element_by_hand() -> None:
    """All turned numbers are as large: each reads as the outermost level, (1 - 2**-bits) of them."""
    x = torch.zeros(1, 1, 1, 32)
    x[..., 0] = 1
    own = codecs(make("exl3", bits=4), 32)[0]
    expected = torch.zeros(32)
    expected[0] = 0.9375
    torch.testing.assert_close(stored(own, x)[0, 0, 0], expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize(
    ("bits", "a", "expected"), [(2, 0, 0.126), (3, 0, 3.15e-2), (3, 0.65, 3.10e-2), (4, 0, 7.90e-3), (5, 0, 1.98e-3)]
)
def test_the_error_on_normal_numbers_is_the_published_one(bits: int, a: float, expected: float) -> None:
    x = torch.randn(1, 1, 8192, 128, generator=torch.Generator().manual_seed(0))
    found = (stored(codecs(make("exl3", bits=bits, compander=a), 128)[0], x) - x).square().mean() / x.square().mean()
    assert found.item() == pytest.approx(expected, rel=0.03)


def test_a_whole_compander_is_none() -> None:
    x = torch.randn(1, 2, 20, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(stored(codec(6, 1.0), x), stored(codec(6), x), rtol=0, atol=1e-6)


def test_tokens_are_stored_each_alone() -> None:
    x: Tensor = torch.randn(2, 2, 4, 64, generator=torch.Generator().manual_seed(2))
    whole = stored(codec(7), x)
    for token in range(4):
        one = slice(token, token + 1)
        assert torch.equal(stored(codec(7), x[:, :, one]), whole[:, :, one])


def test_keys_and_values_have_their_own_widths() -> None:
    method = make("exl3", bits=4, key_bits=6, value_bits=5)
    x = torch.randn(1, 1, 3, 64)
    assert [own.bits(own.encode(x, 0)).item() for own in codecs(method)] == [6.5, 5.5]
    assert method.elsewhere()[0].how == "-cq 6,5" and method.short() == "exl3 K6 V5"
    assert method.for_tensor("keys") == make("exl3", bits=6)
    bent = Lane(method="exl3", knobs={"compander": 0.65}, prefill="deployed")
    assert (bent.chunks.own_chunk, Lane(method="exl3", prefill="deployed").chunks.own_chunk) == ("raw", "stored")
    assert make("exl3", compander=0.65).elsewhere()[0].how == "-cq 4,4 -cca 0.65"
    assert "no multiple of 32" in (method.why_not(ModelShape(2, 4, 2, 80, 100)) or "")


def test_widths_are_each_methods_own() -> None:
    with pytest.raises(ValidationError):
        make("exl3").model_validate({"bits": 1})
    with pytest.raises(ValidationError):
        PerToken.model_validate({"bits": 6})
