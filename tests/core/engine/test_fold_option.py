"""Keys divided by scales of their RoPE pairs: the same scores, other groups; what is stored, read, and refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.architectures import ids_of, tiny_of
from kvq_core.codecs.fold import Fold, pair_scales
from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.hadamard import Hadamard
from kvq_core.codecs.stream import Stream
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import LayerGroup, SharedPrefill
from kvq_core.engine.rotation import fold_prompt, rounded_turned
from kvq_core.engine.stored_bytes import measure
from kvq_core.errors import SpecError
from kvq_core.methods import ModelShape, Prompt, Window
from kvq_core.models.pairs import pairs_of
from kvq_core.models.rope import Rope
from kvq_core.spec import ComparisonSpec, Lane, Transforms, parse_lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

TOKENS = 60
TOKEN: dict[str, Any] = {"method": "per_token", "knobs": {"bits": 3, "group_size": 16, "residual_length": 0}}
INNER: dict[str, Any] = {"group_size": 16, "sink_tokens": 5, "recent_tokens": 9}


def prefilled(name: str = "qwen2") -> tuple[list[LayerGroup], Rope]:
    prefill = SharedPrefill(tiny(name), prompt_ids(TOKENS))
    list(prefill.run())
    return prefill.groups, tiny(name).rope(TOKENS)


def apart(x: Tensor, y: Tensor) -> float:
    """The largest difference, in parts of the largest element."""
    return ((x - y).abs().max() / y.abs().max()).item()


@pytest.mark.parametrize("kind", ["llama", "cohere", "stablelm", "glm", "olmo2"])
def test_scores_are_those_of_keys_as_they_are(kind: str) -> None:
    """q.k = (q s).(k / s) with s before RoPE and after it, whichever channels a model turns together."""
    model = tiny_of(kind)
    rope, prefill = model.rope(40), SharedPrefill(model, ids_of(40))
    list(prefill.run())
    [group] = prefill.groups
    pairs = torch.stack([own.of for own in pairs_of(rope, group.layers)])
    keys, queries, single = group.keys.double(), group.queries.double(), group.keys.float()
    fold = Fold(pair_scales(single, pairs, torch.float64))
    assert (fold.scale.amax(-1) > 1.1 * fold.scale.amin(-1)).all(), "scales that are all alike would prove nothing"
    exact, own = (
        q.unflatten(1, (keys.shape[1], -1)) @ k[:, :, None].mT
        for q, k in ((queries, keys), (fold.asked(queries), fold.divided(keys)))
    )
    assert apart(own, exact) < 1e-10 and apart(fold.back(fold.divided(keys)), keys) < 1e-10
    halves = Fold(fold.scale.half())
    assert apart(halves.back(halves.divided(single)), single) < 1e-6
    before = rope.on(group.layers).unrotate(single, 0)
    after = rope.on(group.layers).rotate(fold.divided(before).float(), 0)
    assert apart(after.double(), fold.divided(keys)) < 1e-5, "s commutes with RoPE"


def test_scales_are_the_roots_of_what_a_pair_reaches() -> None:
    """Channels of other pairs than (i, i + d / 2) too, and 1 of a pair that is zero."""
    keys = torch.randn(2, 3, 20, 8, generator=torch.Generator().manual_seed(2))
    keys[0, 2, :, [4, 5]] = 0
    of = torch.tensor([[0, 0, 1, 1, 2, 2, 3, 4], [0, 1, 2, 3, 0, 1, 2, 3]])
    found = pair_scales(keys, of, torch.float32)
    for layer in range(2):
        for head in range(3):
            for channel in range(8):
                alike = keys[layer, head][:, of[layer] == of[layer, channel]]
                assert found[layer, head, 0, channel].item() == pytest.approx(alike.abs().max().sqrt().item() or 1.0)
    assert found[0, 2, 0, 4] == 1 and (pair_scales(keys * 0, of, torch.float16) == 1).all()
    assert torch.equal(pair_scales(keys, None, torch.float32)[1], found[1])


@pytest.mark.parametrize("center", ["none", "mean", "bias"])
@pytest.mark.parametrize("rotate", ["none", "signed"])
def test_keys_are_centred_then_divided_then_turned(center: str, rotate: str) -> None:
    groups, rope = prefilled()
    lane = Lane(label="x", fold="keys", center=center, rotate=rotate, **TOKEN)  # type: ignore[arg-type]
    plain = Lane(label="x", center=center, **TOKEN)  # type: ignore[arg-type]
    (part,), (other,) = (LaneCache.of_prompt(each, groups, rope).of("key") for each in (lane, plain))
    keys, held = groups[0].keys.double(), other.plain.center
    constant = 0.0 if held is None else held.at(0, TOKENS).double()
    left = keys - constant
    largest = left.abs().amax(-2)
    scale = torch.maximum(largest[..., :16], largest[..., 16:]).sqrt().half().double().repeat(1, 1, 2)[:, :, None]
    turn = torch.eye(32, dtype=torch.float64)
    if rotate == "signed":
        by = Hadamard.signed(32, keys.device, groups[0].layers, keys.shape[1], 32)
        turn = by.turned(turn.float().expand(len(keys), keys.shape[1], -1, -1)).double()
    codec = GroupCodec(3, 16, "channels")
    read = codec.decode(codec.encode(((left / scale) @ turn).float(), 0)).double()
    near = (part.plain.decode().double() - ((read @ turn.mT) * scale + constant)).abs() < 2e-3
    assert near.double().mean() > 0.999, "all but codes at a tie, which float32 and float64 may round apart"


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("center", ["none", "mean"])
def test_innerq_by_itself_is_innerq_behind_the_option(bits: int, center: str) -> None:
    """normalize_keys = folded and the lane option read the same keys, and store as much."""
    groups, rope = prefilled()
    caches = []
    for how, fold in (("folded", "none"), ("off", "keys")):
        knobs = {**INNER, "bits": bits, "normalize_keys": how}
        lane = Lane(method="innerq", knobs=knobs, fold=fold, center=center)  # type: ignore[arg-type]
        caches.append(LaneCache.of_prompt(lane, groups, rope).parts)
    for own, option in zip(*caches, strict=True):
        assert torch.equal(own.plain.decode(), option.plain.decode())
        assert sum(own.plain.nbytes().values()) == sum(option.plain.nbytes().values())


def test_powers_of_two_change_no_code_by_channel() -> None:
    """A scale and a zero-point of every channel are scaled with it: KIVI's keys are what they were."""
    keys = torch.randn(2, 2, 64, 16, generator=torch.Generator().manual_seed(1))
    codec, window = GroupCodec(2, 8, "tokens"), Window(step=8)
    scale = 2.0 ** torch.randint(-3, 4, (2, 2, 1, 16), generator=torch.Generator().manual_seed(2))
    plain = Stream.of_prompt(keys, window, codec)
    folded = Stream.of_prompt(keys, window, codec, fold=Fold(scale.half()))
    assert torch.equal(folded.decode(), plain.decode())


