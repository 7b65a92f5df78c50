"""What is stored behind a rotation: what is read, counted, said and refused."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from kvq_core.codecs.groups import GroupCodec
from kvq_core.codecs.hadamard import Hadamard
from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.stored_bytes import measure
from kvq_core.errors import SpecError
from kvq_core.methods import Fitted, Prompt
from kvq_core.methods.per_token import PerToken
from kvq_core.spec import ComparisonSpec, Lane, Rule
from tests.core.engine.test_centering_dense import PROMPT, TOKENS, whole
from tests.core.engine.test_device_groups import spread
from tests.core.engine.test_rotation_dense import HOW, TURNED
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import CONFIGS, SCALED, prompt_ids, tiny


@pytest.mark.long("combine", sample=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONFIGS, *SCALED])
def test_every_store_decodes_to_what_attention_reads(name: str) -> None:
    lanes = [
        Lane(label=f"{method} {how}", rotate=how, **{**TURNED[method], **more})  # type: ignore[arg-type]
        for method, how, more in (
            ("per_token", "signed", {}),
            ("kivi", "hadamard", {"rotate_block": 8, "layers": (0, 2)}),
            ("qaq", "signed", {"tensors": "keys"}),
            ("squat", "hadamard", {}),
        )
    ]
    outcome = run_engine(tiny(name), prompt_ids(PROMPT), lanes, 20, audit=True, ignore_eos=True)
    assert [state.error for state in outcome.decode.states] == [None] * len(lanes)


def test_signs_differ_by_layer_and_head_and_stay_what_they_are() -> None:
    signs = Hadamard.signed(16, torch.device("cpu"), (0, 5), 2, 80).signs
    assert signs is not None
    assert len({tuple(own.flatten().tolist()) for own in signs.flatten(0, 1)}) == 4
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    alone = Hadamard.signed(16, torch.device("cpu"), (5,), 2, 80).signs
    assert alone is not None and torch.equal(alone[0], signs[1])
    told = "".join("+" if sign > 0 else "-" for sign in signs[1, 1, 0, :32].tolist())
    assert told == "+-+++-+--+----+++++--+++-++-++++"  # of SEED: stored runs were made with them


@pytest.mark.parametrize("how", HOW)
def test_nothing_is_stored_for_it(how: str) -> None:
    group, rope = whole()
    shape = tiny("qwen2").shape
    plain, turned = (
        measure(LaneCache.of_prompt(Lane(**TURNED["kivi"], rotate=r), [group], rope), shape)  # type: ignore[arg-type]
        for r in ("none", how)
    )
    assert turned.bytes_by_part == plain.bytes_by_part


@pytest.mark.parametrize("tensors", ["keys", "values"])
def test_what_a_lane_leaves_alone_is_not_turned(tensors: str) -> None:
    """Also for QAQ, whose values' widths come from scores: those of turned keys and queries are the same."""
    group, rope = whole()
    plain, turned = (
        LaneCache.of_prompt(Lane(**TURNED["qaq"], tensors=tensors, rotate=how), [group], rope)  # type: ignore[arg-type]
        for how in ("none", "signed")
    )
    other = "value" if tensors == "keys" else "key"
    for a, b in zip(plain.of(other), turned.of(other), strict=True):
        torch.testing.assert_close(a.stream.decode(), b.stream.decode(), rtol=0, atol=0)
    (a,), (b,) = (cache.of("key" if tensors == "keys" else "value") for cache in (plain, turned))
    assert not torch.equal(a.stream.decode(), b.stream.decode())


