"""Boards of several models joined by claim: verdicts side by side, flips, claims that a board lacks."""

import json

import pytest

from kvq_core.claims import papers, setting
from kvq_core.claims.board import (
    SHIPPED,
    Board,
    Criterion,
    board_file,
    board_json,
    circumstances,
    main_figure,
    read_board,
    save_board,
    shipped_boards,
    stored_boards,
)
from kvq_core.claims.latency import stored_latency
from kvq_core.claims.side_by_side import FLIPS, NOT_MEASURED, claim_rows, mended_board, of_models, short_title, summary
from kvq_core.claims.tables import boards_json, markdown_table, plain_latency, plain_table, summary_table
from kvq_core.claims.verdict import claim_verdict, spreads
from kvq_core.cli.main import main
from kvq_core.errors import StoreError
from kvq_core.models.gguf.published import SECOND_MODEL, TITLE
from kvq_core.spec import DEFAULT_MODEL
from ui.html.claims_table import claims_summary, claims_table, latency_claims
from ui.panels.claims import _shown

HOLDS, FAILS, UNTESTED = "holds", "does not hold here", "cannot be tested here"


@pytest.fixture(scope="module")
def shipped() -> Board:
    return read_board(SHIPPED / f"board-{DEFAULT_MODEL}.json")


@pytest.fixture
def boards(shipped):
    """A small board of three claims, and the same ones on another model with the given verdicts."""

    def made(*verdicts: tuple[str, str]) -> list[Board]:
        claims = shipped.claims[: len(verdicts)]
        return [
            shipped.model_copy(
                update={
                    "model": name,
                    "model_title": f"{name}-1B-Instruct (Q8_0)",
                    "claims": tuple(judged(c, pair[i]) for c, pair in zip(claims, verdicts, strict=True)),
                }
            )
            for i, name in enumerate(("One", "Other"))
        ]

    return made


def judged(claim, word):
    """The claim with a verdict; one that was not tested has no numbers."""
    if word != UNTESTED:
        return claim.model_copy(update={"verdict": word})
    return claim.model_copy(update={"verdict": word, "reason": "No codebooks.", "numbers": {}, "texts": ()})


def without(board: Board, id: str) -> Board:
    return board.model_copy(update={"claims": tuple(claim for claim in board.claims if claim.id != id)})


@pytest.mark.parametrize(
    ("pair", "flips"),
    [
        ((HOLDS, FAILS), True),
        ((FAILS, HOLDS), True),
        ((HOLDS, HOLDS), False),
        ((FAILS, FAILS), False),
        ((HOLDS, UNTESTED), False),  # nobody knows
        ((FAILS, UNTESTED), False),
    ],
)
def test_a_claim_flips_where_it_holds_on_one_model_and_not_on_another(boards, pair, flips):
    both = boards(pair)
    (row,) = claim_rows(both)
    assert row.flips is flips and row.holds_on_all is (pair == (HOLDS, HOLDS))
    assert [found.verdict for found in row.results] == list(pair)
    mark = FLIPS.capitalize()
    assert (f"**{mark}.**" in markdown_table(both)) is (f"**{mark}.**" in summary_table(both)) is flips
    assert (FLIPS.upper() in plain_table(both)) is flips
    assert ('badge bad">' + FLIPS in claims_table(both)) is flips
    assert (json.loads(boards_json(both))["flips"] == [row.claim.id]) is flips


def test_what_is_counted_is_what_is_shown(boards):
    both = boards((HOLDS, HOLDS), (HOLDS, FAILS), (FAILS, FAILS), (HOLDS, UNTESTED))
    assert summary(both).startswith("1 of 4 hold on both models; 1 flips with the model")
    assert summary(both).endswith("; 1 were not judged on both models.")
    assert summary(both[:1]).startswith("3 of 4 hold here; ")
    three = [*both, both[0]]
    assert summary(three).startswith("1 of 4 hold on all 3 models; 1 flips with the model")
    html = claims_summary(both)
    assert summary(both) in html and "One-1B-Instruct (Q8_0): 3 hold, 1 do not hold here" in html


def test_a_flip_that_other_texts_may_turn_is_counted_apart(shipped):
    doubted = next(claim for claim in shipped.claims if claim.id == "squat-quality")  # within noise, as shipped
    one = shipped.model_copy(update={"claims": (doubted,)})
    other = one.model_copy(update={"claims": (doubted.model_copy(update={"verdict": HOLDS}),)})
    assert summary([one, other]).endswith("1 flips with the model, 1 of them with a verdict within noise.")


