"""Keys stored without a constant: what is read, what is stored, what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from kvq_core.analysis.context_growth import Growth
from kvq_core.codecs.groups import GroupCodec
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup, SharedPrefill
from kvq_core.engine.stored_bytes import measure
from kvq_core.engine.stress import apply_stress
from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape
from kvq_core.models.rope import Rope
from kvq_core.models.shape import shape_of
from kvq_core.spec import ComparisonSpec, Lane, Stress
from tests.core.engine.test_device_groups import spread
from tests.support.campaigns import pairs
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

TOKENS = 60
KNOBS: dict[str, dict[str, Any]] = {
    "per_token": {"bits": 3, "group_size": 16, "residual_length": 7},
    "per_channel": {"bits": 3, "group_size": 8, "residual_length": 16},
    "kivi": {"bits": 2, "group_size": 8, "residual_length": 16, "sink_tokens": 3},
    "innerq": {"group_size": 16, "sink_tokens": 5, "recent_tokens": 9},
    "squat": {"group_size": 8, "residual_length": 16, "block_size": 8},
    "qaq": {"target_bits": 3.0},
}
HOW = ("mean", "bias", "mean_after_rope")


def lane(method: str = "per_token", center: str = "mean", **more: Any) -> Lane:
    knobs = {**KNOBS[method], **more.pop("knobs", {})}
    return Lane(label=f"{method} {center}", method=method, knobs=knobs, center=center, **more)  # type: ignore[arg-type]


def prefilled(name: str = "qwen2") -> tuple[list[LayerGroup], Rope]:
    prefill = SharedPrefill(tiny(name), prompt_ids(TOKENS))
    list(prefill.run())
    return prefill.groups, tiny(name).rope(TOKENS)


def turned(constant: Tensor, rope: Rope) -> Tensor:
    """The constant (layers, kv_heads, head_dim) after RoPE at every position, pair by pair, in float64."""
    half = constant.shape[-1] // 2
    a, b = constant.double()[..., None, :half], constant.double()[..., None, half:]
    cos, sin = rope.cos[:TOKENS, :half].double(), rope.sin[:TOKENS, :half].double()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def constant_of(how: str, group: LayerGroup, rope: Rope) -> Tensor:
    """What is subtracted after RoPE, (layers, kv_heads, tokens, head_dim), computed in float64."""
    if how == "bias":
        assert group.key_bias is not None
        return turned(group.key_bias, rope)
    if how == "mean_after_rope":
        mean = group.keys.double().mean(-2).half().double()
        return mean[..., None, :].expand(-1, -1, TOKENS, -1)
    back = replace(rope, sin=-rope.sin)
    keys = group.keys.double()
    half = keys.shape[-1] // 2
    cos, sin = (t[:TOKENS, :half].double() for t in (back.cos, back.sin))
    a, b = keys[..., :half], keys[..., half:]
    before = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return turned(before.mean(-2).half(), rope)


@pytest.mark.parametrize("how", HOW)
def test_codes_are_those_of_the_keys_without_the_constant(how: str) -> None:
    groups, rope = prefilled()
    cache = LaneCache.of_prompt(lane(center=how, knobs={"residual_length": 0}), groups, rope)
    (part,) = cache.of("key")
    constant = constant_of(how, groups[0], rope)
    codec = GroupCodec(3, 16, "channels", torch.float16)
    expected = codec.decode(codec.encode((groups[0].keys.double() - constant).float(), 0)).double() + constant
    read = torch.cat([values for _, values in cache.pieces(part)], -2)
    torch.testing.assert_close(read.double(), expected, rtol=0, atol=2e-3)  # a code may fall on the other side
    assert (read - groups[0].keys).abs().mean() < 0.2


@pytest.mark.slow
@pytest.mark.long("combine", sample=2)
@pytest.mark.parametrize(("method", "how"), pairs(KNOBS, HOW))
def test_every_store_decodes_to_what_attention_reads(method: str, how: str) -> None:
    outcome = run_engine(
        tiny("qwen2"), prompt_ids(TOKENS), [lane(method, how), lane(method, "none")], 40, audit=True, ignore_eos=True
    )
    assert [state.error for state in outcome.decode.states] == [None, None]


@pytest.mark.parametrize("how", ["mean", "mean_after_rope"])
def test_keys_before_rope_are_centred_there(how: str) -> None:
    groups, rope = prefilled()
    pre = lane("squat", how, knobs={"rope": "pre", "bits": 8, "residual_length": 8})
    (part,) = LaneCache.of_prompt(pre, groups, rope).of("key")
    assert part.rope is not None
    assert part.stream.center is not None
    read = torch.cat([values for _, values in LaneCache.of_prompt(pre, groups, rope).pieces(part)], -2)
    assert (read - groups[0].keys).norm() < 0.02 * groups[0].keys.norm()
    ends = part.stream.center.at(0, 3)
    assert (ends.shape[-2] == 1) == (how == "mean")  # the mean after RoPE is another one at every position before it


@pytest.mark.parametrize("how", HOW)
def test_values_are_stored_as_if_keys_were_not_centred(how: str) -> None:
    """QAQ's widths of values come from the attention, which is that of the true keys."""
    groups, rope = prefilled()

    def values(center: str) -> Tensor:
        (part,) = LaneCache.of_prompt(lane("qaq", center), groups, rope).of("value")
        return part.stream.decode()

    torch.testing.assert_close(values(how), values("none"), rtol=0, atol=0)


