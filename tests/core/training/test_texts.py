"""The text that codebooks are trained on, and the keys and values collected from it."""

import pytest
import torch

from kvq_core.errors import SpecError
from kvq_core.training.collect import collect
from kvq_core.training.texts import Texts, read_texts, sequences
from tests.support.codebook_samples import QUIET, Letters
from tests.support.tiny_models import tiny


@pytest.fixture
def model():
    from dataclasses import replace

    return replace(tiny("llama"), tokenizer=Letters())


def test_the_built_in_text_is_long_and_held_out_text_is_apart(model):
    texts = read_texts(None)
    assert texts.source == "pydoc_data.topics" and sum(map(len, texts.documents)) > 300_000
    cut = sequences(model, texts, 4096, 1024, seed=0)
    assert sum(map(len, cut.train)) >= 4096 and sum(map(len, cut.held_out)) >= 1024
    assert not {tuple(s) for s in cut.train} & {tuple(s) for s in cut.held_out}
    assert sequences(model, texts, 4096, 1024, seed=0) == cut != sequences(model, texts, 4096, 1024, seed=1)


def test_text_that_cannot_serve_is_refused(model, tmp_path):
    with pytest.raises(SpecError, match="gives 5 tokens"):
        sequences(model, Texts("x", ("short",)), 4096, 1024, seed=0)
    with pytest.raises(SpecError, match="cannot be read"):
        read_texts(str(tmp_path / "none.txt"))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SpecError, match="UTF-8"):
        read_texts(str(tmp_path / "bytes.txt"))


def test_collected_keys_are_those_of_the_projection(model):
    """Layer 0 sees the embedding alone: its keys before RoPE are k_proj(norm(embedding)), position by position."""
    ids = [[5, 6, 7, 8], [9, 10]]
    kept = collect(model, ids, QUIET)
    layer = model.model.base_model.layers[0]
    x = layer.input_layernorm(model.model.get_input_embeddings()(torch.tensor(ids[0] + ids[1])))
    for tensor, project in ((kept.keys, layer.self_attn.k_proj), (kept.values, layer.self_attn.v_proj)):
        expected = project(x).unflatten(-1, (2, 32)).transpose(0, 1)
        torch.testing.assert_close(tensor[0].float(), expected, rtol=2e-3, atol=2e-3)