def test_an_outlier_channel_is_spread_over_its_block() -> None:
    """Keys per token with one channel 50 times the others: turned, they lose a third of the error at most."""
    group, rope = whole()
    keys = group.keys.clone()
    keys[..., 3] *= 50

    def error(how: str) -> float:
        knobs = {"bits": 4, "group_size": 32, "residual_length": 0}
        lane = Lane(method="per_token", tensors="keys", knobs=knobs, rotate=how)  # type: ignore[arg-type]
        (part,) = LaneCache.of_prompt(lane, [replace(group, keys=keys)], rope).of("key")
        read = torch.cat([x for _, x in LaneCache.of_prompt(lane, [replace(group, keys=keys)], rope).pieces(part)], -2)
        return (read - keys).norm().item()

    assert error("hadamard") < 0.67 * error("none")
    assert error("signed") < 0.67 * error("none")


@pytest.mark.slow
def test_devices_share_a_lane() -> None:
    """Signs are the model's layers', wherever a layer lies."""
    ids, lanes = prompt_ids(PROMPT), [Lane(**TURNED["per_token"], rotate=how) for how in HOW]  # type: ignore[arg-type]
    one, two = (run_engine(model, ids, lanes, 12, ignore_eos=True) for model in (tiny("qwen2"), spread("qwen2")))
    for expected, found in zip(one.logits(), two.logits(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "fp16", "rotate": "hadamard"}, "quantizes nothing"),
        ({"method": "svdq", "rotate": "signed"}, "svdq stores these keys before RoPE"),
        ({"method": "svdq", "tensors": "values", "rotate": "signed"}, "quantizes nothing"),
        ({"method": "squat", "knobs": {"rope": "pre"}, "rotate": "hadamard"}, "squat stores these keys before RoPE"),
        ({"method": "commvq", "rotate": "hadamard"}, "learned from keys and values as they are"),
        ({"method": "commvq", "tensors": "values", "rotate": "hadamard"}, "learned from keys and values as they are"),
        ({"method": "innerq", "knobs": {"normalize_keys": "folded"}, "rotate": "signed"}, "commutes with RoPE"),
        ({"method": "kivi", "rotate_block": 16}, "needs rotate = hadamard or signed"),
        ({"method": "kivi", "rotate": "hadamard", "rotate_block": 24}, "24 is no power of two"),
        ({"method": "kivi", "rotate": "haar"}, "rotate"),
    ],
)
def test_what_cannot_be_turned_says_why(given: dict[str, Any], said: str) -> None:
    with pytest.raises((SpecError, ValueError), match=said) as caught:
        Lane.model_validate(given)
    if isinstance(caught.value, SpecError):
        assert "\n" not in str(caught.value)


def test_values_of_a_method_that_stores_keys_before_rope_can_be_turned() -> None:
    Lane(method="squat", knobs={"rope": "pre"}, tensors="values", rotate="hadamard")
    Lane(method="svdq", knobs={"value_bits": 4}, tensors="values", rotate="hadamard")


def test_a_head_may_be_too_odd_or_too_small() -> None:
    shape = tiny("llama").shape
    turned = Lane(method="per_token", knobs={"group_size": 5}, rotate="hadamard")
    assert "head_dim = 75 is odd" in (turned.why_not(replace(shape, head_dim=75)) or "")
    block = Lane(method="per_token", knobs={"group_size": 16}, rotate="signed", rotate_block=64)
    assert "does not divide head_dim = 80; give 16 or less" in (block.why_not(replace(shape, head_dim=80)) or "")
    assert block.why_not(replace(shape, head_dim=64, kinds=())) is None


def test_a_method_that_turns_by_a_knob_of_its_own_refuses_a_second_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(PerToken):
        """Turns by itself."""

        name: ClassVar[str] = "own"

        @property
        def not_rotated(self) -> str | None:
            return "own turns by its knob spin; set spin = off, or leave rotate out"

    monkeypatch.setattr(Rule, "build", lambda self: Own())
    with pytest.raises(SpecError, match="own turns by its knob spin"):
        Lane(method="per_token", rotate="hadamard")


