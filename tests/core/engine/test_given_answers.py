"""Answers that a conversation gives enter the caches many tokens at once: every one reads what it would alone."""

from unittest.mock import patch

import pytest
import torch

from benchmarks.architectures import tiny_of
from kvq_core.codecs.stream import Stream
from kvq_core.engine.ahead import Ahead
from kvq_core.engine.decode import Decode
from kvq_core.engine.filling import LaneFilling
from kvq_core.engine.prefill import SharedPrefill
from kvq_core.engine.script import Script
from kvq_core.models import LoadedModel
from kvq_core.spec import ComparisonSpec, Lane
from tests.support.tiny_models import prompt_ids, tiny

TURNS = [(prompt_ids(50, 1), False), (prompt_ids(37, 2), True), (prompt_ids(11, 3), False), (prompt_ids(20, 4), True)]
TURNS += [(prompt_ids(9, 5), False)]
EIGHT = {"method": "per_token", "knobs": {"bits": 8, "group_size": 8, "residual_length": 0}}
FOUR = {"method": "per_token", "knobs": {"bits": 4, "group_size": 8, "residual_length": 6}}
KIVI = {"method": "kivi", "knobs": {"bits": 2, "group_size": 8, "residual_length": 16}}
LANES = {
    "local": [{**EIGHT}, {**FOUR, "sink_tokens": 3, "center": "mean", "rotate": "hadamard"}],
    "blocks": [KIVI, {"rules": [{"tensors": "keys", **KIVI}, EIGHT]}, FOUR],
    "rounded": [{"method": "q8_0"}, {"method": "fp8"}],
    "chunks": [{**FOUR, "prefill": "16 raw"}, {**KIVI, "prefill": "16 raw"}],
    "stored": [{**FOUR, "prefill": "16 stored"}, {**EIGHT, "prefill": "16 stored"}],
}


def filled(model: LoadedModel, given: list[dict]) -> tuple[Decode, int]:
    """A decode with the conversation in its lanes' caches, and in how many passes it entered."""
    lanes, passes = [Lane(label=str(at), **lane) for at, lane in enumerate(given)], 0
    script = Script.of_turns(TURNS)
    prefill = SharedPrefill(model, script.ids, range(50, len(script.ids)), [50, 87, 98, 118])
    list(prefill.run())
    decode = Decode(model, prefill, ComparisonSpec(prompt="-", max_new_tokens=4, lanes=tuple(lanes)), lanes)
    decode.script = script
    list(decode.encode())

    def forward(self: LaneFilling, original=LaneFilling._forward) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return original(self)

    with patch.object(LaneFilling, "_forward", forward):
        list(decode.fill())
    return decode, passes


def check_alike(one: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """To the bit, but where layers multiply otherwise than by matrices (AltUp), which some tokens sum otherwise."""
    assert torch.equal(one, other) or name == "gemma3n_text" and float((one - other).abs().median()) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", LANES)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3n_text"])
def test_a_given_answer_leaves_what_it_leaves_token_by_token(kind: str, name: str) -> None:
    model = tiny_of(name) if name == "gemma3n_text" else tiny(name)
    several, passes = filled(model, LANES[kind])
    with patch.object(Ahead, "passes", lambda *_: None):
        single, most = filled(model, LANES[kind])
    assert passes < most - 30
    for one, other in zip(several.states, single.states, strict=True):
        assert one.error is other.error is None
        assert one.prompt_hidden is not None and other.prompt_hidden is not None
        check_alike(one.prompt_hidden, other.prompt_hidden, name)
        assert one.cache is not None and other.cache is not None
        for part, alone in zip(one.cache.parts, other.cache.parts, strict=True):
            assert part.stream.nbytes() == alone.stream.nbytes()
            check_alike(part.stream.decode(), alone.stream.decode(), name)


@pytest.mark.slow
def test_a_lane_that_looks_back_does_not_hold_up_the_others() -> None:
    _, passes = filled(tiny("llama"), [FOUR])
    _, beside = filled(tiny("llama"), [FOUR, {"method": "qaq"}])
    _, alone = filled(tiny("llama"), [{"method": "qaq"}])
    assert alone >= 37 + 20 and beside == passes + alone


@pytest.mark.slow
def test_a_layer_whose_states_hold_what_it_read_answers_alike() -> None:
    model = tiny_of("qwen3_next")
    several, _ = filled(model, [EIGHT])
    with patch.object(Ahead, "passes", lambda *_: None):
        single, _ = filled(model, [EIGHT])
    one, other = several.states[0], single.states[0]
    assert one.prompt_hidden is not None and other.prompt_hidden is not None
    assert float((one.prompt_hidden - other.prompt_hidden).abs().median()) < 1e-3


def test_what_fails_in_a_pass_costs_its_lane_alone() -> None:
    preview, calls = Stream.preview, 0

    def fails(self: Stream, x: torch.Tensor, layer: int, start: int) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if self.window.recent == 6:
            raise ValueError("no such token")
        return preview(self, x, layer, start)

    with patch.object(Stream, "preview", fails):
        found, _ = filled(tiny("llama"), [FOUR, EIGHT])
    bad, good = found.states
    assert calls and bad.error == "ValueError: no such token" and good.error is None
