"""How stored codes are used, as the views show it, against direct counts."""

import pytest
import torch
from kvq_kernels import unpack

from kvq_core.codecs.blocks import Block
from kvq_core.codecs.codec import Codec, count_codes
from kvq_core.methods import make
from kvq_core.methods.base import Method, Prompt
from tests.core.methods.test_methods_commvq import key_codec, value_codec

LAYERS, HEADS, TOKENS, DIM = 2, 2, 96, 16


def encoded(method: Method, kind: str = "key") -> tuple[Codec, Block]:
    torch.manual_seed(1)
    keys, values = (torch.randn(LAYERS, HEADS, TOKENS, DIM) * torch.rand(DIM) * 5 for _ in range(2))
    queries = torch.randn(LAYERS, 2 * HEADS, TOKENS, DIM)
    fitted = method.fit(Prompt(keys, values, queries, rotated=keys))
    codec = fitted.key if kind == "key" else fitted.value
    assert codec is not None
    return codec, codec.encode_prompt(keys if kind == "key" else values, 0)


def test_counting_equals_a_loop() -> None:
    codes = torch.randint(0, 5, (3, 2, 70))
    found = count_codes(codes, 8)
    assert found.shape == (3, 2, 8) and found.sum() == codes.numel()
    assert all(found[a, b, c] == (codes[a, b] == c).sum() for a in range(3) for b in range(2) for c in range(8))


@pytest.mark.parametrize("kind", ["key", "value"])
def test_group_codes_are_counted_over_all_blocks(kind: str) -> None:
    codec, block = encoded(make("kivi", bits=2, group_size=16, residual_length=16), kind)
    counts = codec.usage([block, block])["code_counts"]
    codes = unpack(block.tensors["codes"], 2, TOKENS if kind == "key" else DIM).flatten(2)
    assert counts.shape == (LAYERS, HEADS, 1, 4)
    for code in range(4):
        assert torch.equal(counts[:, :, 0, code].long(), 2 * (codes == code).sum(-1))
    assert codec.usage([]) == {}


@pytest.mark.parametrize(("mode", "share"), [("symmetric", 1.0), ("asymmetric", 0.0), ("hybrid", None)])
def test_share_of_symmetric_groups(mode: str, share: float | None) -> None:
    codec, block = encoded(make("innerq", mode=mode, group_size=16, normalize_keys="off"))
    found = codec.usage([block])["symmetric_share"]
    assert found.shape == (LAYERS, HEADS)
    if share is not None:
        assert (found == share).all()
        return
    # a symmetric group is read back onto a grid that holds zero and is even about it
    mask = unpack(block.tensors["mask"], 1, HEADS * TOKENS).view(LAYERS, HEADS, TOKENS)
    torch.testing.assert_close(found, mask.float().mean(-1))
    assert 0 < found.mean() < 1


def test_share_of_outliers() -> None:
    codec, block = encoded(make("qaq", outlier_fraction=0.1))
    kept = block.tensors["positions"].shape[-1]
    assert codec.usage([block])["outlier_share"].unique().item() == pytest.approx(kept / DIM)


@pytest.mark.parametrize("per_head", [False, True])
def test_bits_of_latent_channels(per_head: bool) -> None:
    schedule = [8, 4, 4, 2, 0, 0, 0, 0]
    codec, block = encoded(make("svdq", schedule=schedule, per_head=per_head))
    bits = codec.usage([block])["latent_bits"]
    assert bits.shape == (LAYERS, HEADS * DIM)
    group = DIM // 8 if per_head else HEADS * DIM // 8
    expected = [width for width in schedule for _ in range(group)] * (HEADS if per_head else 1)
    assert bits[1].tolist() == expected
    assert bits[0].float().mean() == sum(schedule) / 8


def test_levels_of_every_codebook_are_counted() -> None:
    """Codebooks that commute with RoPE: a level for each place of each stage; a level no token takes counts 0."""
    codec = key_codec(LAYERS, HEADS, DIM, pairs=4, levels=8, stages=3)
    block = codec.encode(torch.randn(LAYERS, HEADS, TOKENS, DIM), 0)
    counts = codec.usage([block, block])["code_counts"]
    groups = codec.theta.shape[2]
    assert counts.shape == (LAYERS, HEADS, groups * 3 * 2, 8) and (counts.sum(-1) == 2 * TOKENS).all()
    codes = unpack(block.tensors["codes"], 3, groups * TOKENS * 3 * 2).view(LAYERS, HEADS, groups, TOKENS, 3, 2)
    for group, stage, place, level in ((0, 0, 0, 1), (groups - 1, 2, 1, 7), (0, 1, 0, 4)):
        direct = 2 * (codes[:, :, group, :, stage, place] == level).sum(-1)
        assert torch.equal(counts[:, :, (group * 3 + stage) * 2 + place, level].long(), direct)


def test_digits_of_values_are_counted() -> None:
    codec = value_codec(LAYERS, HEADS, DIM, 1)
    block = codec.encode(torch.randn(LAYERS, HEADS, TOKENS, DIM), 0)
    counts = codec.usage([block])["code_counts"]
    digits = unpack(block.tensors["codes"], 1, codec.encoder.codebook.shape[1])
    assert torch.equal(counts[:, 0, :, 1].long(), digits.long().sum(1)) and (counts.sum(-1) == TOKENS).all()
