"""Claims in answers: shares of right ones by lane, case and depth, with their interval and as a map."""

import pytest

from kvq_core.claims.answers import Answers
from kvq_core.claims.board import main_figure, measurement_lines
from kvq_core.claims.criteria import Claim, papers, setting
from kvq_core.claims.measure import judge
from kvq_core.claims.measures import Context
from kvq_core.claims.shares import recall_maps, share_words
from kvq_core.models import load
from kvq_core.spec import DEFAULT_MODEL
from tests.support.tiny_models import tiny

LANES = {"exact": {"method": "fp16"}}


def case(name: str, n: int = 3, **options):
    return {"name": name, "suite": "needle", "n": n, "options": {"lengths": [20], "depths": [0, 0.5, 1], **options}}


@pytest.mark.slow
@pytest.mark.real_model
def test_an_fp16_lane_answers_as_full_precision_does(monkeypatch):
    model, texts = tiny("llama", tokenizer=load(DEFAULT_MODEL).tokenizer), []  # it has a chat template
    monkeypatch.setattr("kvq_core.claims.answers.judge", lambda _, answer, text: texts.append(text) or len(texts) < 3)
    measure = Answers.model_validate({"lanes": LANES, "cases_of": [case("short", n=2)]})
    found = measure.cases(Context(model))
    assert texts[0::2] == texts[1::2] and len(texts) == 4  # the reference's, then the lane's, of both prompts
    assert found == {"short": {"fp16.right": 0.5, "exact.right": 0.5}}


def test_shares_are_of_a_lane_a_case_and_a_depth(monkeypatch):
    def right(_, model, name, prompt):
        yield "fp16", True
        yield "exact", prompt.facts["depth"] != 0.5

    monkeypatch.setattr(Answers, "_right", right)
    measure = Answers.model_validate({"lanes": LANES, "depths": [0, 0.5, 1], "cases_of": [case("a"), case("b")]})
    context = Context(None)
    found = measure.cases(context)
    assert found["a"]["fp16.right"] == 1 and found["a"]["exact.right"] == pytest.approx(2 / 3)
    assert [found["b"][f"exact.depth_{depth}"] for depth in (0, 50, 100)] == [1, 0, 1]
    assert measure.asked == 6 and set(found["a"]) == set(measure.names)
    assert recall_maps(found)["exact"] == [["Depth", "a", "b"], ["0 %", "100%"] + ["100%"], ["50 %"] + 2 * ["0%"]] + [
        ["100 %", "100%", "100%"]
    ]
    monkeypatch.setattr(Answers, "_right", None)
    assert measure.cases(context) is found  # several claims look at one run


def test_cases_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="different numbers of prompts"):
        Answers.model_validate({"lanes": LANES, "cases_of": [case("a"), case("b", n=4)]})


def test_shares_are_told_with_their_interval():
    assert share_words(0.8, 15) == "12 of 15 (55% to 93%)" and share_words(0.8, 15, ends=False) == "12 of 15"
    owner = papers()["commvq"]
    claim: Claim = next(claim for claim in owner.claims if claim.id == "commvq-needle")
    names = claim.measurement().names
    by_text = {f"{n} words": dict.fromkeys(names, 1.0) | {"kivi1.right": 0.2} for n in (100, 300, 700)}
    found = judge(owner, claim, by_text, "", setting())
    assert found.verdict == "holds" and found.answers == 15
    assert main_figure(found) == "commvq2 right 15 of 15 >= 0.95 × fp16 right 15 of 15"
    assert measurement_lines(found) == [
        "commvq2 right 15 of 15 (80% to 100%) >= 0.95 × fp16 right 15 of 15 (80% to 100%)",
        "commvq1 right 15 of 15 (80% to 100%) > kivi1 right 3 of 15 (7% to 45%)",
    ]


def test_the_papers_rows_share_one_run():
    rows = [claim for paper in papers().values() for claim in paper.claims if claim.id.endswith("-answers")]
    assert len(rows) == 4 and len({claim.measurement().model_dump_json() for claim in rows}) == 1
