"""Layers that hold no keys and values and read those of an earlier one: stored once, counted once, read by all."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.architectures import ids_of, tiny_of
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.stored_bytes import measure
from kvq_core.engine.stress import apply_stress
from kvq_core.errors import ModelError
from kvq_core.methods import Prompt, make
from kvq_core.models import LoadedModel
from kvq_core.models.gradients import gradients
from kvq_core.models.scoring import Scoring, causal_attention
from kvq_core.sizing.layers import shape_of
from kvq_core.spec import Lane, Stress
from tests.support.engine_runs import run_engine

KINDS = ("gemma3n_text", "gemma4_text")
IDS, NEXT = ids_of(60), ids_of(8, seed=5)  # more tokens than a window has
KNOBS = {"bits": 8, "group_size": 32, "residual_length": 0}
EIGHT_BITS = Lane(label="x", method="per_token", knobs=KNOBS, sliding=True)


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path_factory.getbasetemp() / "sharing"))


class Oracle:
    """One text by itself: each layer that holds keys and values keeps a list of them, rounded once they have been
    attended to, and every reader looks into that list."""

    def __init__(self, model: LoadedModel, rounded: bool):
        self.model, self.rounded, self.tokens = model, rounded, 0
        self.held: dict[int, list[Tensor]] = {}
        self.new: dict[int, list[Tensor]] = {}

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
        if how.reads is None:
            decoding = self.tokens > 0
            self.new[layer] = [x.half().float() if decoding and self.rounded else x for x in (keys, values)]
        holder = how.holder(layer)
        read = [torch.cat(pair, -2) for pair in zip(self.held.get(holder, ()), self.new[holder], strict=False)]
        return causal_attention(queries, *(read or self.new[holder]), how)

    def step(self, ids: list[int]) -> Tensor:
        logits = self.model.forward(torch.tensor([ids]), self.tokens, self)[0]
        for layer, new in self.new.items():
            old = self.held.get(layer)
            stored = [self._stored(x) for x in new]
            self.held[layer] = (
                stored if old is None else [torch.cat(pair, -2) for pair in zip(old, stored, strict=True)]
            )
        self.tokens += len(ids)
        return logits

    def _stored(self, x: Tensor) -> Tensor:
        if not self.rounded:
            return x
        codec = make("per_token", **KNOBS).fit(Prompt(x, x, None)).key
        assert codec is not None
        return codec.decode(codec.encode(x, 0))


def oracle(model: LoadedModel, rounded: bool) -> Tensor:
    told = Oracle(model, rounded)
    told.step(IDS)
    return torch.cat([told.step([token]) for token in NEXT[:-1]])


@pytest.mark.parametrize("kind", KINDS)
def test_each_reads_the_last_layer_of_its_kind(kind: str) -> None:
    model = tiny_of(kind)
    shape = model.shape
    assert [held.reads for held in shape.kinds] == [None, None, None, 1, 1, 2]
    assert shape.keyed == (0, 1, 2) and shape.full == shape.captured == (2,)
    assert set(model.rotations[:3]) == {"rope"} and set(model.rotations[3:]) == {"none"}
    assert [how and how.window for how in model.scoring] == [24, 24, None, 24, 24, None]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_read_what_is_stored_once(kind: str) -> None:
    """Reference and lane are those of a text by itself, and nothing is held of a layer that reads another's."""
    model = tiny_of(kind)
    outcome = run_engine(model, IDS, [EIGHT_BITS], len(NEXT), follow=NEXT, audit=True)
    reference, lanes = outcome.logits()
    torch.testing.assert_close(reference, oracle(model, rounded=False), rtol=0, atol=2e-4)
    expected = oracle(model, rounded=True)
    # Sums in another order put a new token's value on the other side of fp16's rounding or of a code's.
    torch.testing.assert_close(lanes[0], expected, rtol=0, atol=5e-4)
    assert (expected - reference).abs().max() > 2e-3, "eight bits do not show"
    cache = outcome.state("x").cache
    assert cache is not None and cache.quantized_layers == {0, 1, 2}
    assert sorted(layer for group in cache.layers for layer in group) == [0, 1, 2]
    kinds, memory = model.shape.kinds, measure(cache, model.shape)
    elements = sum(kinds[layer].elements for layer in (0, 1, 2)) * memory.tokens
    stored = sum(memory.bytes_by_part.values())
    assert stored == elements + 4 * elements / 32 and memory.window_bytes == 0  # codes; scale and least of a group


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_holds_nothing_cannot_be_named(kind: str) -> None:
    told = Lane(method="q8_0", layers=(4,)).why_not(tiny_of(kind).shape)
    assert told == "layer 4 of this model holds no keys and values and reads those of layer 1; name others"


@pytest.mark.slow
@pytest.mark.parametrize("own_chunk", ["stored", "raw"])
def test_prompts_through_the_cache_do_not_depend_on_where_layers_read(own_chunk: str) -> None:
    """Stored first, chunks change nothing; raw, a chunk of the whole prompt is what was read in full precision."""
    model, found = tiny_of("gemma4_text"), []
    for chunk in (8, 30) if own_chunk == "stored" else (60, None):
        prefill: dict[str, Any] = {} if chunk is None else {"prefill": {"chunk": chunk, "own_chunk": own_chunk}}
        lane = Lane.model_validate({**EIGHT_BITS.model_dump(), **prefill})
        found.append(run_engine(model, IDS, [lane], len(NEXT), follow=NEXT).logits()[1])
    torch.testing.assert_close(*found, rtol=0, atol=2e-4)


def test_gradients_are_those_of_all_that_read_a_key() -> None:
    """Against the change of the loss when one channel of a key moves, for the layer and its readers together."""
    model, ids = tiny_of("gemma3n_text"), IDS[:40]
    held = gradients(model, ids)
    assert set(held) == {0, 1, 2}

    def loss(layer: int, at: tuple[int, int, int], by: float) -> float:
        moved: dict[int, Tensor] = {}

        def attend(now: int, queries: Tensor, keys: Tensor, values: Tensor, how: Scoring) -> Tensor:
            if how.holder(now) == layer:
                keys = moved.setdefault(layer, keys.clone())
                if now == layer:
                    keys[(0, *at)] += by
            return causal_attention(queries, keys, values, how)

        logits = model.forward(torch.tensor([ids]), 0, attend)[0, :-1].double()
        return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()

    for layer in (1, 2):
        gradient = held[layer][0].gradient
        head, token, channel = (int(i) for i in torch.unravel_index(gradient.abs().argmax(), gradient.shape))
        at, by = (head, token, channel), 0.01
        slope = (loss(layer, at, by) - loss(layer, at, -by)) / (2 * by)
        assert slope == pytest.approx(gradient[at].item(), rel=0.05)


def test_stress_is_met_by_the_queries_of_all_that_read_it() -> None:
    model = tiny_of("gemma3n_text")
    prefill = SharedPrefill(model, IDS)
    list(prefill.run())
    _, shift = apply_stress(model, prefill, Stress(key_outlier_pairs=2, key_outlier_scale=8.0))
    assert shift.same_tokens and shift.kld_max < shift.tolerance


def test_a_kind_that_no_layer_holds_is_refused() -> None:
    told = {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "sliding_window": 8,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "num_kv_shared_layers": 2,
    }
    with pytest.raises(ModelError, match="leaves no full layer that keeps what full layers read"):
        shape_of(told)
