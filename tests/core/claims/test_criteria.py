"""The papers' claims as they are written down, and the rule by which texts decide them."""

import re

import pytest

from kvq_core.claims import papers, setting
from kvq_core.claims.board import (
    Criterion,
)
from kvq_core.claims.criteria import MEASURES, Claim
from kvq_core.claims.verdict import claim_verdict
from kvq_core.errors import SpecError

ALL = [(p, claim) for p in papers().values() for claim in p.claims]


# --- the rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        ([(1, 2), (1, 2), (1, 2)], "holds"),
        ([(1, 2), (1, 2), (2.5, 2)], "holds"),  # two of three, and the means 1.5 < 2
        ([(1, 2), (1, 2), (9, 2)], "does not hold here"),  # two of three, but not in the mean
        ([(1, 9), (3, 2), (3, 2)], "does not hold here"),  # in the mean, but in one of three
        ([(1, 9), (1, 9), (1, 9), (3, 2), (3, 2)], "does not hold here"),  # three of five are less than two thirds
        ([(1, 9), (1, 9), (1, 9), (1, 9), (3, 2)], "holds"),
        ([(2, 2), (2, 2), (2, 2)], "does not hold here"),  # equal is not below
        ([(1, 2), (1, 2)], "cannot be tested here"),
        ([], "cannot be tested here"),
    ],
)
def test_the_rule_asks_for_the_mean_and_for_two_thirds_of_the_texts(pairs, word):
    found, reason = claim_verdict([Criterion.parse("a < b")], [{"a": a, "b": b} for a, b in pairs], setting().rule)
    assert found == word
    assert bool(reason) == (word == "cannot be tested here")


def test_every_criterion_has_to_hold_in_the_same_texts():
    both = [Criterion.parse("a < b"), Criterion.parse("a > 0")]
    texts = [{"a": -1.0, "b": 2.0}, {"a": 3.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 9.0}]
    assert claim_verdict(both, texts, setting().rule)[0] == "does not hold here"  # each in 3 of 4, both in 2 of 4


@pytest.mark.parametrize(
    ("text", "numbers", "holds"),
    [
        ("a.x < 0.9 * b.x", {"a.x": 0.89, "b.x": 1.0}, True),
        ("a.x < 0.9 * b.x", {"a.x": 0.95, "b.x": 1.0}, False),
        ("a <= 0.25", {"a": 0.25}, True),
        ("a >= 0.5", {"a": 0.49}, False),
        ("a > -1", {"a": -0.5}, True),
    ],
)
def test_criteria_read_as_they_are_written(text, numbers, holds):
    assert Criterion.parse(text).holds(numbers) is holds


@pytest.mark.parametrize("text", ["a", "a == b", "a < b < c", "A < b", "a<b", "a < b * 2", "", "a < 1e3"])
def test_what_is_no_criterion_is_refused(text):
    with pytest.raises(SpecError, match="criterion"):
        Criterion.parse(text)


# --- the data -------------------------------------------------------------------------------------------------------


def test_the_five_papers_and_their_claims_are_there():
    assert list(papers()) == ["commvq", "innerq", "qaq", "squat", "svdq"]
    ids = [claim.id for _, claim in ALL]
    assert len(ids) == len(set(ids))
    promised = {
        "squat-scores",
        "squat-subspace",
        "squat-prompt-subspace",
        "svdq-error-2",
        "svdq-error-3",
        "svdq-spectrum",
        "svdq-pre-rope",
        "commvq-mse-1",
        "commvq-mse-2",
        "commvq-stages",
        "commvq-groups",
        "commvq-domains",
        "innerq-modes",
        "innerq-sinks",
        "innerq-size",
        "innerq-table-1",
        "qaq-keys",
        "qaq-outliers",
        "qaq-window",
        "qaq-persistence",
    }
    assert promised <= set(ids)


@pytest.mark.parametrize(("owner", "claim"), ALL, ids=lambda x: getattr(x, "id", ""))
def test_a_claim_says_what_where_and_how(owner, claim):
    assert claim.measure in MEASURES
    assert claim.sentence.endswith(".") and re.search("Figure|Table|Section|Appendix|Limitations", claim.where)
    texts = set(claim.texts or setting().texts) | set(claim.baseline_texts)
    measure = claim.measurement()
    made = () if measure.reads_texts else getattr(measure, "cases_of", None) or measure.cases(None)
    assert texts <= set(setting().text) and len(made or claim.texts or setting().texts) >= 3
    assert claim.criteria() and claim.id.startswith(owner.name)


def test_the_texts_are_three_stretches_of_topics_and_presets():
    kinds = [setting().text[name].kind for name in setting().texts]
    assert kinds.count("topics") >= 3 and kinds.count("preset") >= 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"measure": "guess"}, "unknown measure"),
        ({"holds_if": ["kivi.kld < nothing.kld"]}, "nothing.kld"),
        ({"show": ["kivi.ppl"]}, "kivi.ppl"),
        ({"derived": {"gap": "kivi.kld - other.kld"}}, "gap"),
        ({"arguments": {"metrics": ["speed"], "lanes": {"kivi": {"method": "kivi"}}}}, "speed"),
        ({"arguments": {"metrics": ["kld"], "lanes": {"kivi": {"method": "kiwi"}}}}, "kivi"),
        ({"holds_if": []}, "holds_if"),
    ],
)
def test_impossible_claims_are_refused(change, complaint):
    good = {
        "id": "x",
        "sentence": "X.",
        "where": "Table 1",
        "quote": "X is so.",
        "quoted_from": "Table 1",
        "less": "",
        "setting": "",
        "measure": "lanes",
        "holds_if": ["kivi.kld < 1"],
        "arguments": {"metrics": ["kld"], "lanes": {"kivi": {"method": "kivi"}}},
    }
    Claim.model_validate(good)
    with pytest.raises((SpecError, ValueError), match=complaint):
        Claim.model_validate({**good, **change})
