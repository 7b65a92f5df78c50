"""Layers that captures do not look at: blank at their own numbers, and said why."""

import numpy as np
import pytest

from kvq_core.analysis.blank import blank_layers
from kvq_core.analysis.plans import shape_of
from ui.figures import bit_map, effective_rank, mean_shares, stored_bytes
from ui.selection import Selection
from ui.words.damage import damage
from ui.words.views import NOT_FITTING, spectra, why_empty


def of_kinds(record, **changed):
    """The record of a model whose layers of these numbers are of other kinds."""
    kinds = [kind.model_dump() for kind in shape_of(record).kinds]
    for layer, change in changed.items():
        kinds[int(layer[1:])] |= change
    return record.model_copy(update={"environment": record.environment.model_copy(update={"kinds": kinds})})


WINDOW = {"kind": "sliding", "window": 64}
EMPTY = {"kind": "none", "kv_heads": 0, "key_dim": 0, "value_dim": 0}


@pytest.mark.parametrize("figure", [effective_rank, mean_shares])
def test_values_by_layer_stand_at_their_own_numbers(run, figure) -> None:
    record, arrays = run
    whole, some = (figure(told, arrays, 3) for told in (record, of_kinds(record, _0=WINDOW, _2=EMPTY)))
    layers = record.environment.layers
    looked = [layer for layer in range(layers) if layer not in (0, 2)]
    for every, left in zip(whole.data, some.data, strict=True):
        assert every.mode == "lines" and list(every.x) == list(range(layers))
        assert left.mode == "markers" and list(left.x) == looked
        assert np.array_equal(np.asarray(every.y)[looked], left.y)
    assert tuple(some.layout.xaxis.range) == (-0.5, layers - 0.5)


def test_views_say_which_layers_are_blank_and_why(run) -> None:
    record, arrays = run
    assert blank_layers(record) == ""
    told = of_kinds(record, _0=WINDOW, _1=WINDOW, _4=EMPTY, _6={**EMPTY, "reads": 0})
    said = blank_layers(told)
    assert said == (
        "Not looked at, and blank: layers 0-1 attend to a window; layer 4 keeps no keys; layer 6 reads an earlier "
        "layer's keys, whose errors stand there."
    )
    assert damage(told, arrays, Selection(3, 2, 0)).endswith(said) and spectra(told, arrays, 3).endswith(said)


def test_a_model_of_windows_alone_is_not_said_to_have_too_many_lanes(run) -> None:
    record = run[0]
    windows = of_kinds(record, **{f"_{layer}": WINDOW for layer in range(record.environment.layers)})
    assert why_empty(record) == NOT_FITTING
    assert "attend to a window" in why_empty(windows) and "lanes" not in why_empty(windows)


def test_bars_of_bytes_are_the_whole_cache_where_there_are_windows(run) -> None:
    """A lane's bars are its share of the fp16 cache's, whether windows are left alone or quantized."""
    record = of_kinds(run[0], _0=WINDOW, _2=EMPTY)
    full = shape_of(record).fp16_bytes(record.lanes[0].memory.tokens)
    alone, quantized = record.lanes[0].memory, record.lanes[1].memory
    stored = sum(alone.bytes_by_part.values())
    changes = [{"window_bytes": 1000, "state_bytes": 500, "whole_ratio": (stored + 1500) / full}, {"whole_ratio": 0.25}]
    changed = zip(record.lanes, (alone, quantized), changes, strict=False)
    lanes = [lane.model_copy(update={"memory": held.model_copy(update=told)}) for lane, held, told in changed]
    figure = stored_bytes(record.model_copy(update={"lanes": lanes}))
    *parts, fp16 = figure.data
    assert sum(fp16.x) == pytest.approx(full / 1e6, rel=1e-3)
    drawn = [sum(sum(part.x[2 * lane : 2 * lane + 2]) for part in parts) for lane in range(2)]
    assert drawn == pytest.approx([(stored + 1500) / 1e6, 0.25 * full / 1e6], rel=1e-3, abs=2e-3)


@pytest.mark.slow
def test_bits_are_blank_where_a_window_has_left_tokens_behind(run) -> None:
    record, arrays = run
    tokens = arrays["lane/0/key_bits"].shape[2]
    layers = record.environment.layers
    told = of_kinds(record, **{f"_{layer}": EMPTY for layer in range(3, layers)}, _0={**WINDOW, "window": 5}, _2=EMPTY)
    drawn = bit_map(told, arrays, "key", "layers", 0).data[0]
    plane, begin = np.asarray(drawn.z), np.asarray(drawn.x)
    every = np.broadcast_to(bit_map(record, arrays, "key", "layers", 0).data[0].z, plane.shape)
    shown = ~np.isnan(plane)
    assert not shown[2:].any() and shown[1].all() and np.array_equal(shown[0], begin >= tokens - 5)
    assert np.array_equal(plane[shown], every[shown])
    heads = np.asarray(bit_map(told, arrays, "key", "heads", 0).data[0].z)
    assert not np.isnan(heads).any(), "layer 1 holds them all"
