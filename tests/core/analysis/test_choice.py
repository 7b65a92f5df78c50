"""Which lane a run's answer names: hand-made records, whose verdicts are plain to see."""

import json

import numpy as np
import pytest

from kvq_core.analysis.choice import PLANNED_BATCH, PLANNED_TOKENS, choose, planned_bytes
from kvq_core.analysis.free_text import repetition
from kvq_core.analysis.verdict import verdict
from kvq_core.record.memory import HOST_COPY
from kvq_core.record.subset import best
from kvq_core.studies.agreement import SHIPPED
from tests.support.ui_record_factory import make_run
from ui.export.answer import answer_html
from ui.html.escape import prose
from ui.words import answer as words
from ui.words.answer import answer, answer_line


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
    record, arrays = of([0.009, 0.5], [0.3, 0.2])
    arrays["lane/0/kld"][:] = np.random.default_rng(0).lognormal(np.log(0.009) - 0.18, 0.6, 63)
    assert verdict(record, arrays, 0).word == "close or marginal" and choose(record, arrays).tier == 1


def test_planned_bytes_are_those_of_the_whole_cache():
    record, _ = make_run(lanes=2)
    env = record.environment
    stored, full = planned_bytes(record, 0)
    tokens = PLANNED_TOKENS * PLANNED_BATCH
    assert full == 2 * env.layers * env.kv_heads * env.head_dim * 2 * tokens
    assert 0.1 * full < stored < 0.5 * full  # two bits with their scales, and windows that hardly count at this length


@pytest.mark.parametrize(
    ("ratio", "told"), [(0.6, "at 60 % of the fp16 cache."), (1.18, "118 % of the fp16 cache, which saves")]
)
def test_an_answer_that_saves_nothing_says_so(ratio, told):
    record, arrays = of([0.005, 0.5], [ratio, 0.1])
    said = answer(record, arrays)
    assert said.lane == 0 and told in said.sentence and ("saves nothing" in said.sentence) == (ratio > 1)


@pytest.mark.parametrize(
    ("klds", "sentence"),
    [
        ([0.009, 0.5], "is close or marginal at 30 % of the fp16 cache; none of the 2 is surely close."),
        ([0.05, 0.5], "is marginal at 30 % of the fp16 cache; none of the 2 is close."),
        ([0.09, 0.5], "moves least, at 30 % of the fp16 cache, and is marginal or risky."),
        ([0.5, 0.9], "moves least, at 30 % of the fp16 cache, and is still risky."),
        ([0.09], "is marginal or risky at 30 % of the fp16 cache."),
    ],
)
def test_an_answer_names_every_tier_that_its_lane_may_be_of(klds, sentence):
    record, arrays = of(klds, [0.3, 0.1][: len(klds)])
    if "or" in sentence:  # an interval with the threshold in it
        arrays["lane/0/kld"][:] = np.random.default_rng(0).lognormal(np.log(klds[0]) - 0.18, 0.6, 63)
    assert answer(record, arrays).sentence == sentence


def writes(record, index: int, token_ids: list[int], finish: str = "length") -> None:
    """Make a lane's own text these tokens, of which the first is another one than the reference's."""
    lane = record.lanes[index]
    lane.token_ids, lane.tokens, lane.finish = token_ids, [f" t{token}" for token in token_ids], finish
    lane.metrics = lane.metrics.model_copy(update={"first_divergence": 1, "matched_prefix": 1})


def test_a_lane_whose_text_is_a_loop_is_not_close_and_not_the_answer():
    record, arrays = of([0.001, 0.002], [0.2, 0.6])
    assert choose(record, arrays).lane == 0
    writes(record, 0, [0, *[7, 8, 9] * 21])
    assert verdict(record, arrays, 0).word == "marginal" and choose(record, arrays).lane == 1
    said = answer(record, arrays)
    assert "repeats “t7 t8 t9” from token 4 on" in said.others and "Lane 1 stays close" in answer_line(record, arrays)
    writes(record, 1, [0, *[5] * 63])
    said = answer(record, arrays)
    assert (
        "none of the 2 is close" in said.sentence and "Its own text differs" in said.reason and "repeats" in said.reason
    )