def test_a_claim_that_a_board_lacks_is_not_measured_there(boards):
    one, other = boards((HOLDS, HOLDS), (HOLDS, HOLDS), (HOLDS, FAILS))
    lacking = without(one, one.claims[1].id)
    for pair in ([lacking, other], [other, lacking]):
        rows = claim_rows(pair)
        assert [row.claim.id for row in rows] != [] and len(rows) == 3
        (row,) = [row for row in rows if None in row.results]
        assert row.claim.id == one.claims[1].id and not row.flips and not row.holds_on_all
        cells = (plain_table(pair), NOT_MEASURED.upper()), (markdown_table(pair), NOT_MEASURED)
        assert all(shown.count(mark) == 1 for shown, mark in (*cells, (summary_table(pair), NOT_MEASURED)))
        assert claims_table(pair).count(NOT_MEASURED) == 1
    assert "not measured" not in plain_table([one, other]).lower()


def test_a_verdict_by_another_criterion_is_one_on_another_question(boards):
    one, other = boards((HOLDS, FAILS))
    changed = other.claims[0].model_copy(update={"criterion": ("a < b",)})
    (row,) = claim_rows([one, other.model_copy(update={"claims": (changed,)})])
    assert row.results == (one.claims[0], None) and not row.flips


def test_a_mended_file_is_a_column_of_claims_that_flip_and_no_model(boards):
    both = boards((HOLDS, HOLDS), (HOLDS, FAILS), (FAILS, HOLDS))
    claims = tuple(judged(claim, HOLDS) for claim in both[0].claims)
    mended = both[1].model_copy(update={"mends": "Other", "model_title": "Other-1B, mended", "claims": claims})
    every = [*both, mended]
    rows = claim_rows(every)
    assert [row.mended and row.mended.verdict for row in rows] == [None, HOLDS, HOLDS]
    assert [row.results for row in rows] == [row.results for row in claim_rows(both)]
    assert summary(every) == summary(both)[:-1] + "; 2 of those were judged on a mended file too, where 2 hold."
    assert claims_table(every).count('<td class="mended">') == 2 and "Other-1B, mended</th>" in claims_table(every)
    assert plain_table(every).count("      Other-1B, mended: HOLDS") == 2
    assert summary_table(every).splitlines()[2].split(" | ")[4] == "Other-1B, mended"
    assert markdown_table(every).count("holds, in") == markdown_table(both).count("holds, in") + 2
    assert claims_summary(every).count("<br>") == 2, "it has no counts of its own"


def test_papers_stay_together_whichever_board_brings_a_claim(shipped):
    squat = [claim for claim in shipped.claims if claim.paper == "SQuat"]
    one = without(without(shipped, squat[0].id), squat[-1].id)
    rows = claim_rows([one, shipped])
    papers = [row.claim.paper for row in rows]
    assert len(rows) == len(shipped.claims) and papers == sorted(papers, key=list(dict.fromkeys(papers)).index)


def test_main_figures_of_a_row_are_of_one_criterion(shipped):
    """The first one that either model fails, so that the numbers can be compared."""
    criteria = ("a < b", "c < d")
    numbers = [{"a": 1.0, "b": 2.0, "c": c, "d": 1.0} for c in (0.5, 3.0)]
    claims = [
        shipped.claims[0].model_copy(update={"criterion": criteria, "numbers": spreads([found])}) for found in numbers
    ]
    assert [main_figure(claim, claims) for claim in claims] == ["c 0.5 < d 1", "c 3 < d 1"]
    assert [main_figure(claim) for claim in claims] == ["a 1 < b 2", "c 3 < d 1"]


def test_titles_of_columns_are_short():
    assert short_title("SmolLM2-135M-Instruct") == "SmolLM2-135M" and short_title("Tiny") == "Tiny"
    assert short_title(TITLE) == "Qwen2.5-Coder-0.5B"


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_shows_both_models_and_knows_which_rows_flip(boards):
    both = boards((HOLDS, HOLDS), (HOLDS, FAILS), (HOLDS, UNTESTED))
    html = claims_table(both)
    assert html.count('<tr class="same">') == 2 and html.count('<tr class="flips">') == 1
    assert '<th scope="col">One-1B</th><th scope="col">Other-1B</th>' in html and "No codebooks." in html
    assert html.count('<b class="of">One-1B</b>') == html.count('<b class="of">Other-1B</b>') == 3


def test_titles_of_models_are_escaped(boards):
    one, other = boards((HOLDS, FAILS))
    html = claims_table([one, other.model_copy(update={"model_title": "<script>${x}"})])
    assert "<script>" not in html and "${" not in html


@pytest.mark.slow
def test_the_panel_shows_what_is_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    timed = latency_claims(stored_latency().boards)
    assert _shown() == claims_summary(shipped_boards()) + claims_table(shipped_boards()) + timed
    board_file(DEFAULT_MODEL).parent.mkdir()
    board_file(DEFAULT_MODEL).write_text("{}")
    assert "measure it again" in _shown()


# --- what is stored -------------------------------------------------------------------------------------------------


