"""NVFP4, MXFP4 and UltraQuant: blocks worked by hand, and how each engine breaks ties."""

import numpy as np
import pytest
import torch

from kvq_core.methods.formats.float4 import e2m1, from_e2m1
from tests.support.format_blocks import butterflies, codecs, normal, read, row


def test_nvfp4_s_block_worked_by_hand() -> None:
    block = row(3.0, 1.3, 0.26, 0.25)  # scale .5: 6, 2.6, .52, .5 become 6, 3, .5, .5
    torch.testing.assert_close(read("nvfp4", block)[0], row(3.0, 1.5, 0.25, 0.25), rtol=0, atol=0)
    four = read("nvfp4", row(4.0, 3.0, 2.0, 1.0), four_over_six=True)[0]  # 6 would give 4, 2.66, 2, 1.33 or so
    torch.testing.assert_close(four, row(4.0, 3.0, 2.0, 1.0), rtol=0, atol=0)


def test_mxfp4_s_block_worked_by_hand() -> None:
    block = row(3.1, 1.3, 0.26, 0.25)
    torch.testing.assert_close(read("mxfp4", block)[0], row(3.0, 1.5, 0.5, 0.5), rtol=0, atol=0)
    assert float(read("mxfp4", row(6.0))[0][0, 0]) == 6.0 and float(read("mxfp4", row(6.1))[0][0, 0]) == 6.0
    # OCP takes the largest element's own exponent: 7 is beyond 6 and is cut, where SGLang doubles the step
    assert float(read("mxfp4", row(7.0), block=32)[0][0, 0]) == 6.0
    assert float(read("mxfp4", row(7.0))[0][0, 0]) == 8.0


def test_ultraquant_s_steps_are_powers_of_two_near_a_share_of_the_largest() -> None:
    x = normal(64, 100)
    found = read("ultraquant_4bit", x, boundary_layers=0)[1].numpy()
    blocks = x.numpy().reshape(-1, 32)
    steps = 2.0 ** np.round(np.log2(0.156 * np.abs(blocks).max(1, keepdims=True)))
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    expected = levels[np.abs(np.abs(blocks / steps)[..., None] - levels).argmin(-1)] * np.sign(blocks) * steps
    np.testing.assert_allclose(found.reshape(-1, 32), expected, atol=1e-6)
    turned = torch.from_numpy(butterflies(x.numpy()) / 8)
    keys = read("ultraquant_4bit", x, boundary_layers=0)[0]
    behind = butterflies(read("ultraquant_4bit", turned, boundary_layers=0)[1].numpy()) / 8
    assert np.isclose(keys.numpy(), behind, atol=1e-5).mean() > 0.99
    key, _ = codecs("ultraquant_4bit", x[None, None])
    assert key.bits(key.encode(x[None, None], 0)).item() == 4.25


def test_e2m1_takes_the_nearest_level_and_breaks_ties_as_each_engine_does() -> None:
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 9.0])
    assert from_e2m1(e2m1(halves, "even")).tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert from_e2m1(e2m1(halves, "up")).tolist() == [0.5, 1, 1.5, 2, 3, 4, 6, 6]
    x = torch.linspace(-7, 7, 4001)
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nearest = levels[(x.abs()[:, None] - levels).abs().argmin(1)] * x.sign()
    for ties in ("even", "up"):
        found = from_e2m1(e2m1(x, ties))
        same = (found == nearest) | ((found - x).abs() == (nearest - x).abs())
        assert same.all()


def test_nvfp4_tries_four_only_where_it_is_closer() -> None:
    x = normal(64, 500)
    six, best = read("nvfp4", x)[0], read("nvfp4", x, four_over_six=True)[0]
    errors = [(found - x).unflatten(-1, (-1, 16)).square().sum(-1) for found in (best, six)]
    assert (errors[0] <= errors[1]).all() and (errors[0] < errors[1]).float().mean() > 0.3
    layer = codecs("nvfp4", x[None, None], scale="tensor")[0]
    assert layer.shared["scale"].item() == pytest.approx(float(x.abs().max()) / (6 * 448))
