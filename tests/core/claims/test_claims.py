"""The board of the papers' claims: measured, kept, read again, shipped, and printed by its command."""

import json
import re
from pathlib import Path

import pytest
import torch

from kvq_core.claims import measure_board, measure_missing, papers, setting
from kvq_core.claims.board import (
    SHIPPED,
    Board,
    Criterion,
    board_file,
    board_json,
    circumstances,
    main_figure,
    measurement_lines,
    read_board,
    save_board,
    shipped_boards,
    stored_board,
)
from kvq_core.claims.criteria import Claim, Paper
from kvq_core.claims.measure import judge
from kvq_core.claims.side_by_side import claim_rows
from kvq_core.claims.tables import markdown_table, plain_table, verdict_markdown
from kvq_core.claims.verdict import claim_verdict
from kvq_core.cli.main import main
from kvq_core.errors import SpecError, StoreError
from kvq_core.spec import DEFAULT_MODEL
from tests.support.tiny_models import tiny
from ui.html.claims_table import claims_summary, claims_table

ROOT = Path(__file__).parents[3]
ALL = [(p, claim) for p in papers().values() for claim in p.claims]


@pytest.fixture(scope="module")
def shipped():
    return read_board(SHIPPED / f"board-{DEFAULT_MODEL}.json")


# --- the board ------------------------------------------------------------------------------------------------------


def small_paper():
    quoted = {"quote": "Bits help.", "quoted_from": "Table 1", "less": ""}
    common = {"where": "Table 1", "setting": "", "measure": "lanes", **quoted}
    lanes = {"kivi": {"method": "kivi"}, "fine": {"method": "kivi", "knobs": {"bits": 8}}}
    fine = {
        "id": "x-fine",
        "sentence": "More bits err less.",
        "arguments": {"metrics": ["key_error"], "lanes": lanes},
        "derived": {"gap": "kivi.key_error - fine.key_error"},
        "holds_if": ["fine.key_error < 0.5 * kivi.key_error", "gap > 0"],
    }
    learned = {"c": {"method": "commvq", "knobs": {"codebooks": "no-such"}}}
    missing = {
        "id": "x-learned",
        "sentence": "Learned.",
        "arguments": {"metrics": ["key_error"], "lanes": learned},
        "holds_if": ["c.key_error < 1"],
    }
    return Paper.model_validate({"name": "x", "title": "X", "arxiv": "1", "claims": [common | fine, common | missing]})


@pytest.fixture(scope="module")
def small_board(smollm):
    short = setting().model_copy(update={"prompt_tokens": 128, "later_tokens": 16})
    said = []
    board = measure_board(smollm, [small_paper()], short, said.append)
    assert said
    return board


def test_a_small_board_of_the_real_model(small_board):
    fine, learned = small_board.claims
    assert fine.verdict == "holds" and [t.text for t in fine.texts] == list(setting().texts)
    assert fine.numbers["gap"].mean == pytest.approx(
        fine.numbers["kivi.key_error"].mean - fine.numbers["fine.key_error"].mean
    )
    spread = fine.numbers["kivi.key_error"]
    each = [t.numbers["kivi.key_error"] for t in fine.texts]
    assert (spread.min, spread.max) == (min(each), max(each)) and spread.min < spread.mean < spread.max
    assert learned.verdict == "cannot be tested here" and "codebooks train" in learned.reason
    assert small_board.environment["torch"] == torch.__version__ and len({t.source for t in small_board.texts}) == 5


def test_claims_a_board_lacks_are_added_to_it(small_board, monkeypatch, smollm):
    """And those it has are taken as they are: nothing reads a text again for them."""
    short = setting().model_copy(update={"prompt_tokens": 128, "later_tokens": 16})
    whole, (fine, _) = small_paper(), small_board.claims
    read = []
    monkeypatch.setattr("kvq_core.claims.measure._measure", lambda found, *_: read.append(found.claim.id))
    known = small_board.model_copy(update={"claims": (fine,)})
    board = measure_missing(smollm, known, [whole], short)
    assert (
        {*read} == {"x-learned"} and board.claims[0] is fine and [c.id for c in board.claims] == ["x-fine", "x-learned"]
    )
    (go,) = board.goes
    assert go.claims == ("x-learned",) and (board.created, board.seconds) == (known.created, known.seconds)
    assert f"; 1 of its claims on {go.created[:10]}." in circumstances(board)
    changed = whole.model_copy(update={"claims": [whole.claims[0].model_copy(update={"holds_if": ("gap > 1",)})]})
    measure_missing(smollm, known, [changed], short)
    assert read[-1] == "x-fine"


