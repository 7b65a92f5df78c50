"""The papers' own sentences beside what is tested, and verdicts that other texts may well turn."""

import json
import re

import pytest

from kvq_core.claims import papers, setting
from kvq_core.claims.board import (
    SHIPPED,
    Criterion,
    TextResult,
    board_json,
    circumstances,
    margin,
    measurement_lines,
    read_board,
    within_noise,
)
from kvq_core.claims.margins import NOISE
from kvq_core.claims.tables import markdown_table, plain_table
from kvq_core.claims.verdict import claim_verdict, satisfies, spreads
from kvq_core.spec import DEFAULT_MODEL
from ui.html.claims_table import claims_summary, claims_table
from ui.html.escape import safe

ALL = [claim for paper in papers().values() for claim in paper.claims]


@pytest.fixture(scope="module")
def shipped():
    return read_board(SHIPPED / f"board-{DEFAULT_MODEL}.json")


def found_on(board, criteria, *texts):
    """A claim of the board with other criteria and numbers."""
    parsed = [Criterion.parse(text) for text in criteria]
    results = [TextResult(text=f"t{i}", holds=satisfies(parsed, n), numbers=n) for i, n in enumerate(texts)]
    word = claim_verdict(parsed, texts, setting().rule)[0]
    changes = {"criterion": criteria, "texts": tuple(results), "numbers": spreads(texts), "verdict": word}
    return board.claims[0].model_copy(update=changes)


def pairs(*margins):
    return [{"a": 1.0, "b": 1.0 + margin} for margin in margins]


@pytest.mark.parametrize(
    ("margins", "word", "noise"),
    [
        ((0.3, 0.4, 0.5, 0.4, 0.3), "holds", False),
        ((0.1, 0.9, 0.1, 0.9, -0.4), "holds", True),
        ((-0.3, -0.4, -0.5, -0.4, -0.3), "does not hold here", False),
        ((-0.9, 0.3, -0.4, 0.2, -0.3), "does not hold here", True),
        ((0.9, 0.4, -0.3, -0.2, 0.5), "does not hold here", True),  # the mean holds, in 3 of 5 texts
        ((0.2, 0.2, 0.2, 0.2, 0.2), "holds", False),
    ],
)
def test_a_verdict_whose_margin_may_be_0_is_within_noise(shipped, margins, word, noise):
    from scipy.stats import ttest_1samp

    claim = found_on(shipped, ("a < b",), *pairs(*margins))
    assert claim.verdict == word and within_noise(claim) == noise
    found = [t["b"] - t["a"] for t in pairs(*margins)]
    expected = ttest_1samp(found, 0).confidence_interval(0.95) if len(set(margins)) > 1 else (found[0], found[0])
    assert margin(claim, Criterion.parse("a < b"))[1:] == pytest.approx(tuple(expected))
    assert (": by " in measurement_lines(claim)[0]) == noise
    board = shipped.model_copy(update={"claims": (claim,)})
    marks = ("<small>within noise", claims_table([board])), ("*within noise*, in", markdown_table([board]))
    assert all((mark in shown) == noise for mark, shown in (*marks, ("WITHIN NOISE", plain_table([board]))))
    assert ("(1 within noise)" in claims_summary([board])) == noise


def test_equal_numbers_that_need_not_differ_are_no_noise(shipped):
    assert not within_noise(found_on(shipped, ("a <= b",), *pairs(0.0, 0.0, 0.0)))


def test_one_criterion_that_surely_fails_is_enough(shipped):
    texts = [{"a": 1.0, "b": b, "c": c} for b, c in ((0.5, 1.2), (0.4, 0.8), (0.6, 1.1))]
    assert not within_noise(found_on(shipped, ("a < b", "a < c"), *texts))
    assert within_noise(found_on(shipped, ("a < c", "a > b"), *texts))
    untested = {"verdict": "cannot be tested here", "numbers": {}, "texts": ()}
    assert not within_noise(shipped.claims[0].model_copy(update=untested))  # there is no verdict to doubt


def test_a_claim_holds_by_more_or_less_than_nothing():
    for text, numbers, by in (("a < b", (1, 3), 2), ("a >= b", (1, 3), -2), ("a <= 0.5 * b", (1, 3), 0.5)):
        assert Criterion.parse(text).margin({"a": numbers[0], "b": numbers[1]}) == by
    assert Criterion.parse("a <= b").holds({"a": 1, "b": 1}) and not Criterion.parse("a < b").holds({"a": 1, "b": 1})


@pytest.fixture(scope="module")
def written(shipped) -> tuple[str, str, str]:
    """The board as the page, the documents and the command line write it."""
    return claims_table([shipped]), markdown_table([shipped]), plain_table([shipped])


@pytest.mark.slow
@pytest.mark.few(sample=12)
@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.id)
def test_the_papers_own_sentence_stands_beside_what_is_tested(claim, written):
    assert len(claim.quote.split()) > 5 and claim.quote != claim.sentence and claim.less.endswith(".")
    assert re.search(r"Section|Table|Figure|Appendix|Abstract|Footnote", claim.quoted_from)
    html, page, text = written
    for words in (claim.quote, claim.quoted_from, claim.less, claim.sentence):
        assert safe(words) in html and words in page and words in text


def test_the_shipped_board_marks_what_its_numbers_say(shipped):
    assert {claim.id for claim in shipped.claims if within_noise(claim)} >= {"qaq-window", "squat-quality"}
    assert NOISE in circumstances(shipped)


@pytest.mark.slow
def test_a_board_of_before_the_quotes_is_read(shipped, tmp_path):
    older = json.loads(board_json(shipped))
    for claim in older["claims"]:
        for name in ("quote", "quoted_from", "less"):
            del claim[name]
    path = tmp_path / "board.json"
    path.write_text(json.dumps(older))
    assert "The paper says" in claims_table([read_board(path)]) and "less:" not in plain_table([read_board(path)])
