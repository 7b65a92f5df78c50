"""Stress leaves full-precision attention alone, and makes caches suffer only where quantization is to blame."""

import pytest
import torch

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.decode import Decode
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.stress import AppliedStress, apply_stress
from kvq_core.errors import SpecError
from kvq_core.models import LoadedModel
from kvq_core.models.rope import Rope
from kvq_core.spec import ComparisonSpec, Lane, Stress, parse_spec
from tests.support.tiny_models import generate, prompt_ids, tiny

IDS = prompt_ids(70)
KIVI = Lane(label="kivi", method="kivi", knobs={"group_size": 8, "residual_length": 8})


def prefilled(model: LoadedModel) -> SharedPrefill:
    prefill = SharedPrefill(model, IDS)
    list(prefill.run())
    return prefill


def decoded(model: LoadedModel, stress: Stress, lanes: tuple[Lane, ...] = ()) -> Decode:
    prefill = prefilled(model)
    applied = apply_stress(model, prefill, stress)[0] if stress.active else None
    spec = ComparisonSpec(prompt="-", max_new_tokens=24, ignore_eos=True, lanes=lanes)
    decode = Decode(model, prefill, spec, list(lanes), applied)
    list(decode.encode())
    list(decode.fill())
    decode.klds = []

    def score(reference: torch.Tensor, rows: torch.Tensor, targets: list[int]) -> None:
        p, q = reference.double().log_softmax(-1), rows.double().log_softmax(-1)
        decode.klds.append((p.exp() * (p - q)).sum(-1).mean(-1))

    list(decode.steps(score, None, lambda rows: None))
    return decode


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "stress", [Stress(key_outlier_scale=8, key_outlier_pairs=3), Stress(key_bias=20), Stress(key_outlier_scale=0.3)]
)
def test_the_reference_decodes_the_same_text(architecture: str, stress: Stress) -> None:
    model = tiny(architecture)
    decode = decoded(model, stress)
    assert decode.token_ids == generate(model, IDS, 24)
    assert decode.rows.working(0, 0, "key", 0).abs().max() > 1.5 * prefilled(model).groups[0].keys[0].abs().max() or (
        stress.key_outlier_scale < 1
    )


def test_what_is_proved_about_the_reference() -> None:
    model = tiny("llama")
    found = apply_stress(model, prefilled(model), Stress(key_outlier_scale=8, key_bias=10))[1]
    assert found.positions == 32 and found.same_tokens and 0 <= found.kld_max < 1e-6 and found.logit_max < 0.01
    with pytest.raises(SpecError, match=r"changes the reference itself .* smaller key_bias"):
        beyond = Stress.model_construct(key_bias=1e7)  # far outside what a spec may ask for
        apply_stress(model, prefilled(model), beyond)


def test_only_what_was_asked_for_is_stressed() -> None:
    model = tiny("llama")
    prefill, before = prefilled(model), prefilled(model).groups[0]
    stress = Stress(key_outlier_scale=4, key_outlier_pairs=(5,), layers=(1,), kv_heads=(0,))
    applied, _ = apply_stress(model, prefill, stress)
    after = prefill.groups[0]
    changed = (after.keys != before.keys).any(-2)  # (layers, kv_heads, channels)
    assert changed.nonzero().tolist() == [[1, 0, 5], [1, 0, 21]]
    torch.testing.assert_close(after.keys[1, 0, :, 21], 4 * before.keys[1, 0, :, 21])
    scaled = (after.queries != before.queries).any(-2)
    assert scaled.nonzero().tolist() == [[1, 0, 5], [1, 0, 21], [1, 1, 5], [1, 1, 21]]  # the query heads of KV head 0
    assert (applied.layers, applied.kv_heads, applied.pairs) == ([1], [0], [5])


def test_the_largest_pairs_come_first() -> None:
    model = tiny("llama")
    prefill = prefilled(model)
    keys = prefill.groups[0].keys[2, 1]
    energy = keys[:, :16].square().sum(0) + keys[:, 16:].square().sum(0)
    applied = AppliedStress.of(Stress(key_outlier_scale=2, key_outlier_pairs=3), prefill.groups, model.rope(70))
    assert (applied.factors[2, 1, :16] == 2).nonzero().flatten().tolist() == energy.topk(3).indices.sort()[0].tolist()
    torch.testing.assert_close(applied.factors[..., :16], applied.factors[..., 16:])


