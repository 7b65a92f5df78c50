"""What is taken out of a lane, one part at a time, to tell what its damage comes from."""

from typing import Any

import pytest

from benchmarks.architectures import tiny_of
from kvq_core.analysis.causes import LEAST_WINDOWS, THIRDS, variants
from kvq_core.methods import ModelShape
from kvq_core.spec import Lane

SHAPE = ModelShape(30, 9, 3, 64, 0)
FOUR = {"method": "per_token", "knobs": {"bits": 4, "residual_length": 0}}
EIGHT = {"method": "per_token", "knobs": {"bits": 8, "residual_length": 0}}
KIVI = {"method": "kivi"}
NONE = "no full-precision windows"
KEYS, VALUES = "keys in fp16", "values in fp16"
ALL = ("first third in fp16 (0-9)", "middle third in fp16 (10-19)", "last third in fp16 (20-29)")


def lane(*rules: dict[str, Any]) -> Lane:
    return Lane(label="one", rules=rules)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lane({**EIGHT, "tensors": "keys"}, {**FOUR, "tensors": "values"}), (KEYS, VALUES, *ALL)),
        (lane({**EIGHT, "layers": [12]}, KIVI), (KEYS, VALUES, *ALL)),
        (lane({**EIGHT, "tensors": "values"}), ALL),
        (lane(FOUR), (KEYS, VALUES, *ALL)),
        (lane({**FOUR, "knobs": {}}), (KEYS, VALUES, *ALL, NONE)),
        (lane({**FOUR, "sink_tokens": 4}), (KEYS, VALUES, *ALL, NONE)),
        (lane({"method": "fp16", "tokens": "last:64"}, FOUR), (KEYS, VALUES, *ALL, NONE)),
        (lane(KIVI), (KEYS, VALUES, *ALL)),
        (lane({"method": "kivi", "knobs": {"residual_length": 128}}), (KEYS, VALUES, *ALL, LEAST_WINDOWS)),
        (lane({**FOUR, "layers": [3, 4]}), (KEYS, VALUES)),
        (lane({**EIGHT, "tokens": "last:12"}, KIVI), (KEYS, VALUES, *ALL)),
    ],
)
def test_every_part_that_can_be_taken_out_is(asked: Lane, told: tuple[str, ...]) -> None:
    """Also where a rule of the lane is for nothing any more then."""
    itself, *parts = variants(asked, SHAPE)
    assert itself[0] is None and tuple(part.label for _, part in parts) == told
    before = asked.plan(SHAPE)
    for kind, part in parts:
        left = part.plan(SHAPE)
        stored = {(a.tensor, layer) for a in left for layer in a.layers}
        taken = {(a.tensor, layer) for a in before for layer in a.layers} - stored
        match kind:
            case "tensors":
                assert {tensor for tensor, _ in taken} == {part.label.split()[0]}
                assert not {tensor for tensor, _ in stored} & {tensor for tensor, _ in taken}
            case "layers":
                third = THIRDS.index(part.label.split()[0])
                assert {layer for _, layer in taken} == set(range(10 * third, 10 * third + 10))
            case _:
                assert not taken and sum(a.window.recent + a.window.sink + (a.window.step or 0) for a in left) < sum(
                    a.window.recent + a.window.sink + (a.window.step or 0) for a in before
                )


def test_thirds_are_of_the_layers_that_the_lane_quantizes() -> None:
    fifteen = lane({"method": "fp16", "layers": [0, 1]}, {**FOUR, "layers": list(range(17))}, KIVI)
    labels = [part.label for kind, part in variants(fifteen, SHAPE) if kind == "layers"]
    assert labels == ["first third in fp16 (2-10)", "middle third in fp16 (11-19)", "last third in fp16 (20-29)"]


def test_layers_with_a_window_are_taken_out_where_they_are_quantized() -> None:
    shape = tiny_of("gemma3_text").shape
    found = variants(lane({**FOUR, "sliding": True}), shape)
    assert shape.windowed and len(found) > 2 and all(part.out_of_place(shape) is None for _, part in found)
