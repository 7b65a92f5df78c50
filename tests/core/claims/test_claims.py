"""The papers' claims: the rule, the data, the measurements against direct float64 computations, the stored board."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kvq_core
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
from kvq_core.claims.criteria import MEASURES, Claim, Paper
from kvq_core.claims.errors import METRICS, later_attention, mean_score_error, output_error
from kvq_core.claims.lanes import ClaimLane, read_back
from kvq_core.claims.measure import judge
from kvq_core.claims.measures import Context
from kvq_core.claims.sample import capture
from kvq_core.claims.side_by_side import joined
from kvq_core.claims.structure import energy_shares, prompt_attention
from kvq_core.claims.tables import markdown_table, plain_table, verdict_markdown
from kvq_core.claims.texts import first_unseen, training_pieces
from kvq_core.claims.verdict import verdict
from kvq_core.cli.main import main
from kvq_core.errors import MethodError, SpecError, StoreError
from kvq_core.models.scoring import causal_attention
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.training.texts import Texts, sequences
from tests.support.tiny_models import prompt_ids, tiny
from ui.html.claims_table import claims_summary, claims_table

ROOT = Path(__file__).parents[3]
ALL = [(p, claim) for p in papers().values() for claim in p.claims]
PROMPT, TOKENS = 128, 176


@pytest.fixture(scope="module")
def sample():
    return capture(tiny("llama"), "tiny", prompt_ids(TOKENS), PROMPT)


@pytest.fixture(scope="module")
def shipped():
    return read_board(SHIPPED / f"board-{DEFAULT_MODEL}.json")


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
    found, reason = verdict([Criterion.parse("a < b")], [{"a": a, "b": b} for a, b in pairs], setting().rule)
    assert found == word
    assert bool(reason) == (word == "cannot be tested here")


def test_every_criterion_has_to_hold_in_the_same_texts():
    both = [Criterion.parse("a < b"), Criterion.parse("a > 0")]
    texts = [{"a": -1.0, "b": 2.0}, {"a": 3.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 9.0}]
    assert verdict(both, texts, setting().rule)[0] == "does not hold here"  # each in 3 of 4, both in 2 of 4


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
    cases = claim.measurement().cases()
    assert texts <= set(setting().text) and len(cases or claim.texts or setting().texts) >= 3
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


# --- measurements ---------------------------------------------------------------------------------------------------


def naive_scores(sample, keys, first):
    """Root mean square of centred score errors, pair by pair in float64, mean over layers."""
    layers = []
    for q, read, true in zip(sample.queries.double(), keys.double(), sample.keys.double(), strict=True):
        squares = []
        for head in range(q.shape[0]):
            kv = head * read.shape[0] // q.shape[0]
            for t in range(first, TOKENS):
                n = min(t + 1, PROMPT)
                row = (read[kv, :n] - true[kv, :n]) @ q[head, t] / q.shape[-1] ** 0.5
                squares += (row - row.mean()).square().tolist()
        layers.append((sum(squares) / len(squares)) ** 0.5)
    return sum(layers) / len(layers)


@pytest.mark.parametrize("first", [0, PROMPT])
def test_score_errors_equal_a_direct_computation(sample, first):
    held = read_back(sample, ClaimLane(method="kivi", knobs={"bits": 2}))
    assert mean_score_error(sample, held.keys, first) == pytest.approx(naive_scores(sample, held.keys, first), rel=1e-4)


def test_output_errors_equal_a_direct_computation(sample):
    held = read_back(sample, ClaimLane(method="per_token", knobs={"bits": 3}))
    errors = []
    for layer in range(sample.layers):
        outputs = []
        for keys, values in (
            (sample.keys[layer, :, :PROMPT], sample.values[layer, :, :PROMPT]),
            (held.keys[layer], held.values[layer]),
        ):
            k = torch.cat([keys, sample.keys[layer, :, PROMPT:]], 1).double()
            v = torch.cat([values, sample.values[layer, :, PROMPT:]], 1).double()
            rows = []
            for head, q in enumerate(sample.queries[layer].double()):
                kv = head * len(k) // len(sample.queries[layer])
                for t in range(PROMPT, TOKENS):
                    weights = torch.softmax(k[kv, : t + 1] @ q[t] / q.shape[-1] ** 0.5, 0)
                    rows.append(weights @ v[kv, : t + 1])
            outputs.append(torch.stack(rows))
        errors.append(((outputs[1] - outputs[0]).norm() / outputs[0].norm()).item())
    assert output_error(sample, held) == pytest.approx(sum(errors) / len(errors), rel=1e-4)


def test_a_replay_over_the_exact_cache_is_the_models_own_forward(sample):
    def attend(layer, q, k, v, scaling):
        return causal_attention(q, k, v, scaling)

    whole = sample.model.forward(torch.tensor([sample.ids]), 0, attend)[0, PROMPT:]
    torch.testing.assert_close(sample.reference_logits, whole, atol=2e-4, rtol=1e-4)
    exact = read_back(sample, ClaimLane(method="fp16"))
    coarse = read_back(sample, ClaimLane(method="per_token", knobs={"bits": 2}))
    assert METRICS["kld"](sample, exact) < 1e-5 < METRICS["kld"](sample, coarse)


def test_predictions_equal_a_direct_computation(sample):
    held = read_back(sample, ClaimLane(method="kivi", knobs={"bits": 2}))
    p = sample.reference_logits.double().softmax(-1)
    q = sample.replay(held.keys, held.values).double().softmax(-1)
    assert METRICS["kld"](sample, held) == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), rel=1e-3)
    follow = sample.ids[PROMPT + 1 :]
    nll = [(p[i, token] / q[i, token]).log().item() for i, token in enumerate(follow)]
    assert METRICS["ppl_ratio"](sample, held) == pytest.approx(torch.tensor(nll).mean().exp().item(), rel=1e-4)


@pytest.mark.parametrize("method", ["kivi", "squat", "svdq", "innerq", "qaq"])
def test_a_held_lane_is_the_roundtrip_of_every_layer(sample, method):
    held = read_back(sample, ClaimLane(method=method))
    tables = (sample.rope.cos[:PROMPT], sample.rope.sin[:PROMPT])
    for layer in (0, sample.layers - 1):
        keys, values = (t[layer, :, :PROMPT] for t in (sample.keys, sample.values))
        built = kvq_core.make(method)
        if method == "qaq":
            continue  # its tolerance is solved over all layers together
        once = kvq_core.roundtrip(built, keys, values, sample.queries[layer, :, :PROMPT], tables, metadata="float16")
        torch.testing.assert_close(held.keys[layer], once.keys, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(held.values[layer], once.values, atol=2e-5, rtol=1e-4)
    assert held.keys.shape == sample.keys[..., :PROMPT, :].shape


def test_bits_are_counted_from_what_is_held(sample):
    assert read_back(sample, ClaimLane(method="kivi", knobs={"bits": 2})).bits("key") == 3.0
    kept = read_back(sample, ClaimLane(method="kivi", knobs={"bits": 2}, tensors="keys"))
    assert kept.bits("value") == 16.0
    recent = read_back(sample, ClaimLane(method="kivi", knobs={"bits": 2}, windows=True))
    assert recent.bits("value") == pytest.approx((32 * 16 + (PROMPT - 32) * 3) / PROMPT)


def test_per_channel_before_rope_is_closer_to_what_it_stores(sample):
    """The lane quantizes unrotated keys: rotating them back gives exactly its grid."""
    knobs = {"bits": 8, "group_size": PROMPT, "residual_length": PROMPT}
    held = read_back(sample, ClaimLane(method="per_channel", knobs=knobs, keys="pre"))
    unrotated = sample.rope.unrotate(held.keys, 0)
    true = sample.keys_before_rope[..., :PROMPT, :]
    step = (true.amax(-2) - true.amin(-2)) / 255
    assert ((unrotated - true).abs() <= 0.51 * step[..., None, :] + 2e-2 * step.max()).all()


def test_missing_codebooks_and_wrong_shapes_are_reasons(sample):
    with pytest.raises(MethodError, match="codebooks train --model tiny-llama"):
        read_back(sample, ClaimLane(method="commvq"))
    with pytest.raises(MethodError, match="group_size"):
        read_back(sample, ClaimLane(method="kivi", knobs={"group_size": 48, "residual_length": 48}))


def test_query_subspaces_equal_a_direct_svd(sample):
    measure = MEASURES["query_subspace"].model_validate({"space": "post", "rank_of_128": 32})
    found = measure.on_text(Context(sample.model), sample)
    rank, whole, later = 8, [], []
    for layer in sample.queries.double():
        for kv in layer.unflatten(0, (2, -1)):
            q = kv.flatten(0, 1)
            unit = q / q.norm(dim=-1, keepdim=True)
            basis = torch.linalg.svd(q).Vh[:rank]
            whole.append((unit - unit @ basis.T @ basis).norm(dim=-1).mean())
            seen = torch.linalg.svd(kv[:, :PROMPT].flatten(0, 1)).Vh[:rank]
            new = kv[:, PROMPT:].flatten(0, 1)
            new = new / new.norm(dim=-1, keepdim=True)
            later.append((new - new @ seen.T @ seen).norm(dim=-1).mean())
    assert found["rank"] == rank
    assert found["deviation"] == pytest.approx(torch.stack(whole).mean().item(), rel=1e-4)
    assert found["later_from_prompt"] == pytest.approx(torch.stack(later).mean().item(), rel=1e-4)


def test_key_spectra_equal_a_direct_svd(sample):
    x = sample.keys_before_rope[0, :, :PROMPT].double().transpose(0, 1).flatten(1)
    squares = torch.linalg.svdvals(x - x.mean(0)).square()
    share = energy_shares(sample.keys_before_rope[:1, :, :PROMPT])[0]
    torch.testing.assert_close(share, squares.cumsum(0) / squares.sum(), atol=1e-5, rtol=1e-5)
    found = MEASURES["key_spectra"].model_validate({"energy": 0.9}).on_text(Context(sample.model), sample)
    assert 0 < found["pre.top_eighth"] < found["pre.top_half"] < 1 and found["pre.rank"] >= 1


def test_attention_of_prompt_and_later_queries_sums_to_one_over_the_past(sample):
    now = prompt_attention(sample, 1, 5)
    later = later_attention(sample, 1, sample.keys[1, :, :PROMPT])
    torch.testing.assert_close(now.sum(-1), torch.ones(now.shape[:-1]))
    torch.testing.assert_close(later.sum(-1), torch.ones(later.shape[:-1]))
    assert (now[:, 0, -4:] == 0).all() and (later[:, 0, PROMPT + 1 :] == 0).all()
    q, k = sample.queries[1, 3, PROMPT - 1].double(), sample.keys[1, 1, :PROMPT].double()
    torch.testing.assert_close(now[3, -1].double(), torch.softmax(k @ q / q.shape[-1] ** 0.5, 0), atol=1e-5, rtol=1e-4)


def test_persistence_knows_what_persists(sample):
    measure = MEASURES["persistence"].model_validate({"window": 5, "share": 0.2, "strong": 10})
    found = measure.on_text(Context(sample.model), sample)
    assert 0 <= found["surprises"] <= 1
    same = capture(tiny("llama"), "same", prompt_ids(TOKENS), PROMPT)
    same.queries[..., PROMPT - 5 :, :] = same.queries[..., PROMPT - 1 : PROMPT, :]  # every query asks the same
    frozen = measure.on_text(Context(same.model), same)
    assert frozen["kept"] > 0.95 > found["kept"] and frozen["surprises"] == 0


def test_larger_groups_are_trained_and_measured(sample, monkeypatch):
    monkeypatch.setattr("kvq_core.claims.structure.token_ids", lambda *_: (prompt_ids(400, seed=3), ""))
    data = {
        "layer": 0,
        "stages": 2,
        "tokens": 400,
        "train_on": {"kind": "topics"},
        "groups": [{"pairs": 8, "levels": 2}, {"pairs": 16, "levels": 4}],
    }
    measure = MEASURES["key_codebooks"].model_validate(data)
    found = measure.on_text(Context(sample.model), sample)
    assert set(found) == set(measure.names)
    assert 1 > found["g8.r1"] > found["g8.r2"] > 0 and found["g16.r2"] < found["g16.r1"]
    with pytest.raises(MethodError, match="tile"):
        MEASURES["key_codebooks"].model_validate({**data, "groups": [{"pairs": 12, "levels": 2}]}).on_text(
            Context(sample.model), sample
        )


def test_the_size_formula_by_hand():
    claim = next(c for _, c in ALL if c.id == "innerq-table-1")
    found = claim.measurement().cases()
    # 32.5 MB of 32,768 bytes a token: 992 tokens; 128 in fp16, 864 at 2 + 1.5 + 1/32 bits; 2 * 16 * 8 * 64 elements
    assert found["Llama 3.2-1B"]["formula_mb"] == pytest.approx(16384 * (128 * 16 + 864 * 3.53125) / 8e6)


def test_texts_pass_over_what_codebooks_were_trained_on():
    assert first_unseen(100, 50, [range(90), range(140, 160), range(200, 260)]) == 260
    assert first_unseen(100, 40, [range(100), range(140, 160)]) == 100
    info = SimpleNamespace(settings={"seed": 5}, held_out_tokens=1024, train_tokens=4096)
    model = SimpleNamespace(encode=lambda _: list(range(20000)), shape=SimpleNamespace(context=8192), tokenizer=None)
    cut = sequences(model, Texts("x", ("",)), 4096, 1024, 5)
    assert [list(r) for r in training_pieces(info, 20000, 8192)] == cut.train


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
    board = measure_board(smollm, [small_paper()], short, lambda *step: said.append(step))
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
    """A paper at a time; of a board that has none of them, those that are not measured yet stay away."""
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


def test_a_context_too_short_is_a_reason():
    long = setting().model_copy(update={"prompt_tokens": 5000})
    board = measure_board(tiny("llama"), list(papers().values()), long)
    formulas = {claim.id for _, claim in ALL if claim.measurement().cases() is not None}  # need no text
    assert {"innerq-table-1", "commvq-table-7", "commvq-memory"} == formulas
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
            assert claim.verdict == "cannot be tested here" and not claim.numbers
            continue
        criteria = [Criterion.parse(text) for text in claim.criterion]
        texts = [text.numbers for text in claim.texts]
        assert verdict(criteria, texts, setting().rule)[0] == claim.verdict, claim.id
        assert all(t.holds == all(c.holds(t.numbers) for c in criteria) for t in claim.texts)
        for name, spread in claim.numbers.items():
            values = [numbers[name] for numbers in texts]
            assert (spread.min, spread.max) == (min(values), max(values))
            assert spread.mean == pytest.approx(sum(values) / len(values))


def test_the_documents_show_the_shipped_boards():
    """tests/test_docs.py compares every generated part; this is what they show."""
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert f"\n{markdown_table(shipped_boards())}\n" in page, "run: make readme"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for row in joined(shipped_boards()):
        mark = " **Flips with the model.**" if row.flips else ""
        verdicts = " | ".join(map(verdict_markdown, row.results))
        assert f"| {row.claim.paper} | {row.claim.sentence}{mark} | {verdicts} |" in readme, row.claim.id


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
