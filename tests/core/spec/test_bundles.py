"""Bundles: lanes that answer one question together, named in place of lanes."""

import pytest

from kvq_core.errors import SpecError
from kvq_core.methods import methods
from kvq_core.presets import BUNDLES, parse_placed, with_bundle
from kvq_core.presets.equal import NEAR, USUAL, compared_families, equal_bytes
from kvq_core.sizing.count import CacheAt, PlannedCache
from kvq_core.spec import MAX_LANES, ComparisonSpec, parse_spec

EVERY = [(name, {key: v}) for name, b in BUNDLES.items() for key, option in b.options.items() for v in option.values]
EVERY += [(name, {}) for name in BUNDLES]


def spec_of(bundle: object, **more: object) -> ComparisonSpec:
    return parse_placed({"prompt": "A prompt.", "bundle": bundle, **more})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), EVERY, ids=str)
def test_every_bundle_is_lanes_that_differ(name: str, options: dict[str, str]) -> None:
    spec = spec_of({"name": name, **options} if options else name)
    assert 2 <= len(spec.lanes) <= MAX_LANES
    assert len({lane.label for lane in spec.lanes}) == len(spec.lanes)
    plain = [lane.model_dump(exclude={"label"}) for lane in spec.lanes]
    assert all(one not in plain[:at] for at, one in enumerate(plain))
    for lane in spec.lanes:
        assert lane.prefill != "deployed" or lane.chunks is not None, lane.label


def test_a_bundle_is_gone_once_it_is_read() -> None:
    spec = spec_of("eight-bit")
    assert parse_spec({"prompt": "A prompt.", "lanes": spec.model_dump(mode="json")["lanes"]}) == spec
    assert "bundle" not in spec.canonical()


def test_a_grid_has_every_key_format_with_every_value_format() -> None:
    spec = spec_of({"name": "grid", "family": "llama.cpp"})
    assert len(spec.lanes) == 7 * 7 - 1
    widths = {lane.label for lane in spec_of({"name": "grid", "family": "exllamav3"}).lanes}
    assert {"K 7 V 6", "K fp16 V 5"} <= widths and len(widths) == 8 * 8 - 1
    dtypes = {rule.method for lane in spec_of({"name": "grid", "family": "vllm"}).lanes for rule in lane.every_rule}
    assert dtypes == {"fp8", "nvfp4", *(f"{name}_per_token_head" for name in ("int8", "int4", "fp8"))}
    both = next(lane for lane in spec.lanes if lane.label == "K q8_0 V q4_0")
    assert [(rule.tensors, rule.method) for rule in both.every_rule] == [("keys", "q8_0"), ("values", "q4_0")]
    keys = next(lane for lane in spec.lanes if lane.label == "K q8_0 V fp16")
    assert (keys.method, keys.tensors) == ("q8_0", "keys")


def test_what_engines_ship_is_in_deploy() -> None:
    deployed = {rule.method for lane in spec_of("deploy").lanes for rule in lane.every_rule}
    assert {"q8_0", "fp8", "nvfp4", "turboquant", "exl3", "mxfp4"} <= deployed <= set(methods())


@pytest.mark.slow
def test_lanes_of_equal_bytes_meet_the_budget_or_say_that_they_cannot() -> None:
    """On a usual cache; test_solved.py holds them to a run's tensors."""
    for budget in (2.5, 4.5, 12.0):
        at = CacheAt(USUAL.shape, 256, 319)
        lanes = spec_of({"name": "equal-bytes", "bits": budget, "tokens": 256}).lanes
        for lane in lanes:
            told, label = PlannedCache(lane, at.shape).bits(at.prompt, at.tokens), lane.label
            assert (abs(told - budget) > NEAR * budget) == ("cannot reach" in label or "below" in label), label
            assert "below" not in label or told < budget, label
        assert len({rule.method for lane in lanes for rule in lane.every_rule}) >= len(lanes) > 6
        near = sum("cannot" not in lane.label and "below" not in lane.label for lane in lanes)
        assert near >= {2.5: 1, 4.5: 5, 12.0: 0}[budget]
    assert all("cannot reach 12" in lane.label for lane in lanes if lane.rules is None and lane.method == "exl3")


@pytest.mark.slow
def test_lanes_are_built_once_for_caches_of_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a budget that none can reach, so that all are tried."""
    equal_bytes(20.0, at=CacheAt(USUAL.shape, 256, 319))
    monkeypatch.setattr("kvq_core.presets.equal.Lane", None)
    assert len(equal_bytes(20.0, at=CacheAt(USUAL.shape, 256, 320))) == len(compared_families())


def test_equal_loss_has_every_family_at_several_widths() -> None:
    lanes = spec_of("equal-loss").lanes
    assert lanes == spec_of({"name": "equal-loss", "kld": 0.1}).lanes and len(lanes) <= MAX_LANES
    for name, family in compared_families().items():
        assert sum((lane.label or "").startswith(f"{name} ") for lane in lanes) >= min(4, len(family)), name


@pytest.mark.parametrize(
    ("bundle", "more", "said"),
    [
        ("deploi", {}, "Did you mean 'deploy'"),
        (7, {}, "give a name: seed-2bit"),
        ({"name": "grid", "family": "mlx"}, {}, "family = 'mlx' is not allowed; allowed: llama.cpp, vllm"),
        ({"name": "grid", "bits": 4}, {}, "unknown option 'bits'; allowed: family"),
        ({"name": "deploy", "bits": 4}, {}, "unknown option 'bits'; allowed: none"),
        ({"name": "grid", "family": ["vllm"]}, {}, "is not allowed; allowed: llama.cpp"),
        ({"name": "equal-bytes", "bits": 0.2}, {}, "bits = 0.2 is not allowed; allowed: a number from 1 to 16"),
        ({"name": "equal-bytes", "tokens": 99.5}, {}, "allowed: a whole number from 64 to 131072"),
        ({"name": "equal-bytes", "bits": True}, {}, "bits = True is not allowed"),
        ({"name": "equal-loss", "kld": "small"}, {}, "kld = 'small' is not allowed"),
        ("deploy", {"lanes": [{"method": "kivi"}]}, "bundle and lanes are both given"),
    ],
    ids=str,
)
def test_impossible_bundles_are_refused_in_one_line(bundle: object, more: dict, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec_of(bundle, **more)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_bundle_replaces_the_lanes_of_a_spec() -> None:
    given = parse_spec({"prompt": "A prompt.", "max_new_tokens": 9, "lanes": [{"method": "kivi"}]})
    assert with_bundle(given, "grid:KIVI") == spec_of({"name": "grid", "family": "KIVI"}, max_new_tokens=9)
    with pytest.raises(SpecError, match="family = 'x'"):
        with_bundle(given, "grid:x")
    assert with_bundle(given, "equal-bytes:2.5").lanes == spec_of({"name": "equal-bytes", "bits": 2.5}).lanes
    with pytest.raises(SpecError, match="unknown option"):
        with_bundle(given, "deploy:x")
