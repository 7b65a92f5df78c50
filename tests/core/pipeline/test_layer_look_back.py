"""Maps of one layer of lanes that look back on every step: their passes stop there, too, where layers know nothing of
each other."""

import pytest
import torch

from kvq_core.engine import replaying
from kvq_core.engine.prompt_memory import READINGS
from kvq_core.methods.qaq.pools import RaggedCodec
from kvq_core.pipeline.layer_look import looking_on
from kvq_core.record.events import Replaying
from tests.core.pipeline.test_layer_look import run
from tests.support.tiny_models import tiny

LAYER, TOP = 1, 2
LANES = [
    {"label": "qaq", "method": "qaq"},
    {"label": "zipcache", "method": "zipcache", "knobs": {"streaming_gap": 4}},
    {"label": "above", "rules": [{"method": "zipcache", "layers": [2], "knobs": {"streaming_gap": 4}}]},
]


@pytest.fixture(scope="module")
def model(smollm):
    return tiny("qwen2", tokenizer=smollm.tokenizer)


def looked(model, parent):
    """Maps of LAYER, of rows that are led once more, and up to where they were."""
    READINGS.clear()
    events = list(looking_on(model, parent.record, range(len(parent.record.lanes)), LAYER))
    return events[-1].arrays, {event.layer for event in events if isinstance(event, Replaying)}


def test_passes_of_lanes_that_look_back_stop_at_the_layer_with_the_same_maps(model, monkeypatch):
    parent = run(model, lanes=LANES)
    assert all(lane.status == "done" for lane in parent.record.lanes)
    short, ended = looked(model, parent)
    assert ended == {LAYER}
    monkeypatch.setattr(replaying, "_asks_all", lambda part: part.stream.observes)
    whole, ended = looked(model, parent)
    assert ended == {TOP}
    assert set(whole) - set(short) == {f"lane/{at}/looked_kld" for at in range(len(LANES))}
    assert all(torch.equal(short[name], whole[name]) for name in short)


def test_a_codec_that_does_not_say_so_is_led_through_all_layers(model, monkeypatch):
    parent = run(model, lanes=LANES[:1])
    monkeypatch.setattr(RaggedCodec, "layerwise", False)
    assert looked(model, parent)[1] == {TOP}
