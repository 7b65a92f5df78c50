"""The tour's toy: real keys, and settings that an independent computation gives, too."""

import base64

import numpy as np
import pytest

from kvq_core.spec import DEFAULT_MODEL
from ui.panels.toy import BITS, WAYS, keys, said_of, table, toy_html

KEYS, QUERY = np.array(keys().keys, np.float64), np.array(keys().query, np.float64)


def rounded(bits: int, axis: int) -> np.ndarray:
    """Asymmetric rounding with a scale and a minimum, both fp16, along an axis: written apart from the methods."""
    low = KEYS.min(axis, keepdims=True).astype(np.float16).astype(np.float64)
    scale = ((KEYS.max(axis, keepdims=True) - KEYS.min(axis, keepdims=True)) / (2**bits - 1)).astype(np.float16)
    steps = np.maximum(scale.astype(np.float64), 1e-12)
    return np.clip(np.round((KEYS - low) / steps), 0, 2**bits - 1) * steps + low


def shares(stored: np.ndarray) -> np.ndarray:
    scores = stored @ QUERY / np.sqrt(QUERY.size)
    parts = np.exp(scores - scores.max())
    return 100 * parts / parts.sum()


@pytest.mark.parametrize("way, axis", [("per_token", 1), ("per_channel", 0)])
def test_every_setting_is_what_rounding_gives(way, axis):
    assert KEYS.shape == (16, 64) and len(keys().tokens) == 16
    for bits in BITS:
        found, expected = table()[f"{way} {bits}"], shares(rounded(bits, axis))
        assert np.abs(np.array(found.attention) - expected).max() < 1.5
        assert found.moved == pytest.approx(np.abs(expected - shares(KEYS)).sum() / 2, abs=1.5)
        groups = KEYS.size // KEYS.shape[axis]
        assert found.nbytes == bits * KEYS.size // 8 + 4 * groups
        codes = np.frombuffer(base64.b64decode(found.codes), np.int8).reshape(KEYS.shape)
        assert np.abs(codes * np.abs(KEYS).max() / 127 - rounded(bits, axis)).max() < 0.02 * np.abs(KEYS).max()


def test_the_toy_shows_what_it_is_for():
    moved = {way: table()[f"{way} 2"].moved for way, _ in WAYS}
    assert moved["per_token"] > 3 * moved["per_channel"] and table()["per_token 8"].moved < 5
    html = toy_html()
    assert html.count("<li>") == 16 and said_of("per_token", 8).split(":")[0] in html and keys().text in html


@pytest.mark.real_model
def test_the_keys_are_the_bundled_models():
    from scripts.learn_keys import keys as computed

    again = computed()
    assert again["model"] == keys().model and again["weights"] == keys().weights and DEFAULT_MODEL
    assert np.abs(np.array(again["keys"]) - KEYS).max() < 2e-3 and np.abs(np.array(again["query"]) - QUERY).max() < 2e-3