def test_a_constant_stays_nearly_constant_before_rope() -> None:
    model = tiny("llama")
    prefill, rope = prefilled(model), model.rope(70)
    applied = AppliedStress.of(Stress(key_bias=5), prefill.groups, rope)
    rms = prefill.groups[0].keys[0, 0].square().mean().sqrt()
    offset = applied.offsets[0, 0]
    assert offset.nonzero().flatten().tolist() == [12, 13, 14, 15, 28, 29, 30, 31]
    torch.testing.assert_close(offset[12], 5 * rms)
    before = rope.unrotate(offset.expand(1, 1, 70, 32), 0)[0, 0]
    assert (before[:, 15] - before[0, 15]).abs().max() < 0.05 * offset[15]


def test_a_power_of_two_leaves_kivis_codes_unchanged() -> None:
    model = tiny("llama")
    codes = []
    for scale in (1.0, 8.0):
        prefill = prefilled(model)
        if scale != 1:
            apply_stress(model, prefill, Stress(key_outlier_scale=scale, key_outlier_pairs=4))
        cache = LaneCache.of_prompt(KIVI, prefill.groups, model.rope(70))
        codes.append([b.tensors["codes"] for part in cache.of("key") for b in part.stream.blocks])
    assert codes[0] and all(torch.equal(a, b) for a, b in zip(*codes, strict=True))


@pytest.mark.slow
def test_outliers_hurt_per_token_and_not_per_channel() -> None:
    model = tiny("qwen3")
    lanes = (KIVI, Lane(label="token", method="per_token", knobs={"group_size": 32, "residual_length": 32, "bits": 4}))
    calm, stressed = (decoded(model, s, lanes) for s in (Stress(), Stress(key_outlier_scale=32, key_outlier_pairs=2)))
    before, after = (torch.stack(d.klds).mean(0) for d in (calm, stressed))
    assert after[0] == pytest.approx(before[0].item(), rel=0.02)  # KIVI: the same codes
    assert after[1] > 10 * before[1]


def test_keys_before_rope_are_unrotated_stressed_keys() -> None:
    """A method that stores keys before RoPE sees the same stressed keys as one that stores them after it."""
    model = tiny("llama")
    fine = {"bits": 8, "group_size": 8, "residual_length": 8, "block_size": 16}
    lanes = tuple(Lane(label=rope, method="squat", knobs={**fine, "rope": rope}) for rope in ("post", "pre"))
    decode = decoded(model, Stress(key_outlier_scale=4, key_bias=3), lanes)
    true = decode.rows.working(0, 0, "key", 1)
    for row in range(1, len(decode.rows.lane_of)):
        error = (decode.rows.working(row, 0, "key", 1)[:, :70] - true[:, :70]).norm() / true[:, :70].norm()
        assert error < 0.01


def test_another_pairing_is_refused() -> None:
    def interleaved(q, k, cos, sin):
        turned = torch.stack([-q[..., 1::2], q[..., ::2]], -1).flatten(-2)
        return q * cos.unsqueeze(1) + turned * sin.unsqueeze(1), k

    angles = torch.arange(8.0)[:, None] * torch.tensor([1.0, 0.1]).repeat_interleave(2)
    with pytest.raises(SpecError, match=r"pairs \(i, i \+ head_dim/2\)"):
        AppliedStress.of(
            Stress(key_bias=1), prefilled(tiny("llama")).groups, Rope.of(angles.cos(), angles.sin(), 4, interleaved)
        )


def test_a_spec_without_stress_keeps_its_meaning() -> None:
    plain = parse_spec({"prompt": "p"})
    assert "stress" not in plain.canonical()
    for idle in ({"key_outlier_pairs": 7}, {"layers": [1, 2]}, {"key_outlier_scale": 4, "layers": []}):
        assert parse_spec({"prompt": "p", "stress": idle}).canonical() == plain.canonical()
    active = parse_spec({"prompt": "p", "stress": {"key_outlier_scale": 8, "key_outlier_pairs": [3, 5]}})
    assert active.canonical() != plain.canonical() and active.stress.key_outlier_pairs == (3, 5)


@pytest.mark.parametrize(
    ("stress", "reason"),
    [
        ({"key_outlier_scale": 0}, "key_outlier_scale = 0 is not allowed"),
        ({"key_outlier_pairs": 0}, "key_outlier_pairs = 0 is not allowed"),
        ({"key_outlier_pairs": []}, "key_outlier_pairs = "),
        ({"bias": 3}, "Unknown field 'stress.bias'; allowed: key_outlier_scale"),
    ],
)
def test_impossible_stress_is_refused(stress: dict, reason: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_spec({"prompt": "p", "stress": stress})
    assert reason in str(error.value)
