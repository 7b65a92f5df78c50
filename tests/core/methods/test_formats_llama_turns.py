"""Rotations and rounded queries of llama.cpp's and ik_llama.cpp's formats, against matrices in float64, and what lanes
are told of them."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvq_core.codecs.hadamard import Hadamard
from kvq_core.errors import SpecError
from kvq_core.methods import ModelRef, ModelShape, Prompt, make
from kvq_core.methods.deployments import with_rotation
from kvq_core.spec import Lane
from tests.core.methods.test_formats_llama import BYTES, codecs, plain, stored

UPSTREAM = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


def sylvester(block: int, head_dim: int) -> Tensor:
    """(head_dim, head_dim) float64: entry i, j of a block is (-1)^popcount(i & j) / sqrt(block)."""
    signs = [[(-1) ** (i & j).bit_count() for j in range(block)] for i in range(block)]
    one = torch.tensor(signs, dtype=torch.float64) / math.sqrt(block)
    return torch.block_diag(*[one] * (head_dim // block))


def turn_matrix(turn: Hadamard | None, head_dim: int) -> Tensor:
    eye = torch.eye(head_dim, dtype=torch.float64)
    return eye if turn is None else turn.turned(eye[None, None])[0, 0]


@pytest.mark.parametrize(
    ("name", "head_dim", "key", "value"),
    [
        *((name, 128, 128, 64) for name in UPSTREAM),
        ("q8_0", 64, 64, 64),
        ("q8_0", 192, 64, 64),
        ("q8_0", 256, 256, 64),
        ("q8_0", 320, 64, 64),
        ("q8_0", 96, 1, 1),
        ("q8_0", 32, 1, 1),
        ("q6_0", 128, 128, 128),
        ("q6_0", 32, 32, 32),
        ("q6_0", 192, 64, 64),
        ("q6_0", 96, 1, 1),
        ("q6_0", 384, 128, 128),
    ],
)
def test_keys_and_values_are_turned_as_each_engine_does(name: str, head_dim: int, key: int, value: int) -> None:
    method = make(name, rotate=True)
    for codec, block in zip(codecs(method, head_dim), (key, value), strict=True):
        expected = sylvester(block, head_dim)
        torch.testing.assert_close(turn_matrix(codec.turn, head_dim), expected, rtol=0, atol=1e-6)  # type: ignore[attr-defined]
    x = torch.zeros(1, 1, 1, head_dim)
    assert bool(method.fit(Prompt(x, x, None)).notes) == (key == 1)
    plain_codecs = codecs(make(name, rotate=False), head_dim)
    assert all(codec.turn is None for codec in plain_codecs)  # type: ignore[attr-defined]


def test_what_is_turned_is_read_turned_back() -> None:
    x = torch.randn(2, 2, 50, 128, generator=torch.Generator().manual_seed(2))
    x[..., 17] *= 30  # a channel that takes the range of its block
    codec = codecs(make("q4_0"), 128)[0]
    matrix = sylvester(128, 128).float()
    turned = stored(replace(codec, turn=None), x @ matrix)  # type: ignore[type-var]
    read = stored(codec, x)
    close = (read - turned @ matrix).abs() < 1e-3
    assert close.float().mean() > 0.99  # a rounding that falls the other way changes its token
    usual = [c for c in range(128) if c != 17]
    lost = [(y - x)[..., usual].square().sum() for y in (read, stored(plain("q4_0", 128), x))]
    assert lost[0] < 0.6 * lost[1]


@pytest.mark.parametrize(
    ("name", "rotate", "head_dim", "block"),
    [
        ("q8_0", True, 64, 64),
        ("q4_1", True, 128, 128),
        ("q4_0", True, 192, 64),
        ("iq4_nl", True, 96, 1),
        ("q5_0", False, 128, 1),
        ("q6_0", False, 128, 1),
        ("q6_0", True, 128, 128),
    ],
)
def test_queries_are_rounded_in_the_basis_of_the_keys(name: str, rotate: bool, head_dim: int, block: int) -> None:
    """Queries that lie near whole steps of their blocks there, with the largest on one."""
    g = torch.Generator().manual_seed(head_dim)
    codes = torch.randint(-126, 127, (4, 3, head_dim), generator=g).double()
    off = (torch.rand(4, 3, head_dim, generator=g).double() - 0.5) * 0.8
    codes[..., ::32], off[..., ::32] = -127, 0
    matrix = sylvester(block, head_dim)
    rounding = make(name, rotate=rotate).query_rounding()
    assert rounding is not None
    found = rounding(((codes + off) / 64 @ matrix).float())
    torch.testing.assert_close(found.double(), codes / 64 @ matrix, rtol=0, atol=2e-5)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize(("name", "rotate"), [("q8_0", True), ("q4_1", False), ("iq4_nl", True), ("q6_0", False)])
def test_keys_are_stored_in_the_order_of_the_models_gguf_files(name: str, rotate: bool, head_dim: int) -> None:
    """As the converter permutes rows of Llama's projections: channels i and i + head_dim / 2 are neighbours there."""
    g = torch.Generator().manual_seed(head_dim)
    x = torch.randn(2, 3, 40, head_dim, generator=g) * torch.logspace(-1, 1, head_dim)
    order = torch.tensor([half * head_dim // 2 + at for at in range(head_dim // 2) for half in (0, 1)])
    method = make(name, rotate=rotate)
    alone, of_llama, of_qwen = (
        method.fit(Prompt(x, x, None, model=model))
        for model in (None, ModelRef("m", "0", interleaved=True), ModelRef("m", "0"))
    )
    assert alone.key is not None and of_llama.key is not None
    assert torch.equal(stored(of_llama.key, x)[..., order], stored(alone.key, x[..., order]))
    assert not torch.equal(stored(of_llama.key, x), stored(alone.key, x))
    assert of_llama.value == alone.value and of_qwen.key == alone.key

    there, here = method.query_rounding(ModelRef("m", "0", interleaved=True)), method.query_rounding()
    assert there is not None and here is not None
    assert torch.equal(there(x[0])[..., order], here(x[0][..., order]))


def test_a_head_of_80_is_rounded_in_a_smaller_last_block() -> None:
    rounding = make("q8_0").query_rounding()
    assert rounding is not None
    assert rounding(torch.randn(4, 1, 80)).shape == (4, 1, 80)


def test_queries_stay_where_a_knob_says_so() -> None:
    assert all(make(name, quantize_query=False).query_rounding() is None for name in UPSTREAM)
    both = [make("q8_0", quantize_query=on).for_tensor("keys") for on in (True, False)]
    assert both[0] == both[1]  # they store alike


@pytest.mark.parametrize("name", BYTES)
def test_heads_that_no_block_tiles_are_refused(name: str) -> None:
    shape = ModelShape(layers=2, query_heads=4, kv_heads=2, head_dim=80, context=100)
    assert "head_dim = 80 is no multiple of 32" in (make(name).why_not(shape) or "")
    assert make(name).why_not(replace(shape, head_dim=96)) is None


@pytest.mark.parametrize("name", BYTES)
def test_one_rotation_is_enough(name: str) -> None:
    with pytest.raises(SpecError, match="give one of the two"):
        Lane(method=name, knobs={"rotate": True}, rotate="hadamard")
    assert Lane(method=name, knobs={"rotate": False}, rotate="hadamard").rotate == "hadamard"


def test_flags_are_the_engines() -> None:
    (way,) = make("q5_1", rotate=False).elsewhere()
    assert way.how == "LLAMA_ATTN_ROT_DISABLE=1 llama-server -m M.gguf -fa on -ctk q5_1 -ctv q5_1"
    assert [told.differs for told in with_rotation((way,), "none")] == [way.differs]
    assert (with_rotation((way,), "hadamard")[0].differs or "").startswith("Nothing is rotated.")
    assert make("q6_0", rotate=True).elsewhere()[0].how.endswith("-ctk q6_0 -ctv q6_0 -khad -vhad")


@pytest.mark.parametrize("name", [*UPSTREAM, "q6_0"])
def test_a_run_with_channels_in_another_order_has_an_id_of_its_own(name: str) -> None:
    here, there = (make(name).data_hash(ModelRef("m", "0", interleaved=order)) for order in (False, True))
    assert here is None and there == "interleaved"
