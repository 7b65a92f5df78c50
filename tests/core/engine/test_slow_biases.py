"""Key biases that a lane leaves out and does not add back: which, of which tokens, and what that does to scores."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.centering import slow_biases
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.errors import SpecError
from kvq_core.mend.edit import Edit
from kvq_core.models import LoadedModel, wrap
from kvq_core.models.pairs import SLOW, Pairs, pairs_of
from kvq_core.spec import Lane, Transforms
from kvq_core.spec.prefill import Chunks
from tests.support.engine_runs import run_engine
from tests.support.mended_models import apply_to
from tests.support.tiny_models import prompt_ids, tiny

TOKENS, NEW = 60, 12
EIGHT: dict[str, Any] = {"bits": 8, "group_size": 16, "residual_length": 7}
LONG = {**EIGHT, "residual_length": 200}  # no token leaves the window


def strong() -> LoadedModel:
    """Biases of the two slowest pairs are 40 times the others, as published models have them."""
    twin = deepcopy(tiny("qwen2").model)
    with torch.no_grad():
        for layer in twin.model.layers:
            layer.self_attn.k_proj.bias.view(2, 2, 16)[..., 14:] *= 40
    return wrap(twin, None, id="strong")


def slow(method: str = "per_token", **more: Any) -> Lane:
    more = {"knobs": EIGHT, "label": method, **more}
    return Lane(method=method, center="slow", **more)


def left_out(model: LoadedModel, context: int) -> Tensor:
    assert model.key_bias is not None
    return slow_biases(model.key_bias, pairs_of(model.rope(context), range(model.shape.layers)), context)


def mended(model: LoadedModel, context: int) -> LoadedModel:
    """The model with the same biases at zero in its weights."""
    twin = wrap(deepcopy(model.model), None, id="twin")
    edit = Edit.none(model.shape.layers, model.shape.kv_heads, model.shape.head_dim)
    for layer, lost in enumerate(left_out(model, context)):
        edit = edit.with_keep(layer, (lost == 0).float())
    apply_to(twin, edit)
    return twin


def at_positions(constant: Tensor, model: LoadedModel, tokens: int) -> Tensor:
    """(layers, kv_heads, head_dim) before RoPE -> (layers, kv_heads, tokens, head_dim) after it, in float64."""
    theta = 10000 ** (-torch.arange(16, dtype=torch.float64) / 16)
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * theta
    a, b = constant.double()[..., None, :16], constant.double()[..., None, 16:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def test_the_pairs_are_those_that_turn_little_over_the_context() -> None:
    """theta_i = 10000^(-i / 16) of the tiny model, channels i and i + 16."""
    model = tiny("qwen2")
    assert model.key_bias is not None
    for context in (40, 72, 400):
        lost = left_out(model, context)
        count = sum(10000 ** (-i / 16) * context <= SLOW for i in range(16))
        channels = [channel for channel in range(32) if channel % 16 >= 16 - count]
        assert torch.equal(lost[..., channels], model.key_bias[..., channels])
        assert lost.count_nonzero() == 3 * 2 * len(channels)
    assert left_out(model, 400).count_nonzero() == 0 < left_out(model, 72).count_nonzero()


def test_scores_of_a_query_move_alike_within_the_bound() -> None:
    """What a bias adds differs between keys by |q| |b| times the angle at most: pair by pair, 1/32 rad."""
    model = tiny("qwen2")
    prefill = SharedPrefill(model, prompt_ids(TOKENS))
    list(prefill.run())
    [group] = prefill.groups
    lost, pairs = left_out(model, TOKENS).double(), Pairs.of_rope(model.rope(TOKENS), 0)
    queries = group.queries.double().unflatten(1, (2, -1))
    moved = queries @ at_positions(lost, model, TOKENS)[:, :, None].mT
    size = pairs.sums(queries.square()).sqrt() * pairs.sums(lost.square()).sqrt()[:, :, None, None]
    apart = moved.amax(-1) - moved.amin(-1)
    assert (apart <= size.sum(-1) * SLOW * (1 + 1e-6)).all() and apart.max() > 0
    assert moved.abs().amax() > 10 * apart.amax(), "what all scores of a query move by is most of it"


def test_all_tokens_are_read_without_them() -> None:
    """First tokens and those of the window, too; what is measured of the keys leaves out what was left out."""
    model = tiny("qwen2")
    lanes = [slow(), slow("kivi", knobs={"bits": 4, "group_size": 8, "residual_length": 16, "sink_tokens": 3})]
    outcome = run_engine(model, prompt_ids(TOKENS), lanes, NEW, ignore_eos=True, audit=True)
    rows, lost = outcome.decode.rows, left_out(model, TOKENS + NEW)
    assert lost.count_nonzero()
    for lane, state in enumerate(outcome.decode.states, 1):
        assert state.cache is not None and not state.error
        part, at = state.cache.by_layer()[0]["key"]
        stored = part.plain.decode()[at]
        tokens, first, window = stored.shape[1], part.plain.sinks.shape[-2], part.plain.recent_tokens
        turned = at_positions(lost, model, tokens)[0].float()
        own = rows.working(0, 0, "key", 0)[:, :tokens]  # keys of the first layer are the same in every lane
        exact = [*range(first), *range(tokens - window, tokens)]
        assert window and len(exact) > first
        torch.testing.assert_close(stored[:, exact], (own - turned)[:, exact], rtol=2e-3, atol=5e-3)
        whole = rows.left_out.with_them(0, lane, stored)
        torch.testing.assert_close(whole, stored + turned, rtol=0, atol=1e-5)
    assert rows.left_out.with_them(0, 0, own) is own, "the reference leaves nothing out"


@pytest.mark.parametrize("own_chunk", ["raw", "stored"])
def test_a_lane_that_keeps_all_tokens_is_the_mended_model(own_chunk: str) -> None:
    """Nothing leaves its window, so that all that differs is what is left out: in the prompt and in every step."""
    model, ids, follow = strong(), prompt_ids(TOKENS), prompt_ids(NEW, seed=3)
    chunks = Chunks(chunk=16, own_chunk=own_chunk)  # type: ignore[arg-type]
    lanes = [Lane(method="per_token", label=how, center=how, knobs=LONG, prefill=chunks) for how in ("slow", "none")]  # type: ignore[arg-type]
    outcome = run_engine(model, ids, lanes, NEW, follow=follow)
    own = run_engine(mended(model, TOKENS + NEW), ids, [], NEW, follow=follow).logits()[0]
    reference, (without, plain) = outcome.logits()
    most = 4e-3 if own_chunk == "stored" else 0.02  # the first raw chunk is the reference's, which has its biases
    assert (without - own).abs().max() < most < 0.03 < (reference - own).abs().max()
    assert (plain - own).abs().max() > 0.03


def test_it_holds_before_rope_by_tiers_and_where_keys_are_chosen() -> None:
    rules = (
        {"method": "per_token", "knobs": {**EIGHT, "residual_length": 0}, "tokens": "first:16", "center": "slow"},
        {"method": "kivi", "knobs": {"bits": 4, "group_size": 8, "residual_length": 16}, "center": "slow"},
    )
    lanes = [
        slow("squat", knobs={"group_size": 8, "residual_length": 16, "block_size": 8, "rope": "pre"}),
        Lane(label="tiers", rules=rules),  # type: ignore[arg-type]
        slow(label="turned", fold="keys", rotate="signed"),
        slow("qaq", knobs={"target_bits": 3.0}),
        slow(label="chosen", select={"by": "h2o"}),
    ]
    outcome = run_engine(tiny("qwen2"), prompt_ids(TOKENS), lanes, NEW, ignore_eos=True, audit=True)
    assert [state.error for state in outcome.decode.states] == [None] * 5
    notes = [state.cache.notes for state in outcome.decode.states if state.cache is not None]
    assert all(any("biases of 2 of 16 RoPE pairs are left out" in note for note in every) for every in notes)


def test_some_tokens_of_a_layer_with_and_others_without_are_refused() -> None:
    first = {"method": "per_token", "knobs": {**EIGHT, "residual_length": 0}, "tokens": "first:16"}
    rest = {"method": "kivi", "center": "slow"}
    with pytest.raises(SpecError, match="leaves biases out of all tokens of a layer"):
        Lane(rules=(first, rest)).plan(tiny("qwen2").shape)  # type: ignore[arg-type]
    plan = Lane(rules=({**first, "method": "fp16", "knobs": {}}, rest)).plan(tiny("qwen2").shape)  # type: ignore[arg-type]
    assert {each.transforms.center for each in plan} == {"slow"}


def test_models_without_biases_and_unknown_rotations_are_refused() -> None:
    shape = tiny("qwen2").shape
    assert slow().why_not(shape) is None
    assert "center = slow" in (slow().why_not(tiny("llama").shape) or "")
    assert "norm" in (slow().why_not(replace(shape, key_bias="normed")) or "")
    assert "out of layers" in (slow().why_not(replace(shape, unknown_rope=(1,))) or "")
    with pytest.raises(SpecError, match="center = slow: .*learned from keys as they are"):
        slow("commvq", knobs={})


def test_nothing_is_stored_for_it() -> None:
    prefill = SharedPrefill(tiny("qwen2"), prompt_ids(TOKENS))
    list(prefill.run())
    rope = tiny("qwen2").rope(TOKENS)
    lanes = slow(), Lane(method="per_token", knobs=EIGHT)
    caches = [LaneCache.of_prompt(lane, prefill.groups, rope) for lane in lanes]
    sizes = [[part.stream.nbytes() for part in cache.parts] for cache in caches]
    assert sizes[0] == sizes[1] and Transforms(center="slow").stored_bytes(tiny("qwen2").shape) == 0
