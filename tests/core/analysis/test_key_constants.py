"""Layers whose keys carry a constant, against keys made so, and on the shipped runs of both models."""

import pytest
import torch

from kvq_core.analysis.key_constants import constant_layers, constant_sizes
from kvq_core.capture.spectra import spectra
from kvq_core.engine.prefill import LayerGroup
from kvq_core.pipeline.examples import example_ids, packaged_store
from tests.support.tiny_models import tiny
from ui.figures.damage import CONSTANT, damage_grid
from ui.selection import Selection
from ui.words.damage import damage


def test_sizes_are_the_mean_over_the_rest() -> None:
    rope, random = tiny("llama").rope(50), torch.Generator().manual_seed(0)
    before = torch.randn(3, 2, 50, 32, generator=random)
    before[1] += 7 * torch.randn(2, 1, 32, generator=random)
    group = LayerGroup([0, 1, 2], torch.device("cpu"), rope.rotate(before, 0), before, before)
    found = spectra(group, rope)
    sizes = constant_sizes(found["mean/key_pre"].numpy(), found["centred/key_pre"].numpy())
    for layer, size in enumerate(sizes):
        mean = before[layer].double().mean(1, keepdim=True)
        rest = (before[layer].double() - mean).square().sum().div(50).sqrt()
        assert size == pytest.approx((mean.norm() / rest).item(), rel=1e-4)
    assert list(constant_layers(found)) == [1]


def test_a_run_without_spectra_has_none() -> None:
    assert constant_layers({}) == {}
    assert constant_layers({"mean/key_pre": torch.ones(2, 1), "centred/key_pre": torch.zeros(2, 1, 4)}) == {}


@pytest.mark.slow
def test_the_shipped_runs_show_whose_keys_carry_one() -> None:
    ids, store = example_ids(), packaged_store()
    found = {name: constant_layers(store.load(ids[name])[1]) for name in ("qwen-keys", "qwen-keys-bundled")}
    assert {0, 1, 2, 8} <= set(found["qwen-keys"]) <= {0, 1, 2, 4, 8}
    assert found["qwen-keys-bundled"] == {}
    record, arrays = store.load(ids["qwen-keys"])
    said = damage(record, arrays, Selection())
    assert "Keys of layers 0, 1, 2, 4 and 8 carry a constant" in said
    figure = damage_grid(record, arrays, "relative", "key", 0, 0)
    assert figure is not None
    marked = [(line.x0 + line.x1) / 2 for line in figure.layout.shapes if line.name == CONSTANT]
    assert marked == len(record.lanes) * list(found["qwen-keys"])
    values = damage_grid(record, arrays, "relative", "value", 0, 0)
    assert values is None or CONSTANT not in [line.name for line in values.layout.shapes]
