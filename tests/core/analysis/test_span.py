"""A run read on some of its tokens: of all of them the figures are the run's, of some those of a shorter run."""

import numpy as np
import pytest
import torch

from kvq_core.analysis.span import fp16_token_bytes
from kvq_core.analysis.verdict import MIN_SCORED, mean_interval, verdict
from kvq_core.pipeline.examples import example_ids, packaged_store
from tests.support.span_figures import Span, span_figures, span_mean
from tests.support.ui_record_factory import make_run

CODE = example_ids()["qwen-keys"]  # with acceptances


@pytest.fixture(scope="module")
def shipped():
    return packaged_store().load(CODE)


def test_of_all_tokens_the_figures_are_those_of_the_run(shipped):
    record, arrays = shipped
    whole = Span(0, len(record.reference.token_ids) - 1)
    for index, lane in enumerate(record.lanes):
        found, m = span_figures(record, arrays, index, whole), lane.metrics
        told = ("kld_mean", "flip_rate", "acceptance", "tokens_a_step", "rms_dp", "ppl_ratio")
        assert [getattr(found, name) for name in told] == pytest.approx([getattr(m, name) for name in told], rel=1e-9)
        assert (found.scored, found.flips, found.near_tie_flips) == (m.n_scored, m.flips, m.near_tie_flips)
        assert found.tail.value == pytest.approx(m.kld_p99, rel=1e-6)
        assert found.verdict.word == verdict(record, arrays, index).word


def test_of_some_tokens_they_are_those_of_their_positions():
    record, arrays = make_run(2, scored=120, tokens=300)
    found = span_figures(record, arrays, 1, Span(11, 80))
    kld = arrays["lane/1/kld"].double().numpy()[10:80]
    assert found.scored == 70 and found.kld_mean == pytest.approx(kld.mean(), rel=1e-12)
    assert (found.low, found.high) == mean_interval(kld.tobytes())
    flipped = arrays["lane/1/same_top"][10:80] == 0
    ties = flipped & (arrays["reference/margin"][10:80] <= record.lanes[1].metrics.near_tie_margin)
    assert (found.flips, found.near_tie_flips) == (int(flipped.sum()), int(ties.sum()))
    floor = arrays["lane/noise/kld"].double().numpy()[10:80]
    assert found.above_floor == pytest.approx((kld > floor).mean())
    assert span_figures(record, arrays, 1, Span(1, MIN_SCORED - 1)).verdict.word == "no verdict"
    assert span_figures(record, arrays, 1, Span(1, MIN_SCORED)).verdict.word != "no verdict"


def test_bytes_are_those_of_the_tokens_as_they_are_stored():
    record, arrays = make_run(1)  # 3 bits, the newest 32 tokens at 16; 417 tokens of the prompt, 63 of the answer
    plain = fp16_token_bytes(record.lanes[0].memory)
    window, before = span_figures(record, arrays, 0, Span(40, 62)), span_figures(record, arrays, 0, Span(0, 9))
    assert (window.key_bits, window.stored_bytes) == (16, pytest.approx(23 * plain))
    assert before.key_bits == 3 and before.stored_bytes == pytest.approx(10 * plain * 3 / 16)
    last = span_figures(record, arrays, 0, Span(63, 63))
    assert last.key_bits is None and last.stored_bytes is None, "the last token was never stored"
    assert last.scored == 1 and last.kld_mean is not None


def test_what_was_not_kept_or_scored_is_none():
    record, arrays = make_run(1)
    few = {name: of for name, of in arrays.items() if "bits" not in name and "acceptance" not in name}
    found = span_figures(record, few, 0, Span(5, 20))
    assert found.stored_bytes is None and found.acceptance is None and found.kld_mean is not None
    nothing = span_figures(record, arrays, 0, Span(0, 0))
    assert nothing.scored == 0 and nothing.kld_mean is None and nothing.flip_rate is None


def test_a_broken_lane_has_no_interval():
    record, arrays = make_run(1)
    arrays["lane/0/kld"] = torch.full((63,), float("inf"))
    found = span_figures(record, arrays, 0, Span(1, 60))
    assert found.low is None and found.verdict.word == "not a number"


def test_means_over_steps_weigh_bins_by_their_steps():
    values, edges = np.array([[1.0], [4.0], [10.0]]), [(0, 2), (2, 3), (3, 7)]
    assert span_mean(values, edges, Span(1, 3)) == pytest.approx([2.0])
    assert span_mean(values, edges, Span(3, 4)) == pytest.approx([(4 + 40) / 5]), "a bin that is cut counts whole"
    assert span_mean(values, edges, Span(9, 12)) is None
