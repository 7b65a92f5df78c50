"""Keys by RoPE pair: what is drawn where, and what is said where nothing can be."""

import re

import numpy as np
import pytest
import torch

from tests.support.ui_record_factory import DIM, LAYERS
from tests.ui.figures.test_blank_layers import WINDOW, of_kinds
from ui.export.svg import svg
from ui.figures import key_pairs
from ui.figures.pairs import tokens_of
from ui.selection import Selection
from ui.views import spectra
from ui.words.pairs import by_pair

HALF = DIM // 2


def drawn(record, arrays, layer: int = 3, kv_head: int = 1):
    return {trace.name: trace for trace in key_pairs(record, arrays, layer, kv_head).data}


def test_sizes_and_errors_stand_at_their_theta(run) -> None:
    record, arrays = run
    found = drawn(record, arrays)
    assert list(found) == ["Lane 0", "Lane 1", "Lane 2", "bias", "mean key", "spread"]
    theta = arrays["pairs/theta"][3].numpy()[::-1]
    for name, key in (("bias", "key_bias"), ("mean key", "key_mean"), ("spread", "key_spread")):
        assert found[name].x == pytest.approx(theta, rel=1e-4)
        assert found[name].y == pytest.approx(arrays[f"pairs/{key}"][3, 1].numpy()[::-1], rel=1e-4)
    error = arrays["lane/1/key_channel_error"][3, 1].numpy()
    expected = [np.sqrt((error[pair] + error[pair + HALF]) / tokens_of(record)) for pair in reversed(range(HALF))]
    assert found["Lane 1"].y == pytest.approx(expected, rel=1e-3) and found["Lane 1"].meta == {"lane": 1}
    first = found["bias"].text[0]
    assert re.match(
        rf"channels {HALF - 1} and {DIM - 1}: θ 1\.4e-5, 0\.0069 rad, 0\.0011 turns over 480 tokens", first
    ), first


def test_channels_are_paired_as_the_run_says(run) -> None:
    """Neighbours, the last half of them not turned: one point, a decade before the slowest."""
    record, arrays = run
    of = torch.cat([torch.arange(16).repeat_interleave(2), torch.arange(16, 48)]).short()
    theta = torch.zeros(48)
    theta[:16] = 10.0 ** -(torch.arange(16) / 4)
    sizes = {f"pairs/key_{name}": torch.ones(LAYERS, 3, 48) for name in ("bias", "mean", "spread")}
    few = {**arrays, **sizes, "pairs/of": of.expand(LAYERS, -1), "pairs/theta": theta.expand(LAYERS, -1)}
    found = drawn(record, few)
    assert len(found["bias"].x) == 17 and found["bias"].text[0] == "32 channels: not turned"
    assert found["bias"].x[0] == pytest.approx(found["bias"].x[1] / 10) and found["bias"].y[0] == pytest.approx(32**0.5)
    error = arrays["lane/0/key_channel_error"][3, 1].numpy()
    assert found["Lane 0"].y[-1] == pytest.approx(np.sqrt(error[:2].sum() / tokens_of(record)), rel=1e-3)
    assert found["Lane 0"].y[0] == pytest.approx(np.sqrt(error[32:].sum() / tokens_of(record)), rel=1e-3)


def test_what_is_zero_is_not_drawn(run) -> None:
    record, arrays = run
    bias = arrays["pairs/key_bias"].clone()
    bias[:, :, 20:] = 0
    mended = {**arrays, "pairs/key_bias": bias}
    assert len(drawn(record, mended)["bias"].x) == 20 and "NaN" not in svg(key_pairs(record, mended, 3, 1))
    none = {name: x for name, x in arrays.items() if name != "pairs/key_bias"}
    assert "bias" not in drawn(record, none) and "bias" not in by_pair(record, none, 3, 1)


def test_words_say_what_slow_pairs_hold(run) -> None:
    record, arrays = run
    slow = arrays["pairs/theta"][3].numpy() * tokens_of(record) < 1
    bias = arrays["pairs/key_bias"][3, 1].numpy() ** 2
    share = f"{100 * bias[slow].sum() / bias.sum():.0f} % of the key projection's bias"
    said = by_pair(record, arrays, 3, 1)
    assert share in said and f"{2 * slow.sum()} of 64 channels" in said
    errors = [float(arrays[f"lane/{at}/key_channel_error"][3, 1].sum()) for at in range(3)]
    spread = float(arrays["pairs/key_spread"][3, 1].double().square().sum()) * tokens_of(record)
    times = f"{(max(errors) / spread) ** 0.5:.2g} times that spread over all its pairs."
    assert said.endswith(f"Lane {np.argmax(errors)} errs most in this head, by {times}")
    assert said in spectra.compute(record, arrays, Selection(3, 3, 9), "key").words


def test_what_cannot_be_drawn_is_said(run) -> None:
    record, arrays = run

    def shown(own, told=record) -> object:
        return spectra.compute(told, own, Selection(3, 3, 9), "key").figures["key-pairs"]

    old = {name: x for name, x in arrays.items() if not name.startswith("pairs/")}
    assert shown(old) == spectra.MISSING and by_pair(record, old, 3, 1) == ""
    lost = {**arrays, "pairs/of": torch.full((LAYERS, DIM), -1, dtype=torch.int16)}
    assert "turns the keys of layer 3 is not known" in shown(lost)
    assert shown(lost, of_kinds(record, _3=WINDOW)) == "Layer 3 is not looked at."
    assert "Layer 3 has no RoPE" in shown({**arrays, "pairs/theta": torch.zeros(LAYERS, HALF)})
    assert not isinstance(shown(arrays), str)
