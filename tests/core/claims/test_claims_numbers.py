"""What claims measure, against direct float64 computations."""

from types import SimpleNamespace

import pytest
import torch

import kvq_core
from kvq_core.claims import papers
from kvq_core.claims.criteria import MEASURES
from kvq_core.claims.lane_errors import METRICS, later_attention, mean_score_error, output_error
from kvq_core.claims.lanes import ClaimLane, read_back
from kvq_core.claims.measures import Context
from kvq_core.claims.sample import capture
from kvq_core.claims.structure import energy_shares, window_attention
from kvq_core.claims.texts import first_unseen, training_pieces
from kvq_core.errors import MethodError
from kvq_core.models.scoring import causal_attention
from kvq_core.training.texts import Texts, sequences
from tests.support.tiny_models import prompt_ids, tiny

PROMPT, TOKENS = 128, 176


@pytest.fixture(scope="module")
def sample():
    return capture(tiny("llama"), "tiny", prompt_ids(TOKENS), PROMPT)


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
    now = window_attention(sample, 1, 5)
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
    claim = next(c for paper in papers().values() for c in paper.claims if c.id == "innerq-table-1")
    found = claim.measurement().cases(None)
    # 32.5 MB of 32,768 bytes a token: 992 tokens; 128 in fp16, 864 at 2 + 1.5 + 1/32 bits; 2 * 16 * 8 * 64 elements
    assert found["Llama 3.2-1B"]["formula_mb"] == pytest.approx(16384 * (128 * 16 + 864 * 3.53125) / 8e6)


def test_texts_pass_over_what_codebooks_were_trained_on():
    assert first_unseen(100, 50, [range(90), range(140, 160), range(200, 260)]) == 260
    assert first_unseen(100, 40, [range(100), range(140, 160)]) == 100
    info = SimpleNamespace(settings={"seed": 5}, held_out_tokens=1024, train_tokens=4096)
    model = SimpleNamespace(encode=lambda _: list(range(20000)), shape=SimpleNamespace(context=8192), tokenizer=None)
    cut = sequences(model, Texts("x", ("",)), 4096, 1024, 5)
    assert [list(r) for r in training_pieces(info, 20000, 8192)] == cut.train