def test_a_choice_of_keys_is_asked_in_the_basis_it_was_fitted_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that reads the keys of the highest scores chooses the same ones behind a turn."""

    class Picky(PerToken):
        """Reads the keys whose scores are above the mean."""

        name: ClassVar[str] = "picky"

        @property
        def needs_queries(self) -> bool:
            return True

        def fit(self, prompt: Prompt) -> Fitted:
            codecs = super().fit(prompt)
            keys = prompt.keys

            def select(layer: int, queries: Tensor, tokens: int) -> Tensor:
                of_head = queries.unflatten(0, (keys.shape[1], -1)).mean((1, 2))
                return torch.einsum("hd,htd->ht", of_head, keys[layer]) > 0

            return Fitted(codecs.key, codecs.value, select=select)

    monkeypatch.setattr(Rule, "build", lambda self: Picky(group_size=16))
    group, rope = whole()
    chosen = []
    for how in ("none", *HOW):
        cache = LaneCache.of_prompt(Lane(method="per_token", rotate=how), [group], rope)  # type: ignore[arg-type]
        select, at = cache.selects[1]
        chosen.append(select(at, group.queries[1, :, -1:], TOKENS))
    assert 0 < chosen[0].double().mean() < 1
    assert all((other == chosen[0]).double().mean() > 0.99 for other in chosen[1:])


def test_ids_of_lanes_without_it_stay() -> None:
    given: dict[str, Any] = {"prompt": "Hi", "lanes": [{"method": "kivi"}]}
    plain = ComparisonSpec.model_validate(given)
    assert "rotate" not in plain.canonical()
    given["lanes"][0] |= {"rotate": "none", "rotate_block": None}
    assert ComparisonSpec.model_validate(given).canonical() == plain.canonical()
    given["lanes"][0]["rotate"] = "signed"
    assert '"rotate":"signed"' in ComparisonSpec.model_validate(given).canonical()


def test_codes_are_those_of_the_turned_keys_alone() -> None:
    """What a codec is given depends on no other option: the block's bytes are those of a codec by hand."""
    group, rope = whole()
    knobs = {"bits": 4, "group_size": 16, "residual_length": 0}
    (part,) = LaneCache.of_prompt(Lane(method="per_token", knobs=knobs, rotate="hadamard"), [group], rope).of("key")
    turned = Hadamard.of(32, torch.device("cpu")).turned(group.keys)
    expected = GroupCodec(4, 16, "channels", torch.float16).encode(turned, 0)
    assert all(torch.equal(part.stream.blocks[0].tensors[name], t) for name, t in expected.tensors.items())


def test_a_prompt_of_one_token_is_turned() -> None:
    prefill = SharedPrefill(tiny("llama"), prompt_ids(1))
    list(prefill.run())
    lane = Lane(method="per_token", knobs={"residual_length": 0, "bits": 8}, rotate="signed")
    (part,) = LaneCache.of_prompt(lane, prefill.groups, tiny("llama").rope(4)).of("key")
    keys = prefill.groups[0].keys
    assert (part.stream.decode() - keys).norm() < 0.02 * keys.norm()


def test_each_rule_turns_what_it_stores() -> None:
    """Keys turned by one rule and values left by another are those of lanes that do one of it."""
    group, rope = whole()
    keys = Rule(**TURNED["per_token"], tensors="keys", center="mean", rotate="signed")
    mixed = LaneCache.of_prompt(Lane(rules=(keys, Rule(**TURNED["kivi"]))), [group], rope)
    for kind, alone in (
        ("key", Lane(**TURNED["per_token"], tensors="keys", center="mean", rotate="signed")),
        ("value", Lane(**TURNED["kivi"], tensors="values")),
    ):
        (a,), (b,) = mixed.of(kind), LaneCache.of_prompt(alone, [group], rope).of(kind)  # type: ignore[arg-type]
        assert torch.equal(a.stream.decode(), b.stream.decode())
    assert keys.named().endswith("centred rotated") and keys.named() in mixed.fit_notes[0]