def test_queries_are_rounded_where_the_keys_are_and_come_back() -> None:
    scale = torch.rand(1, 2, 1, 32, generator=torch.Generator().manual_seed(3)) + 0.5
    fold, turn = Fold(scale), Hadamard.of(32, torch.device("cpu"))
    queries, seen = torch.randn(4, 5, 32, generator=torch.Generator().manual_seed(4)), list[Tensor]()

    def rounding(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    torch.testing.assert_close(rounded_turned(rounding, turn, fold)(queries), queries, rtol=1e-5, atol=1e-5)
    expected = turn.turned((queries * scale[0].repeat_interleave(2, 0))[None])
    torch.testing.assert_close(seen[0].view(expected.shape), expected)


def test_what_a_method_is_fitted_on_keeps_every_score() -> None:
    """Keys are divided, queries and their Gram matrix multiplied."""
    keys, queries = (torch.randn(2, heads, 30, 16, generator=torch.Generator().manual_seed(5)) for heads in (2, 4))
    prompt = Prompt(keys, keys, queries, rotated=keys)
    prompt = replace(prompt, gram=prompt.query_gram())
    assert fold_prompt(prompt, None) is prompt
    found = fold_prompt(prompt, Fold(pair_scales(keys, None, torch.float32)))
    assert found.queries is not None and found.gram is not None and found.rotated is not None
    assert torch.equal(found.keys, found.rotated) and not torch.equal(found.keys, keys)
    exact, own = (q.unflatten(1, (2, -1)) @ k[:, :, None].mT for q, k in ((queries, keys), (found.queries, found.keys)))
    torch.testing.assert_close(own, exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.gram, replace(found, gram=None).query_gram(), rtol=1e-4, atol=1e-2)


def test_lanes_of_many_methods_run_and_their_stores_are_what_is_read() -> None:
    """Also those that store keys before RoPE, look back on a step, round queries, or turn keys by themselves."""
    lanes = {
        "kivi": {"group_size": 8, "residual_length": 16},
        "innerq": {**INNER, "normalize_keys": "off"},
        "squat": {"group_size": 8, "residual_length": 16, "block_size": 8, "rope": "pre"},
        "qaq": {"target_bits": 3.0},
        **dict.fromkeys(("q4_0", "nvfp4", "turboquant", "int8_per_token_head"), {}),
    }
    every = [Lane(label=name, method=name, knobs=knobs, fold="keys") for name, knobs in lanes.items()]
    outcome = run_engine(tiny("qwen2"), prompt_ids(TOKENS), every, 6, ignore_eos=True, audit=True)
    assert {state.lane.label: state.error for state in outcome.decode.states} == dict.fromkeys(lanes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "per_token", "tensors": "values"}, "quantizes no keys"),
        ({"method": "fp16"}, "quantizes no keys"),
        ({"method": "innerq", "knobs": {"normalize_keys": "folded"}}, "does this already"),
        ({"method": "commvq"}, "learned from keys as they are"),
        ({"method": "oscar"}, "OSCAR's rotations"),
        ({"method": "think"}, "ranks channels"),
        ({"method": "rvq"}, "learns its codebooks"),
        ({"method": "shadowkv"}, "decomposes keys"),
        ({"method": "kvquant", "knobs": {"calibration": "default"}}, "calibrated on keys"),
    ],
)
def test_what_cannot_be_folded_says_why(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=f"fold = keys: .*{said}"):
        Lane.model_validate({**given, "fold": "keys"})


