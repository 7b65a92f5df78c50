"""Which lane a run's answer names: hand-made records, whose verdicts are plain to see."""

import numpy as np
import pytest

from kvq_core.analysis.choice import PLANNED_BATCH, PLANNED_TOKENS, choose, planned_bytes, tier_of
from tests.support.ui_record_factory import make_run
from ui.words.answer import answer


def of(klds: list[float], ratios: list[float], scored: int = 63):
    """A run whose lanes have one KLD at every position, and these shares of the bytes."""
    record, arrays = make_run(lanes=len(klds), scored=scored)
    for at, (lane, kld, ratio) in enumerate(zip(record.lanes, klds, ratios, strict=True)):
        arrays[f"lane/{at}/kld"] = np.full(scored, kld, np.float32)
        lane.metrics = lane.metrics.model_copy(update={"kld_mean": kld, "flips": 0, "near_tie_flips": 0})
        lane.memory = lane.memory.model_copy(update={"kv_ratio": ratio})
        lane.flags = []
    return record, arrays


@pytest.mark.parametrize(
    "klds, ratios, lane, tier, closer, beyond",
    [
        ([0.005, 0.05, 0.5], [0.6, 0.3, 0.1], 0, 0, None, (2,)),  # the only close one, whatever it takes
        ([0.005, 0.002, 0.5], [0.3, 0.6, 0.1], 0, 0, 1, (2,)),  # the smaller of two close ones; the other is closer
        ([0.05, 0.09, 0.5], [0.6, 0.3, 0.1], 1, 1, 0, (2,)),
        ([0.5, 0.3], [0.1, 0.2], 1, 2, None, (0, 1)),  # all are risky: the one that moves least
    ],
)
def test_the_smallest_of_the_best_tier_is_named(klds, ratios, lane, tier, closer, beyond):
    found = choose(*of(klds, ratios))
    assert (found.lane, found.tier, found.closer, found.beyond) == (lane, tier, closer, beyond)


def test_too_few_positions_name_the_least_moved_lane_without_a_tier():
    found = choose(*of([0.5, 0.3], [0.1, 0.2], scored=20))
    assert (found.lane, found.tier, found.beyond) == (1, None, ())


def test_lanes_that_quantized_nothing_or_failed_are_no_answer():
    record, arrays = of([0.0, 0.4], [1.0, 0.2])
    record.lanes[0].flags = ["never_engaged"]
    assert choose(record, arrays).lane == 1
    record.lanes[1].status = "failed"
    assert choose(record, arrays) is None


def test_a_verdict_between_tiers_counts_as_the_lower_one():
    assert [tier_of(word) for word in ("close", "close or marginal", "close to risky", "no verdict")] == [0, 1, 2, None]


def test_planned_bytes_are_those_of_the_whole_cache():
    record, _ = make_run(lanes=2)
    env = record.environment
    stored, full = planned_bytes(record, 0)
    tokens = PLANNED_TOKENS * PLANNED_BATCH
    assert full == 2 * env.layers * env.kv_heads * env.head_dim * 2 * tokens
    assert 0.1 * full < stored < 0.5 * full  # two bits with their scales, and windows that hardly count at this length


@pytest.mark.parametrize(("ratio", "told"), [(0.6, "at 60 % of the bytes."), (1.18, "118 % of the bytes, which saves")])
def test_an_answer_that_saves_nothing_says_so(ratio, told):
    record, arrays = of([0.005, 0.5], [ratio, 0.1])
    said = answer(record, arrays)
    assert said.lane == 0 and told in said.sentence and ("saves nothing" in said.sentence) == (ratio > 1)


@pytest.mark.parametrize(
    ("klds", "sentence"),
    [
        ([0.009, 0.5], "is close or marginal at 30 % of the bytes; no cache here is surely close."),
        ([0.05, 0.5], "is marginal at 30 % of the bytes; no cache here is close."),
        ([0.09, 0.5], "moves least, at 30 % of the bytes, and is marginal or risky."),
        ([0.5, 0.9], "moves least, at 30 % of the bytes, and is still risky."),
        ([0.09], "is marginal or risky at 30 % of the bytes."),
    ],
)
def test_an_answer_names_every_tier_that_its_lane_may_be_of(klds, sentence):
    record, arrays = of(klds, [0.3, 0.1][: len(klds)])
    if "or" in sentence:  # an interval with the threshold in it
        arrays["lane/0/kld"][:] = np.random.default_rng(0).lognormal(np.log(klds[0]) - 0.18, 0.6, 63)
    assert answer(record, arrays).sentence == sentence