def test_what_was_measured_before_somebody_stops_it_is_kept(small_board, monkeypatch, smollm):
    """A measurement at a time; of a board that has none of them, those that are not measured yet stay away."""
    short = setting().model_copy(update={"prompt_tokens": 128, "later_tokens": 16})
    first, second = (
        small_paper().model_copy(
            update={"name": name, "claims": [small_paper().claims[at].model_copy(update={"id": name})]}
        )
        for at, name in enumerate(("y-one", "y-two"))
    )
    one = small_board.claims[0].model_copy(update={"id": "y-one"})

    def measured(model, papers, *_):
        if papers[0].name == "y-two":
            raise KeyboardInterrupt
        return small_board.model_copy(update={"claims": (one,)})

    monkeypatch.setattr("kvq_core.claims.measure.measure_board", measured)
    kept = []
    with pytest.raises(KeyboardInterrupt):
        measure_missing(smollm, small_board.model_copy(update={"claims": ()}), [first, second], short, keep=kept.append)
    (board,) = kept
    assert board.claims == (one,) and board.goes[-1].claims == ("y-one",)


def test_of_one_paper_the_smallest_measurement_comes_first_and_other_papers_stay(small_board, monkeypatch, smollm):
    short = setting().model_copy(update={"prompt_tokens": 128, "later_tokens": 16})
    other = small_board.claims[0].model_copy(update={"paper": "Another", "id": "z"})
    known = small_board.model_copy(update={"claims": (other,)})
    (lane, second), sizes = small_paper().claims, papers()["commvq"].claims
    size = next(claim for claim in sizes if claim.measure == "codebook_sizes")
    asked = small_paper().model_copy(update={"claims": [lane, second, size]})
    monkeypatch.setattr("kvq_core.claims.measure._measure", lambda *_: None)
    kept = []
    board = measure_missing(smollm, known, [asked], short, keep=kept.append)
    assert [[c.id for c in each.claims] for each in kept] == [["z", size.id], ["z", lane.id, second.id, size.id]]
    assert board == kept[-1] and board.goes[-1].claims == (size.id, lane.id, second.id)
    with pytest.raises(SpecError, match="all of its papers again, Another as well"):
        measure_missing(smollm, known.model_copy(update={"weights_hash": "other"}), [asked], short)


@pytest.mark.slow
def test_a_context_too_short_is_a_reason():
    long = setting().model_copy(update={"prompt_tokens": 5000})
    asked = [
        paper.model_copy(update={"claims": [claim for claim in paper.claims if claim.measure != "answers"]})
        for paper in papers().values()
    ]
    board = measure_board(tiny("llama"), asked, long)
    formulas = {claim.id for paper in asked for claim in paper.claims if not claim.measurement().reads_texts}
    assert {"innerq-table-1", "commvq-table-7", "commvq-memory", "svdq-410"} < formulas
    sizes = [c for c in board.claims if c.id in formulas]
    assert all(c.verdict != "cannot be tested here" for c in sizes)
    others = [c for c in board.claims if c.id not in formulas]
    assert {c.verdict for c in others} == {"cannot be tested here"}
    assert all("1024 tokens" in c.reason for c in others)


def test_a_baseline_enters_the_other_texts():
    data = small_paper().claims[0].model_dump()
    data |= {"baseline_texts": ["a", "b"], "derived": {}, "holds_if": ["fine.key_error < 2 * baseline.fine.key_error"]}
    claim = Claim.model_validate(data)
    numbers = {"a": 1.0, "b": 3.0, "c": 3.9, "d": 4.1, "e": 2.0}
    by_text = {t: {"fine.key_error": x, "kivi.key_error": 9.0} for t, x in numbers.items()}
    found = judge(small_paper(), claim, by_text, "", setting())
    assert [t.holds for t in found.texts] == [True, False, True] and found.verdict == "holds"
    assert found.numbers["baseline.fine.key_error"].mean == 2.0


