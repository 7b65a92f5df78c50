"""Known tokens that are fed many at once: every query reads what it would read one by one."""

from copy import copy
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from kvq_core.codecs.stream import Stream
from kvq_core.codecs.window import Window
from kvq_core.engine.ahead import Ahead
from kvq_core.methods import Prompt, methods
from kvq_core.methods.per_token import PerToken
from kvq_core.spec import Lane
from tests.support.engine_runs import Outcome, run_engine
from tests.support.tiny_models import prompt_ids, tiny

NEW = 40
ALONE = {"commvq", "turboquant", "ultraquant_4bit"}  # need trained codebooks, or heads of 128
LOOK_BACK = {"qaq", "zipcache", "h2o", "scissorhands", "shadowkv"}  # on each step's queries or attention


def outcomes(lanes: list[Lane], *, model: str = "llama", new: int = NEW, **options: object) -> tuple[Outcome, Outcome]:
    """In passes, and one by one."""
    given = tiny(model), prompt_ids(100, seed=3), lanes, new
    ahead = run_engine(*given, ignore_eos=True, free_text=False, **options)
    with patch.object(Ahead, "passes", lambda *_: None):
        return ahead, run_engine(*given, ignore_eos=True, free_text=False, **options)


def check_alike(ahead: Outcome, single: Outcome) -> None:
    assert single.decode.rows.ahead is None and ahead.decode.token_ids == single.decode.token_ids
    for one, other in zip(ahead.logits(), single.logits(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(ahead.decode.states, single.decode.states, strict=True):
        assert one.error is other.error is None
        assert (one.first_divergence, one.token_ids) == (other.first_divergence, other.token_ids)
        assert one.cache is not None and other.cache is not None
        sizes = ([part.stream.nbytes() for part in state.cache.parts] for state in (one, other))
        assert next(sizes) == next(sizes)


@pytest.mark.slow
@pytest.mark.long("combine", sample=12)
@pytest.mark.parametrize("name", sorted(methods().keys() - ALONE))
def test_every_method_reads_ahead_what_it_reads_one_by_one(name: str) -> None:
    ahead, single = outcomes([Lane(label=name, method=name)])
    check_alike(ahead, single)
    assert (ahead.decode.rows.ahead is None) == (name in LOOK_BACK)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefill", "method"), [({"chunk": 32}, "kivi"), ({"chunk": 32, "own_chunk": "stored"}, "per_token")]
)
def test_lanes_that_read_the_prompt_through_their_caches_do_too(prefill: dict, method: str) -> None:
    check_alike(*outcomes([Lane(label="one", method=method, prefill=prefill)]))


@pytest.mark.slow
def test_windows_sinks_rules_and_kinds_of_layers_are_kept_apart() -> None:
    kivi = {"method": "kivi", "knobs": {"bits": 2, "group_size": 8, "residual_length": 16}}
    eight = {"method": "per_token", "knobs": {"bits": 8}}
    lanes = [
        Lane(label="window", recent_tokens=20, sink_tokens=3, **eight),
        Lane(label="rules", rules=[{"tensors": "keys", **kivi}, eight]),
        Lane(label="centred", center="mean", rotate="hadamard", **eight),
    ]
    ahead, single = outcomes(lanes)
    check_alike(ahead, single)
    assert 3 <= len(ahead.decode.step_seconds) - NEW + 1 <= 4, "passes end where a block of KIVI's keys is full"
    check_alike(*outcomes([Lane(label="slides", sliding=True, **eight)], model="gemma2"))


@pytest.mark.slow
def test_choices_are_drawn_as_they_would_be_one_by_one() -> None:
    lanes = [Lane(label="one", method="per_token", knobs={"bits": 2})]
    ahead, single = outcomes(lanes, temperature=0.8, seed=5)
    check_alike(ahead, single)
    assert ahead.decode.states[0].first_divergence is not None


@pytest.mark.slow
def test_an_answer_that_ends_early_ends_the_lanes() -> None:
    ids, lanes = prompt_ids(60, seed=4), [Lane(label="one", method="per_token", knobs={"bits": 4})]
    tokens = run_engine(tiny("llama"), ids, [], 40, ignore_eos=True).decode.token_ids
    model = copy(tiny("llama"))
    model.eos_ids = {tokens[17]}
    outcome = run_engine(model, ids, lanes, 40, free_text=False)
    end = tokens.index(tokens[17]) + 1
    assert outcome.decode.rows.ahead is not None and outcome.closed == 1
    assert outcome.decode.token_ids == tokens[:end] and outcome.decode.finish == "eos"
    assert outcome.logits()[1].shape[1] == end - 1


def test_a_codec_that_fails_ahead_costs_its_lane_alone() -> None:
    lanes = [Lane(label="bad", method="per_token", knobs={"bits": 4}), Lane(label="good", method="fp16")]

    def fails(*_: object) -> Tensor:
        raise ValueError("no such token")

    with patch.object(Stream, "preview", fails):
        outcome = run_engine(tiny("llama"), prompt_ids(60, seed=4), lanes, 20, ignore_eos=True, free_text=False)
    bad, good = outcome.decode.states
    assert bad.error == "ValueError: no such token" and good.error is None
    assert outcome.logits()[1].shape[:2] == (2, 19)


def test_ends_of_what_is_encoded_are_those_that_appending_gives() -> None:
    method = PerToken(bits=4, group_size=8)
    windows = [Window(sink=3, recent=5), Window(step=7), Window(sink=9, recent=2, step=4), Window(prompt_only=True)]
    windows += [Window(sink=2, step=6, whole_prompt=True)]
    for window in windows:
        for count in (1, 6, 20):
            x = torch.randn(1, 2, count, 8)
            stream = Stream.of_prompt(x, window, method.fit(Prompt(x, x, None)).value)
            told, found = stream.boundaries(25), list[int]()
            for at in range(26):
                if at:
                    stream.append(torch.randn(1, 2, 1, 8))
                    stream.flush()
                full = stream.sinks.shape[-2] >= window.sink
                found.append(stream.packed_range[1] if full else window.sink)
            assert told == found, window


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_lane_alone_writes_its_own_text_from_where_it_parts(bits: int, temperature: float) -> None:
    model, ids = tiny("llama"), prompt_ids(90, seed=3)
    lane = Lane(label="one", method="per_token", knobs={"bits": bits, "group_size": 8, "residual_length": 4})
    how = {"ignore_eos": True, "temperature": temperature, "seed": 5}
    beside = run_engine(model, ids, [lane], 24, **how)
    assert beside.decode.rows.ahead is None
    given = beside.decode.token_ids
    alone = run_engine(model, ids, [lane], 24, given=given, answered=beside.logits()[0], audit=True, **how)
    assert alone.decode.rows.ahead is not None
    one, other = alone.decode.states[0], beside.decode.states[0]
    assert (one.first_divergence, one.token_ids) == (other.first_divergence, other.token_ids)
    assert len(one.token_ids) == 24 and (bits == 8) == (one.first_divergence is None)
    torch.testing.assert_close(alone.logits()[1], beside.logits()[1], rtol=0, atol=0.05)
