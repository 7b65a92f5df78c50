"""Compression by the byte counter and operations of commuted scores, beside counts by hand."""

import pytest

from kvq_core.claims.criteria import MEASURES

LONG = {"name": "x", "kv_heads": 8, "head_dim": 128, "tokens": 65536, "printed": 8.0}


def ratios(**changes):
    return MEASURES["key_ratios"].model_validate({"rows": [{**LONG, **changes}]}).cases(None)["x"]


def test_stored_keys_are_codes_basis_scales_and_mean():
    found = ratios(schedule=[8, 4, 4, 0, 0, 0, 0, 0])
    tokens, channels, kept = 65536, 1024, 384
    held = tokens * channels * 2 / 8 + 2 * (channels * kept + channels + 2 * kept)
    assert found["stored"] == found["read"] == pytest.approx(2 * tokens * channels / held, rel=1e-3)
    assert found["chosen"] == 8


def test_a_step_reads_landmarks_outliers_and_local_chunks_beside_the_chosen_codes():
    found = ratios(schedule=[4, 4, 2, 0, 0, 0, 0, 0], budget=2048)
    tokens, channels, kept = 65536, 1024, 384
    landmarks, outliers, local = 2 * (tokens - 32) // 8 * channels, 48 * 8 * (2 * 8 * 128 + 4), 2 * 32 * channels
    basis, chosen = 2 * (channels * kept + channels + 2 * kept), 2048 * channels * 1.25 / 8
    read = landmarks + outliers + local + basis + chosen
    assert found["chosen"] == pytest.approx(409.6)
    assert found["read"] == pytest.approx(2 * tokens * channels / read, rel=1e-3)
    assert found["stored"] < found["read"] < found["chosen"] / 50


def test_operations_of_scores_by_hand():
    tokens, queries, pairs, stages, levels = 1000, 4, 64, 11, 64
    asked = {"tokens": [tokens], "queries": queries, "pairs": pairs, "stages": stages, "levels": levels}
    (found,) = MEASURES["commuted_counts"].model_validate(asked).cases(None).values()
    dim = 2 * pairs
    assert found["decoded.multiplications"] == tokens * dim * (2 + queries)
    assert found["decoded.additions"] == tokens * (dim * (2 * stages - 1) + dim + queries * (dim - 1))
    tables = queries * stages * levels * pairs
    assert found["commuted.multiplications"] == 4 * tables + queries * tokens * dim
    summed = queries * tokens * (dim * (2 * stages - 1) + dim - 1)
    assert found["commuted.additions"] == 2 * tables + summed
