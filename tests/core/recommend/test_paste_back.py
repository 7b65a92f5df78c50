"""Whatever the project writes for an engine is read back as the lane that it was written for."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from kvq_core.analysis.deploy import of_rules
from kvq_core.engines import engines
from kvq_core.methods import LayerKind, Method, ModelShape, make, methods
from kvq_core.methods.deployments import Elsewhere, with_center
from kvq_core.methods.formats.exllama import Exl3
from kvq_core.pipeline.lanes import rule_record
from kvq_core.recommend.engine_flags import engine_formats, lane_of_flags, passed_over
from kvq_core.spec import TENSORS, Lane

LAYERS = 6
HEADS: dict[str, Any] = {"kv_heads": 2, "key_dim": 64, "value_dim": 64}
FULL, SLIDING = LayerKind(kind="full", **HEADS), LayerKind(kind="sliding", window=32, **HEADS)
CHUNKED, STATE = LayerKind(kind="chunked", window=32, **HEADS), LayerKind(kind="none", recurrent=64)
SHAPES = {
    name: ModelShape.of_layers(kinds, 4, 2048)
    for name, kinds in {
        "full": (FULL,) * LAYERS,
        "sliding beside full": (SLIDING, FULL) * 3,
        "all sliding": (SLIDING,) * LAYERS,
        "chunked beside full": (CHUNKED, CHUNKED, FULL) * 2,
        "states": (STATE, FULL) * 3,
    }.items()
}
KINDS: list[dict[str, Any]] = [
    {},
    {"sliding": True},
    {"tensors": "keys"},
    {"tensors": "values", "sliding": True},
    {"layers": (1, 2, 3, 4)},
    {"layers": (1, 3, 5)},
    {"layers": (2, 3), "sliding": True},
]
NAMES = ["q8_0", "q4_0", "q6_0", "bf16", "fp16", "exl3", "fp8", "nvfp4", "quanto"]  # of keys beside those of values


def rules() -> Iterator[list[dict[str, Any]]]:
    for each in (*engine_formats(), None):
        data = {"method": "fp16"} if each is None else each.data
        yield from ([{**data, **more}] for more in KINDS)
    for key in NAMES:
        yield from ([{"method": key, "tensors": "keys"}, {"method": value, "tensors": "values"}] for value in NAMES)
    unrotated = {"knobs": {"rotate": False}, "sliding": True}
    for key in ("q8_0", "q4_0"):
        yield [
            {"method": key, "tensors": "keys", **unrotated},
            {"method": "q6_0", "tensors": "values", "sliding": True},
        ]
    yield [{"method": "exl3", "knobs": {"bits": bits}, "tensors": t} for bits, t in ((8, "keys"), (3, "values"))]


def stored(lane: Lane, shape: ModelShape) -> dict[tuple[str, int], Method]:
    """What is quantized, by tensor and layer."""
    return {(part.tensor, at): part.method for part in lane.plan(shape) for at in part.layers if part.method.quantizes}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_command_is_read_back_as_its_lane(shape: ModelShape) -> None:
    told = set()
    for given in rules():
        lane = Lane.model_validate({"label": "", "rules": given})
        if lane.why_not(shape):
            continue
        for way in of_rules([rule_record(rule) for rule in lane.every_rule], shape.kinds)[0]:
            read = lane_of_flags(way.how, shape.kinds)
            assert stored(read, shape) == stored(lane, shape), (way.how, given)
            again, _ = of_rules([rule_record(rule) for rule in read.every_rule], shape.kinds)
            assert way.how in [each.how for each in again if each.tool == way.tool], (way.how, given)
            assert passed_over(way.how, read) == ()
            told.add(way.tool)
    assert told == engines().keys()


VARIANTS = {
    "fp8": [{"format": "e5m2"}],
    "nvfp4": [{"four_over_six": True}],
    "kvarn": [{"value_bits": 4}, {"tile": 64}],
    "exl3": [{"bits": 8}, {"key_bits": 6, "value_bits": 5}, {"compander": 0.25}],
    "q6_0": [{"rotate": True}],
    **{name: [{"rotate": False}] for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")},
    "turboquant": [{"preset": name} for name in ("k8v4", "k3v4_nc", "3bit_nc")],
    "quanto": [{"bits": 2, "group_size": 32, "residual_length": 64}],
    "hqq": [{"bits": 8, "axis": 1}, {"bits": 2}],
}
NEAR = {"kivi", "per_token", "per_channel"}  # whose nearest relatives are written


def by_tensor(lane: Lane) -> dict[str, Method]:
    """Codes of keys and of values of several widths, apart."""
    found: dict[str, Method] = {}
    for rule in lane.every_rule:
        for tensor in TENSORS if rule.tensors == "both" else (rule.tensors,):
            found[tensor] = rule.build().for_tensor(tensor)
            if isinstance(method := found[tensor], Exl3):
                own = {
                    "bits": method.width("key" if tensor == "keys" else "value"),
                    "key_bits": None,
                    "value_bits": None,
                }
                found[tensor] = method.model_copy(update=own)
    return found


@pytest.mark.parametrize("name", methods())
def test_what_a_method_says_of_an_engine_is_read_back(name: str) -> None:
    for knobs in ({}, *VARIANTS.get(name, [])):
        method, lane = make(name, **knobs), Lane.model_validate({"label": "", "method": name, "knobs": knobs})
        for way in (way for way in method.elsewhere() if way.tool in engines()):
            read = lane_of_flags(way.how, SHAPES["full"].kinds)
            assert name in NEAR or by_tensor(read) == by_tensor(lane), way.how
            assert passed_over(way.how, read) == ()


def test_a_line_with_what_no_lane_has_says_so() -> None:
    ways: tuple[Elsewhere, ...] = with_center(make("per_token").elsewhere(), "mean_after_rope")
    line = ways[-1].how
    assert "--kv-mean-center" in line and passed_over(line, lane_of_flags(line, None)) == ("--kv-mean-center",)
    turned = "ik_llama.cpp/build/bin/llama-server -ctk q8_0 -ctv q8_0 -khad"
    assert passed_over(turned, lane_of_flags(turned, None)) == ("-khad",)


@pytest.mark.parametrize("name", engines())
def test_an_engine_is_told_with_file_and_line(name: str) -> None:
    row = engines()[name]
    assert row.source.keys() == {"flags", "words", "prefill", "windows", "reserve"}, "or: not found in its source"
    assert all(each == "not found in its source" or re.search(r"\.(py|cpp|h)\b", each) for each in row.source.values())
    words = {word for each in engine_formats() if (word := each.method.cache_types.get(name))}
    assert set(row.also.values()) <= words, "other words of formats that it has"
    if name != "transformers":  # what its releases are told of is arguments of code
        assert row.first.keys() - words <= {row.skip, *re.findall(r"-\w+", "-vhad -cq -cca"), row.plain}
