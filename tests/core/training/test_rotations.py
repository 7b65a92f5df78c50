"""OSCAR's rotations calibrated once per model: from texts to a lane and to the engine's files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvq_core.cli.main import main
from kvq_core.codebooks.files import codebook_folder, codebooks
from kvq_core.errors import KvqError, MethodError, SpecError
from kvq_core.methods import make
from kvq_core.methods.base import Prompt
from kvq_core.models.scoring import causal_attention
from kvq_core.spec import Lane
from kvq_core.training.rotations import export
from kvq_core.training.texts import read_texts, sequences
from kvq_core.training.train import Request, train
from tests.support.codebook_samples import QUIET, Letters
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny

ASKED = Request(kinds=("rotations",), name="mine", train_tokens=4096, held_out_tokens=1024)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))


@pytest.fixture
def model():
    return replace(tiny("llama"), tokenizer=Letters())


@pytest.mark.slow
def test_calibrated_rotations_are_kept_read_by_a_lane_and_exported(model, tmp_path, capsys, monkeypatch):
    lane = Lane(label="own", method="oscar", knobs={"calibration": "mine", "sink_tokens": 0, "recent_tokens": 8})
    assert [need.command("m") for need in lane.lacks(model.ref)] == [
        "python -m kvq_core codebooks train --model m --only rotations --target qqt --name mine"
    ]
    (book,) = train(model, ASKED, QUIET)
    assert train(model, ASKED, QUIET) == [book] and book.info.file_name.endswith(".mine.rotations-qqt")
    assert not lane.lacks(model.ref) and lane.data_hash(model.ref) == book.info.content

    grams: dict[int, np.ndarray] = {}  # of keys' rotations: the queries', worked out apart

    def attend(layer, queries, keys, values, scaling):
        q = queries[0].double().numpy().reshape(keys.shape[1], -1, keys.shape[-1])
        grams[layer] = grams.get(layer, 0) + np.einsum("htd,hte->de", q, q)
        return causal_attention(queries, keys, values, scaling)

    cut = sequences(model, read_texts(None), 4096, 1024, 0).train
    for ids in cut:
        model.forward(torch.tensor([ids]), 0, attend)
    tensors = book.tensors()
    for layer, gram in grams.items():
        gram = gram / (sum(map(len, cut)) * model.shape.query_heads)
        rotation = tensors["key_rotation"][layer].double().numpy()
        np.testing.assert_allclose(rotation.T @ rotation, np.eye(32), atol=1e-5)
        np.testing.assert_allclose(tensors["key_eigenvalues"][layer], np.linalg.eigvalsh(gram), rtol=1e-3)
        np.testing.assert_allclose(np.diag(rotation.T @ gram @ rotation), np.trace(gram) / 32, rtol=1e-3)

    usual = lane.model_copy(update={"label": "prompt", "knobs": {"sink_tokens": 0, "recent_tokens": 8}})
    outcome = run_engine(model, prompt_ids(90), [lane, usual], 4, ignore_eos=True)
    one, other = (outcome.state(name) for name in ("own", "prompt"))
    assert one.error is None and f"tokens of pydoc_data.topics: {book.info.file_name}" in one.cache.notes[0]
    assert one.cache.model_bytes == 2 * tensors["key_rotation"].nbytes and other.cache.model_bytes == 0
    assert "prompt-only" in other.cache.notes[0]

    assert main(["codebooks", "export", book.info.file_name, "--to", str(tmp_path / "out"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    for kind, path in zip(("key", "value"), written, strict=True):
        read = torch.load(path, weights_only=True)
        assert read["objective"] == f"qqt_{kind}s" and list(read["layers"]) == [0, 1, 2]
        assert torch.equal(read["layers"][2]["rotation"], tensors[f"{kind}_rotation"][2])


def test_what_cannot_be_calibrated_or_exported_is_said_in_one_line(model, tmp_path):
    with pytest.raises(MethodError, match="Run: python -m kvq_core codebooks train .* --only rotations --target ktk"):
        keys = torch.randn(1, 2, 40, 32)
        prompt = Prompt(keys, keys, keys, model=model.ref, layers=(0,))
        make("oscar", target="ktk", calibration="default").fit(prompt)
    with pytest.raises(SpecError, match="leave calibration out"):
        Lane(method="oscar", knobs={"target": "hadamard", "calibration": "default"})
    books = {book.info.kind: book for book in codebooks()}
    with pytest.raises(KvqError, match="only rotations are exported"):
        export(books["keys"], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(KvqError, match="cannot be written"):
        export(books["rotations"], tmp_path / "file")
    assert not codebook_folder().exists()