def test_a_model_whose_rotation_is_unknown_is_refused() -> None:
    lost = ModelShape(3, 4, 2, 32, 64, unknown_rope=(1,))
    assert "take fold = none" in (Lane(method="kivi", fold="keys").why_not(lost) or "")
    assert Lane(method="kivi", fold="keys", layers=(0, 2)).why_not(lost) is None


def test_stored_scales_are_counted_as_they_are_planned() -> None:
    groups, rope = prefilled()
    shape = tiny("qwen2").shape
    plain, folded = (Lane(label="x", fold=fold, **TOKEN) for fold in ("none", "keys"))  # type: ignore[arg-type]
    parts = [measure(LaneCache.of_prompt(lane, groups, rope), shape).bytes_by_part for lane in (plain, folded)]
    assert parts[1].pop("key_fold") == shape.layers * Transforms(fold="keys").stored_bytes(shape) > 0
    assert parts[0] == parts[1]


def test_ids_of_lanes_without_it_stay_and_words_are_read_back() -> None:
    given: dict[str, Any] = {"prompt": "Hi", "lanes": [{"method": "kivi"}]}
    plain = ComparisonSpec.model_validate(given)
    given["lanes"][0]["fold"] = "none"
    assert ComparisonSpec.model_validate(given).canonical() == plain.canonical() and "fold" not in plain.canonical()
    given["lanes"][0] |= {"fold": "keys", "center": "slow"}
    told = ComparisonSpec.model_validate(given)
    assert '"fold":"keys"' in told.canonical() and '"center":"slow"' in told.canonical()
    assert ComparisonSpec.model_validate_json(told.model_dump_json()).canonical() == told.canonical()
    assert parse_lane({"method": "kivi", "fold": "keys"}).every_rule[0].named().endswith("folded")