def test_a_constant_costs_two_bytes_a_channel_of_the_quantized_layers() -> None:
    groups, rope = prefilled()
    shape = tiny("qwen2").shape
    for how, layers, expected in (("mean", "all", 3), ("mean_after_rope", (0, 2), 2), ("bias", "all", 0)):
        held = lane(center=how, layers=layers)
        memory = measure(LaneCache.of_prompt(held, groups, rope), shape)
        plain = measure(LaneCache.of_prompt(lane(center="none", layers=layers), groups, rope), shape)
        assert memory.bytes_by_part.get("key_center", 0) == expected * 2 * shape.kv_heads * shape.head_dim
        growth, without = (
            Growth.of(x, m, shape) for x, m in ((held, memory), (lane(center="none", layers=layers), plain))
        )
        at = 4096
        assert growth.nbytes(shape, at, 1) - without.nbytes(shape, at, 1) == pytest.approx(
            memory.bytes_by_part.get("key_center", 0), abs=1e-6 * growth.nbytes(shape, at, 1)
        )


def test_a_constant_of_the_keys_is_no_longer_quantized() -> None:
    """A constant 30 times the keys ruins keys per token; centred on their mean, they are as good as without it."""
    groups, rope = prefilled("llama")
    group = groups[0]
    constant = 30 * torch.randn(group.keys.shape[0], group.keys.shape[1], group.keys.shape[-1])
    biased = replace(group, keys=(group.keys.double() + turned(constant, rope)).float())

    def error(given: LayerGroup, how: str) -> float:
        cache = LaneCache.of_prompt(lane(center=how, knobs={"bits": 4, "residual_length": 0}), [given], rope)
        (part,) = cache.of("key")
        return (torch.cat([v for _, v in cache.pieces(part)], -2) - given.keys).norm().item()

    assert error(biased, "none") > 10 * error(group, "none")
    assert error(biased, "mean") < 1.2 * error(group, "mean") < 1.2 * error(group, "none")
    assert error(biased, "mean_after_rope") > 3 * error(biased, "mean")


def test_the_bias_of_a_projection_is_what_its_keys_carry() -> None:
    model = tiny("qwen2")
    assert (model.shape.key_bias, tiny("llama").shape.key_bias, tiny("qwen3").shape.key_bias) == (
        "bias",
        "none",
        "none",
    )
    weights = torch.stack([layer.self_attn.k_proj.bias for layer in model.model.model.layers])
    assert model.key_bias is not None
    torch.testing.assert_close(model.key_bias.flatten(1), weights)
    assert tiny("llama").key_bias is None
    groups, _ = prefilled()
    assert groups[0].key_bias is not None


def test_stress_scales_the_bias_as_it_scales_the_keys() -> None:
    model = tiny("qwen2")
    prefill = SharedPrefill(model, prompt_ids(TOKENS))
    list(prefill.run())
    before = prefill.groups[0].key_bias
    assert before is not None
    applied, _ = apply_stress(model, prefill, Stress(key_outlier_scale=4, layers=(1,)))
    after = prefill.groups[0].key_bias
    assert after is not None
    torch.testing.assert_close(after, before * applied.factors)
    assert not torch.equal(after, before)


@pytest.mark.slow
def test_devices_share_a_lane() -> None:
    ids, lanes = prompt_ids(TOKENS), [lane(center=how) for how in HOW]
    one, two = (run_engine(model, ids, lanes, 12, ignore_eos=True) for model in (tiny("qwen2"), spread("qwen2")))
    for expected, found in zip(one.logits(), two.logits(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "per_token", "tensors": "values", "center": "mean"}, "quantizes no keys"),
        ({"method": "fp16", "center": "mean"}, "quantizes no keys"),
        ({"method": "svdq", "center": "mean"}, "subtracts the prompt's mean key itself"),
        ({"method": "commvq", "center": "bias"}, "learned from keys as they are"),
    ],
)
def test_what_cannot_be_centred_says_why(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Lane.model_validate(given)


def test_a_model_may_have_no_bias_or_a_norm_behind_it() -> None:
    shape = tiny("llama").shape
    assert "no bias; take center = mean" in (lane(center="bias").why_not(shape) or "").replace("have ", "")
    assert "norm" in (lane(center="bias").why_not(replace(shape, key_bias="normed")) or "")
    config = Qwen3Config(**{**tiny("qwen3").model.config.to_dict(), "attention_bias": True})
    with torch.device("meta"):
        assert shape_of(AutoModelForCausalLM.from_config(config)).key_bias == "normed"
    assert lane(center="bias").why_not(replace(shape, key_bias="bias")) is None
    lost = ModelShape(3, 4, 2, 32, 64, unknown_rope=(1,))
    assert (lane(center="mean").why_not(lost) or "").endswith("out of layers, or take center = mean_after_rope")
    assert "a method that stores" in (lane("squat", "mean", knobs={"rope": "pre"}).why_not(lost) or "")
    assert lane(center="mean_after_rope").why_not(lost) is None


def test_ids_of_lanes_without_it_stay() -> None:
    given: dict[str, Any] = {"prompt": "Hi", "lanes": [{"method": "kivi"}]}
    plain = ComparisonSpec.model_validate(given)
    assert "center" not in plain.canonical()
    given["lanes"][0]["center"] = "none"
    assert ComparisonSpec.model_validate(given).canonical() == plain.canonical()
    given["lanes"][0]["center"] = "mean"
    assert '"center":"mean"' in ComparisonSpec.model_validate(given).canonical()