def test_boards_of_both_models_ship_the_default_models_first():
    assert [board.model for board in of_models(shipped_boards())] == [DEFAULT_MODEL, SECOND_MODEL]
    assert shipped_boards()[1].model_title == TITLE


def test_the_mended_board_has_claims_that_flip_measured_as_on_the_models():
    (_, other), mended = of_models(shipped_boards()), mended_board(shipped_boards())
    assert mended is not None and mended.mends == other.model and mended.weights_hash != other.weights_hash
    assert (mended.rule, mended.prompt_tokens, mended.later_tokens) == (
        other.rule,
        other.prompt_tokens,
        other.later_tokens,
    )
    flips = {row.claim.id: row for row in claim_rows(shipped_boards()) if row.flips}
    assert {claim.id for claim in mended.claims} <= set(flips) and all(claim.numbers for claim in mended.claims)
    assert {"innerq-quality", "innerq-normalization"} <= {claim.id for claim in mended.claims}


def test_both_boards_were_measured_on_as_many_texts_by_the_same_criteria():
    one, other = of_models(shipped_boards())
    assert (one.rule, one.prompt_tokens, one.later_tokens) == (other.rule, other.prompt_tokens, other.later_tokens)
    assert [text.name for text in one.texts] == [text.name for text in other.texts]
    assert all(row.results[0] is not None for row in claim_rows([one, other]))
    assert sum(row.results[1] is not None for row in claim_rows([one, other])) == len(other.claims)
    for claim in other.claims:
        criteria = [Criterion.parse(text) for text in claim.criterion]
        numbers = [text.numbers for text in claim.texts]
        assert claim.reason or claim_verdict(criteria, numbers, setting().rule)[0] == claim.verdict
    measured = {claim.id for claim in other.claims}  # those of decoded tokens take hours on the larger model
    known = [c.id for paper in papers().values() for c in paper.claims]
    assert [claim.id for claim in other.claims] == [id for id in known if id in measured]
    left = {"commvq-baselines-1", "commvq-baselines-2", "svdq-think"}  # not measured there yet, and shown so
    assert measured | left >= {
        c.id for paper in papers().values() for c in paper.claims if c.measure in ("lanes", "key_spectra")
    }


def test_a_board_measured_here_takes_the_place_of_the_shipped_one(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    assert stored_boards() == shipped_boards()
    own = shipped_boards()[1].model_copy(update={"created": "2030-01-01T00:00:00+00:00"})
    save_board(own, board_file(SECOND_MODEL))
    assert [board.created for board in of_models(stored_boards())] == [shipped_boards()[0].created, own.created]
    mended = mended_board(shipped_boards())
    assert mended is not None
    save_board(mended.model_copy(update={"mends": None}), board_file(mended.model))  # as the command measures it
    assert len(of_models(stored_boards())) == 2, "it is no third model"
    board_file(SECOND_MODEL).write_text("{}")
    with pytest.raises(StoreError, match="measure it again"):
        stored_boards()


def test_a_board_says_whose_codebooks_it_had(shipped):
    said = {
        None: "",
        (): "; CommVQ's codebooks shipped.",
        ("a.default.keys-l16-g32",): f"; CommVQ's codebooks trained on demand: 1 of {len(shipped.codebooks)}.",
    }
    shipped = shipped.model_copy(update={"goes": ()})
    for own, sentence in said.items():
        board = shipped.model_copy(update={"trained_on_demand": own})
        assert ("codebooks" in circumstances(board)) is bool(sentence) and sentence in circumstances(board)
    none = shipped.model_copy(update={"trained_on_demand": (), "codebooks": ()})
    assert "; no codebooks for CommVQ." in circumstances(none)


def test_a_board_of_before_that_is_read(shipped, tmp_path):
    older = json.loads(board_json(shipped))
    older.pop("trained_on_demand")
    (tmp_path / "board.json").write_text(json.dumps(older))
    assert read_board(tmp_path / "board.json").trained_on_demand is None


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_stored_boards_are_printed_side_by_side(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    both = shipped_boards()

    def printed(*arguments: str) -> str:
        assert main(["claims", *arguments]) == 0
        return capsys.readouterr().out

    assert printed("--stored") == f"{plain_table(both)}\n\n{plain_latency(stored_latency().boards)}\n"
    assert printed("--markdown").startswith(markdown_table(both))
    found = json.loads(printed("--stored", "--json"))
    assert [Board.model_validate(board) for board in found["boards"]] == both
    assert found["flips"] == [row.claim.id for row in claim_rows(both) if row.flips]
    one = printed("--stored", "--json", "--model", SECOND_MODEL)
    assert Board.model_validate(json.loads(one)) == both[1]
    squat = printed("--stored", "--paper", "squat")
    assert squat.count(f"{short_title(TITLE)}: ") == sum(c.paper == "SQuat" for c in both[0].claims)
