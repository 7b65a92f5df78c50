"""Bit packing: exact round trips and exact sizes for every width."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kvq_kernels import pack, packed_bytes, unpack
from kvq_kernels.blocks import BlockForm, Dense
from kvq_kernels.grouped import Grid

WIDTHS = range(1, 9)
EACH = {1: 8, 2: 4, 3: 4, 4: 2}  # places of a byte that codes of so many bits can have


@st.composite
def codes_and_bits(draw):
    bits = draw(st.sampled_from(list(WIDTHS)))
    count = draw(st.integers(1, 70))
    rows = draw(st.integers(1, 3))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2**bits, (rows, count), generator=generator, dtype=torch.uint8), bits


@given(codes_and_bits())
def test_round_trip_is_exact(case):
    codes, bits = case
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert torch.equal(unpack(packed, bits, codes.shape[-1]), codes)


@given(codes_and_bits())
def test_size_is_the_bits_rounded_up_to_a_whole_word(case):
    codes, bits = case
    count = codes.shape[-1]
    size = pack(codes, bits).shape[-1]
    assert size == packed_bytes(count, bits)
    exact = -(-count * bits // 8)
    assert exact <= size < exact + 8
    if count * bits % 8 == 0 and count % 8 == 0:
        assert size == count * bits // 8


@pytest.mark.parametrize("bits", WIDTHS)
def test_eight_codes_take_exactly_as_many_bytes_as_a_code_has_bits(bits):
    assert pack(torch.zeros(5, 8, dtype=torch.uint8), bits).shape == (5, bits)


@given(codes_and_bits())
def test_layout_is_a_little_endian_bit_stream(case):
    """Against an independent construction: the first code takes the lowest bits of the first byte."""
    codes, bits = case
    for row, packed in zip(codes.numpy(), pack(codes, bits).numpy(), strict=True):
        stream = np.concatenate([(row >> i & 1)[:, None] for i in range(bits)], 1).ravel()
        expected = np.packbits(stream, bitorder="little")
        assert np.array_equal(packed[: len(expected)], expected)
        assert not packed[len(expected) :].any()


@pytest.mark.parametrize("bits", WIDTHS)
def test_extreme_codes_survive(bits):
    codes = torch.tensor([[0, 2**bits - 1] * 9 + [2**bits - 1]], dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes, bits), bits, 19), codes)


@pytest.mark.parametrize("bits", WIDTHS)
def test_strided_codes_pack_like_contiguous_ones(bits):
    codes = torch.randint(0, 2**bits, (24, 6), dtype=torch.uint8).T
    assert torch.equal(pack(codes, bits), pack(codes.contiguous(), bits))


@pytest.mark.parametrize("bits", [0, 9, -1])
def test_other_widths_are_refused(bits):
    with pytest.raises(ValueError, match="1 to 8 bits"):
        pack(torch.zeros(8, dtype=torch.uint8), bits)


@pytest.mark.parametrize("bits", WIDTHS)
def test_codes_may_lie_anyhow_in_memory(bits):
    codes = torch.arange(48).remainder(2**bits).to(torch.uint8).view(3, 16)
    packed = pack(codes, bits)
    assert torch.equal(unpack(packed.T.contiguous().T, bits, 16), codes)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("dim", [64, 80, 96, 112])
def test_a_channel_has_one_place_in_the_words_of_all_tokens(dim, bits):
    """So that a query is multiplied by one power of two for all keys; but for the last channels of heads that are no
    multiple of what fills all places."""
    form = BlockForm(Grid(bits), "tokens", "channels", dim)
    none = torch.zeros(1, dim, 4, dtype=torch.float16)
    places = []
    for channel in range(0, dim, 16):
        codes = torch.zeros(1, dim, 128, dtype=torch.uint8)
        codes[:, channel + 3] = 1
        records = torch.zeros(1, 1, form.nbytes, dtype=torch.uint8)
        form.write(records, 0, Dense(codes, none, none))
        assert torch.equal(form.read(records, 128).codes, codes)
        places.append(len(records[..., : form.meta[0].start].unique()) - 1)
    whole = dim // 16 // EACH[bits] * EACH[bits]
    assert places[:whole] == [1] * whole
