"""Models larger than one device, whose layers come in several groups: what a lane decides, stores and says."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvq_core.engine.cache import LaneCache
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.methods import make
from kvq_core.methods.qaq.pools import RaggedCodec
from kvq_core.models import LoadedModel
from kvq_core.spec import Lane
from tests.core.engine.test_engine import LANES
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

SPANNING = [
    Lane(label="schedule", method="svdq", knobs={"target_bits": 2.0}),
    Lane(label="tolerances", method="qaq", knobs={"target_bits": 2.5}),
    Lane(label="again", method="qaq", knobs={"target_bits": 2.5, "update": "every_step"}),
]


def spread(name: str) -> LoadedModel:
    """A tiny model whose first layer lies on a device of its own, as far as the engine can tell."""
    model, devices = replace(tiny(name)), (torch.device("cpu"), torch.device("cpu", 0), torch.device("cpu", 0))
    model.layer_devices = devices
    return model


def caches(model: LoadedModel, lanes: list[Lane]) -> list[LaneCache]:
    prefill = SharedPrefill(model, prompt_ids(90))
    list(prefill.run())
    return [LaneCache.of_prompt(lane, prefill.groups, model.rope(90), model.ref) for lane in lanes]


@pytest.mark.slow
def test_a_model_on_two_devices_answers_as_on_one() -> None:
    lanes, ids = [*LANES[2:7], *SPANNING], prompt_ids(90)
    one = run_engine(tiny("qwen3"), ids, lanes, 20, ignore_eos=True)
    two = run_engine(spread("qwen3"), ids, lanes, 20, ignore_eos=True)
    assert [len(outcome.decode.prefill.groups) for outcome in (one, two)] == [1, 2]
    assert all(state.error is None for state in two.decode.states)
    for expected, found in zip(one.logits(), two.logits(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("lane", SPANNING, ids=lambda lane: lane.label)
def test_what_spans_the_layers_is_decided_once(lane: Lane) -> None:
    (one,), (two,) = caches(tiny("llama"), [lane]), caches(spread("llama"), [lane])
    keys, values = decided = [_decided(part.stream.codec) for part in one.parts]
    found = [_decided(part.stream.codec) for part in two.parts]
    assert found == [pytest.approx(each) for each in 2 * decided]
    known = {"schedule": keys} if lane.method == "svdq" else {"key_tolerance": keys, "value_tolerance": values}
    settled = make(lane.method, **lane.knobs | known | {"target_bits": 2.5 if lane.method == "qaq" else None})
    assert two.notes[0] == f"decided on the prompt, over all layers: {settled.summary()}"


def _decided(codec: Any) -> Any:
    """A schedule, a tolerance, or nothing."""
    return codec.widths.tolerance if isinstance(codec, RaggedCodec) else getattr(codec, "schedule", None)


def test_remarks_of_all_devices_are_kept() -> None:
    loud = Lane(label="loud", method="squat", knobs={"group_size": 8, "residual_length": 16, "regularization": 10.0})
    some = loud.model_copy(update={"label": "some", "layers": (0,)})
    (every, first), (whole,) = caches(spread("llama"), [loud, some]), caches(tiny("llama"), [loud])
    collapses = "regularization is in the range where the paper's ablation collapses; lower λ"
    strengths = [note for note in every.notes if "λ·S₁²/T" in note]
    assert [note.partition(":")[0] for note in strengths] == ["layer 0", "layers 1 to 2"]
    assert every.notes.count(collapses) == first.notes.count(collapses) == 1
    assert not any("layers" in note for note in (*first.notes, *whole.notes))
    assert (whole.quantized_layers, every.quantized_layers, first.quantized_layers) == ({0, 1, 2}, {0, 1, 2}, {0})