def test_a_loop_that_the_reference_writes_too_is_the_models_own():
    record, arrays = of([0.001, 0.5], [0.2, 0.6])
    writes(record, 0, [0, *[7, 8, 9] * 21])
    record.reference.token_ids[:] = [1, *[4, 8, 9] * 21]
    assert verdict(record, arrays, 0).word == "close"


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([1, 2, 3] * 10, (3, 3)),
        ([1] * 13, (1, 1)),
        (list(range(20)) * 3, (20, 20)),
        (list(range(60)), None),
        (list(range(30)) * 2, None),  # a refrain
        ([1] * 12, None),  # seven places
        ([], None),
    ],
)
def test_a_text_repeats_itself_by_its_n_grams(tokens, found):
    assert repetition(tokens) == found


def test_what_is_kept_on_the_host_counts_against_a_lane():
    record, arrays = of([0.005, 0.004], [0.29, 0.5])
    memory = record.lanes[0].memory
    host = {HOST_COPY: int(memory.stored_bytes * 0.5 / 0.29)}
    record.lanes[0].memory = memory.model_copy(update={"bytes_by_part": memory.bytes_by_part | host})
    assert record.lanes[0].memory.held_ratio == pytest.approx(0.79, abs=0.01)
    said = answer(record, arrays)
    assert said.lane == 1 and "at 50 % of the fp16 cache" in said.sentence
    arrays["lane/1/kld"][:] = 0.5
    assert "79 % of the fp16 cache with its copy in host memory (29 % without)" in answer(record, arrays).sentence


def test_the_answer_is_of_all_lanes_where_eight_are_drawn():
    """Of 40 lanes the smallest close one has more KLD than all those that are drawn."""
    record, arrays = of([0.0001 * (n + 1) for n in range(39)] + [0.009], [0.9 - 0.01 * n for n in range(39)] + [0.38])
    assert 39 not in best(record)
    page = answer_html(record, arrays)
    assert answer_line(record, arrays) == "Lane 39 stays close to full precision at 38 % of the fp16 cache."
    assert "Lane 39</mark>" in page and page.count('class="point ') == 40 and page.count("whisker") == 8
    assert "40 caches, one prompt" in page


def test_one_prompt_leads_to_a_check_on_many_and_never_to_flags():
    record, arrays = of([0.005, 0.5], [0.3, 0.1])
    page = answer_html(record, arrays)
    assert f'href="?study&amp;check={record.id}"' in page and "Check on 12 prompts" in page
    assert "not a ranking" in page and "use" not in answer_line(record, arrays).split()


def test_the_card_says_how_often_one_prompt_is_right_as_the_file_that_ships_has_it(monkeypatch):
    """In its words what was counted; nothing where no tier is said, and where today's results were not counted."""
    record, arrays = of([0.005, 0.5], [0.3, 0.1])
    found = json.loads(SHIPPED.read_text(encoding="utf-8"))
    (line,) = (row for row in found["lines"] if (row["what"], row["model"], row["prompts"]) == ("tier", None, 1))
    said = answer(record, arrays).trust
    assert said.startswith(f"One prompt names the tier right in {100 * line['share']:.0f} of 100 ")
    assert f"each of {found['prompts']} prompts" in said and all(model in said for model in found["models"])
    assert f"{line['cases']} cases of {found['lanes']} cache formats" in said and "recommend" not in said
    told, _, counted = said.partition(": ")
    assert f"<summary>{prose(told)}</summary>{prose(counted)}</details>" in answer_html(record, arrays)
    assert answer(*of([0.5], [0.1], scored=20)).trust == "" and "trust" not in answer_html(*of([0.5], [0.1], scored=20))
    monkeypatch.setattr(words, "shipped_agreement", lambda: None)
    assert answer(record, arrays).trust == "" and 'class="reason trust"' not in answer_html(record, arrays)