def test_a_board_survives_its_file_and_damage_is_told(small_board, tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    save_board(small_board, board_file(small_board.model))
    assert stored_board(small_board.model) == small_board
    assert Board.model_validate_json(board_json(small_board)) == small_board
    assert [p.name for p in (tmp_path / "claims").iterdir()] == [f"{DEFAULT_MODEL}.json"]
    board_file(small_board.model).write_text(board_json(small_board).replace('"holds"', '"proved"'))
    with pytest.raises(StoreError, match="measure it again"):
        stored_board(small_board.model)
    with pytest.raises(StoreError, match="python -m kvq_core claims --model some/other"):
        stored_board("some/other")


def test_the_board_reads_well(small_board):
    text = plain_table([small_board])
    assert "HOLDS  (in 5 of 5)  More bits err less." in text and "codebooks train" in text
    lines = measurement_lines(small_board.claims[0])
    assert re.fullmatch(r"fine key error \S+ \(\S+ to \S+\) < 0.5 × kivi key error \S+ \(\S+ to \S+\)", lines[0])
    html = claims_table([small_board.model_copy(update={"model_title": "<script>${x}"})])
    assert "<script>" not in html and "${" not in html and html.count("<tr") == 3
    assert "1 hold, 1 cannot be tested here." in claims_summary([small_board])


# --- what is shipped ------------------------------------------------------------------------------------------------


def test_the_shipped_board_was_measured_by_the_criteria_that_are_written_down(shipped):
    assert shipped.model == DEFAULT_MODEL and shipped.rule == setting().rule.sentence
    assert [c.id for c in shipped.claims] == [claim.id for _, claim in ALL]
    for found, (owner, claim) in zip(shipped.claims, ALL, strict=True):
        written = (owner.title, claim.sentence, claim.where, claim.setting, claim.note, claim.holds_if)
        assert (found.paper, found.sentence, found.where, found.setting, found.note, found.criterion) == written
        assert (found.quote, found.quoted_from, found.less) == (claim.quote, claim.quoted_from, claim.less)


def test_the_shipped_verdicts_follow_from_the_shipped_numbers(shipped):
    for claim in shipped.claims:
        if claim.reason:
            assert claim.verdict in ("cannot be tested here", "not measured") and not claim.numbers
            continue
        criteria = [Criterion.parse(text) for text in claim.criterion]
        texts = [text.numbers for text in claim.texts]
        assert claim_verdict(criteria, texts, setting().rule)[0] == claim.verdict, claim.id
        assert all(t.holds == all(c.holds(t.numbers) for c in criteria) for t in claim.texts)
        for name, spread in claim.numbers.items():
            values = [numbers[name] for numbers in texts]
            assert (spread.min, spread.max) == (min(values), max(values))
            assert spread.mean == pytest.approx(sum(values) / len(values))


@pytest.mark.slow
def test_the_documents_show_the_shipped_boards():
    """tests/test_docs.py compares every generated part; this is what they show."""
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert f"\n{markdown_table(shipped_boards())}\n" in page, "run: make readme"
    for row in claim_rows(shipped_boards()):
        mark = " **Flips with the model.**" if row.flips else ""
        verdicts = " | ".join(map(verdict_markdown, row.results))
        assert f"| {row.claim.paper} | {row.claim.sentence}{mark} | {verdicts} |" in page, row.claim.id


def test_the_main_figure_is_the_criterion_the_means_fail_or_the_first(shipped):
    found = {claim.id: main_figure(claim) for claim in shipped.claims}
    assert re.fullmatch(r"kivi rise \S+ > innerq rise \S+", found["innerq-sinks"])
    assert re.fullmatch(r"squat score error \S+ < kivi score error \S+", found["squat-scores"])
    untested = shipped.claims[0].model_copy(update={"numbers": {}, "reason": "No codebooks."})
    assert main_figure(untested) == "No codebooks."


# --- the command ----------------------------------------------------------------------------------------------------


def refused(capsys, *arguments):
    assert main(["claims", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.strip().splitlines()) == 1 and err.startswith("error: ")
    return err


def test_mistakes_are_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    assert "Available: commvq, innerq, qaq, squat, svdq" in refused(capsys, "--paper", "turboquant")
    assert "one of them" in refused(capsys, "--markdown", "--json")
    assert "claims --model a/b" in refused(capsys, "--stored", "--model", "a/b")
    assert "--fast" in refused(capsys, "--fast")
    assert "no-such" in refused(capsys, "--paper", "qaq", "--model", str(tmp_path / "no-such"))
    assert not (tmp_path / "claims").exists()


@pytest.mark.slow
def test_the_stored_board_is_printed(capsys, tmp_path, monkeypatch, shipped):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    one = ["--model", DEFAULT_MODEL]
    assert main(["claims", "--stored", "--json", *one]) == 0
    assert Board.model_validate(json.loads(capsys.readouterr().out)) == shipped
    assert main(["claims", "--markdown", *one]) == 0
    assert capsys.readouterr().out == markdown_table([shipped]) + "\n"
    assert main(["claims", "--stored", "--paper", "SQuat", *one]) == 0
    out = capsys.readouterr().out
    assert "SQuat (arXiv:2503.24358)" in out and "InnerQ" not in out


@pytest.mark.long("programs", sample=0)
def test_measuring_stores_and_prints(capsys, tmp_path, monkeypatch, small_board, smollm):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    monkeypatch.setattr("kvq_core.claims.measure_board", lambda *_: small_board)
    monkeypatch.setattr("kvq_core.models.load", lambda *_: smollm)
    assert main(["claims", "--json"]) == 0
    assert Board.model_validate_json(capsys.readouterr().out) == small_board == stored_board(DEFAULT_MODEL)
    assert main(["claims", "--paper", "qaq"]) == 0
    assert sorted(p.name for p in (tmp_path / "claims").iterdir()) == [
        f"{DEFAULT_MODEL}-qaq.json",
        f"{DEFAULT_MODEL}.json",
    ]
