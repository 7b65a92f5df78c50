"""Group quantization: against independent float64 arithmetic, and at the edges where it usually breaks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kvq_kernels import dequantize_groups, quantize_groups

WIDTHS = range(1, 9)
METADATA = [torch.float32, torch.float16]


@st.composite
def cases(draw):
    bits = draw(st.sampled_from(list(WIDTHS)))
    group = draw(st.sampled_from([1, 2, 7, 32, 64]))
    rows, count = draw(st.integers(1, 3)), draw(st.integers(1, 70))
    scale = draw(st.sampled_from([1e-3, 1.0, 30.0]))
    shift = draw(st.sampled_from([0.0, -5.0, 100.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(rows, count, generator=generator) * scale + shift
    return x, bits, group, draw(st.sampled_from(METADATA))


def independent(x: torch.Tensor, bits: int, group: int, metadata: torch.dtype) -> np.ndarray:
    """Codes group by group in float64 from the stored (rounded) scale and minimum."""
    half = np.float16 if metadata is torch.float16 else np.float32
    top = 2**bits - 1
    out = np.empty(x.shape)
    for r, row in enumerate(x.numpy()):
        for start in range(0, len(row), group):
            part = row[start : start + group]
            low, high = part.min(), part.max()
            scale = np.float64(half(np.float32(high - low) / np.float32(top))) or 1.0
            code = np.clip(np.rint((part.astype(np.float64) - np.float64(half(low))) / scale), 0, top)
            out[r, start : start + group] = code
    return out


@given(cases())
def test_codes_are_those_of_float64_arithmetic(case):
    x, bits, group, metadata = case
    codes = quantize_groups(x, bits, group, metadata).codes.numpy()
    differing = codes != independent(x, bits, group, metadata)
    assert differing.sum() <= max(1, codes.size * 1e-3)  # float32 may round an exact tie the other way
    assert np.abs(codes.astype(int) - independent(x, bits, group, metadata))[differing].max(initial=0) <= 1


@given(cases())
def test_decoding_is_scale_times_code_plus_zero(case):
    x, bits, group, metadata = case
    coded = quantize_groups(x, bits, group, metadata)
    index = torch.arange(x.shape[-1]) // group
    expected = coded.codes.double() * coded.scales.double()[..., index] + coded.zeros.double()[..., index]
    rounding = 1e-6 * max(1e-3, float(x.abs().max()))  # of float32, where scale * code and zero nearly cancel
    assert torch.allclose(dequantize_groups(coded, group).double(), expected, rtol=1e-6, atol=rounding)


@given(cases())
def test_error_is_at_most_half_a_step_with_exact_metadata(case):
    x, bits, group, _ = case
    coded = quantize_groups(x, bits, group, torch.float32)
    error = (dequantize_groups(coded, group) - x).abs()
    step = coded.scales[..., torch.arange(x.shape[-1]) // group]
    low_high = x.abs().amax() * 1e-6  # float32 rounding of the values themselves
    assert (error <= step / 2 * (1 + 1e-4) + low_high).all()


@given(cases())
def test_shapes_and_dtypes(case):
    x, bits, group, metadata = case
    coded = quantize_groups(x, bits, group, metadata)
    groups = -(-x.shape[-1] // group)
    assert coded.codes.shape == x.shape and coded.codes.dtype == torch.uint8
    assert int(coded.codes.max()) <= 2**bits - 1
    assert coded.scales.shape == coded.zeros.shape == (x.shape[0], groups)
    assert coded.scales.dtype == coded.zeros.dtype == metadata
    assert (coded.scales > 0).all() and torch.isfinite(coded.scales).all()


@pytest.mark.parametrize("metadata", METADATA)
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("value", [0.0, 1.5, -3.0, 1e-8])
def test_zero_range_groups_decode_to_their_value(bits, value, metadata):
    x = torch.full((2, 3, 32), value)
    decoded = dequantize_groups(quantize_groups(x, bits, 32, metadata), 32)
    assert torch.equal(decoded, x.to(metadata).float())


@pytest.mark.parametrize("bits", WIDTHS)
def test_one_zero_range_group_leaves_its_neighbours_alone(bits):
    x = torch.randn(1, 96, generator=torch.Generator().manual_seed(0))
    x[:, 32:64] = 2.0
    coded = quantize_groups(x, bits, 32)
    alone = quantize_groups(x[:, :32], bits, 32)
    assert torch.equal(coded.codes[:, :32], alone.codes)
    assert (dequantize_groups(coded, 32)[:, 32:64] == 2.0).all()


@pytest.mark.parametrize("group", [1, 3, 32])
def test_a_single_element_is_exact(group):
    x = torch.tensor([[0.1], [-7.25]])
    decoded = dequantize_groups(quantize_groups(x, 2, group, torch.float32), group)
    assert torch.equal(decoded, x)


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_last_incomplete_group_is_quantized_by_itself(bits):
    x = torch.randn(4, 45, generator=torch.Generator().manual_seed(1))
    coded, tail = quantize_groups(x, bits, 32), quantize_groups(x[:, 32:], bits, 13)
    assert torch.equal(coded.codes[:, 32:], tail.codes)
    assert torch.equal(coded.scales[:, 1:], tail.scales)


def test_tiny_ranges_that_vanish_in_fp16_give_no_nan():
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(2)) * 1e-9
    decoded = dequantize_groups(quantize_groups(x, 2, 32, torch.float16), 32)
    assert torch.isfinite(decoded).all() and decoded.abs().max() <= 1e-6


def test_half_to_even():
    x = torch.tensor([[0.0, 0.5, 1.5, 2.5, 3.0]])  # scale 1 at two bits
    assert quantize_groups(x, 2, 5, torch.float32).codes.tolist() == [[0, 0, 2, 2, 3]]


def test_the_original_is_not_changed():
    x = torch.randn(3, 40)
    before = x.clone()
    quantize_groups(x, 2, 32)
    assert torch.equal(x, before)
