"""Codebooks as files: trained, read by a lane, looked up, damaged, shipped; and the command; all without a network."""

import json

import pytest
import torch

from kvq_core.cli.main import main
from kvq_core.codebooks import files
from kvq_core.codebooks.lookup import CodebookNeed, find_codebook, stages_for
from kvq_core.errors import KvqError, SpecError, StoreError
from kvq_core.methods import Prompt, make
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.training.em import EmSettings, train_stage
from kvq_core.training.train import Request, train
from tests.support.codebook_samples import QUIET, Letters, info
from tests.support.tiny_models import tiny


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def model():
    from dataclasses import replace

    return replace(tiny("llama"), tokenizer=Letters())


SMALL = Request(train_tokens=4096, held_out_tokens=1024, levels=4, pairs=8, em=EmSettings(steps=4), value_steps=4)


@pytest.mark.slow
def test_a_trained_model_runs_a_lane(home, model):
    """From text to a run: training, files, lookup, what memory counts, and the run's id."""
    from dataclasses import replace

    from kvq_core.engine.cache import LaneCache
    from kvq_core.engine.prefill import SharedPrefill
    from kvq_core.engine.stored_bytes import measure
    from kvq_core.pipeline.assemble import run_id
    from kvq_core.spec import ComparisonSpec, Lane

    knobs = {"levels": 4, "pairs_per_group": 8, "window": 32}
    spec = ComparisonSpec(prompt="x", lanes=(Lane(method="commvq", knobs=knobs),))
    before = run_id(model, spec, [1])
    seen = []
    books = train(model, SMALL, seen.append)
    assert {at.doing for at in seen} == {"Reading text", "Training keys", "Training values"}
    assert not list((home / "codebooks").glob("*.partial"))
    assert run_id(model, spec, [1]) != before
    keys, values = (book.info for book in books)
    assert (keys.bits, keys.stages, values.bits) == (1.0, 4, 1)
    assert len(keys.held_out_error) == 4 and keys.train_tokens >= 4096
    assert len(keys.stage_seconds) == 4 and keys.seconds == pytest.approx(sum(keys.stage_seconds), abs=0.3)
    assert not values.stage_seconds and all("seconds" not in book.tensors() for book in books)
    assert keys.command == (
        "python -m kvq_core codebooks train --model tiny-llama --bits 1 --levels 4 --pairs 8 --train-tokens 4096 "
        "--held-out-tokens 1024 --value-steps 4"
    )
    prefill = SharedPrefill(model, model.encode("The quick brown fox " * 10))
    assert list(prefill.run())
    cache = LaneCache.of_prompt(spec.lanes[0], prefill.groups, model.rope(300), model.ref)
    memory = measure(cache, model.shape)
    assert memory.key_bits_quantized == memory.value_bits_quantized == 1 + 16 / 64
    theta, encoder = books[0].tensors()["theta"], books[1].tensors()
    held = theta.numel() + encoder["codebook"].numel() + encoder["scale"].numel()
    assert memory.shared_bytes == 2 * held
    alone = make(
        "commvq", **knobs
    ).fit(  # one layer of the model: its own codebook
        Prompt(prefill.groups[0].keys[1:2], prefill.groups[0].values[1:2], None, model=model.ref, layers=(1,))
    )
    assert torch.equal(alone.key.theta, theta[1:2])
    other = replace(model.ref, weights_hash="f" * 16)
    noted = make("commvq", **knobs).fit(
        Prompt(prefill.groups[0].keys, prefill.groups[0].values, None, model=other, layers=(0, 1, 2))
    )
    assert "other weights" in noted.notes[0]


@pytest.mark.slow
def test_more_bits_extend_a_trained_codebook(home, model, monkeypatch):
    from dataclasses import replace

    one = train(model, replace(SMALL, kinds=("keys",)), QUIET)[0].tensors()["theta"].clone()
    calls = []
    monkeypatch.setattr("kvq_core.training.keys.train_stage", lambda *a: calls.append(1) or train_stage(*a))
    two = train(model, replace(SMALL, bits=2, kinds=("keys",)), QUIET)[0]
    assert len(calls) == 3 * 4  # layers * new stages
    assert two.info.bits == 2 and torch.equal(two.tensors()["theta"][:, :, :, :4], one)
    assert [book.info.stages for book in files.codebooks() if not book.shipped] == [8]
    wanted = CodebookNeed("keys", None, 1, 4, 8, None)
    found = find_codebook(wanted, model.id, model.weights_hash)
    assert found is not None and found.info.stages == 8  # serves one bit too
    monkeypatch.setattr("kvq_core.training.train.collect", None)  # nothing is read for what is there
    again = train(model, replace(SMALL, kinds=("keys",)), QUIET)[0]  # asking for fewer stages destroys none
    assert again.info.stages == 8 and again.path == two.path and len(calls) == 3 * 4


def test_too_little_to_train_on_is_refused(model):
    with pytest.raises(SpecError, match="at least 4096 and 1024"):
        train(model, Request(train_tokens=100), QUIET)
    with pytest.raises(SpecError, match="pairs = 5 does not divide the 16"):
        train(model, Request(pairs=5), QUIET)


def test_stages_for_the_papers_sizes():
    assert stages_for(1, 32, 16) == 8 and stages_for(2, 32, 16) == 16
    assert stages_for(1, 64, 64) == 11 and stages_for(2, 64, 64) == 21


def test_damaged_files_are_noticed(home):
    book = files.save_codebook(info(), {"theta": torch.arange(16.0).view(1, 1, 1, 1, 4, 2, 2).half()})
    assert torch.equal(book.tensors()["theta"].flatten(), torch.arange(16.0).half())
    raw = bytearray(book.path.read_bytes())
    raw[-1] ^= 0x40
    book.path.write_bytes(raw)
    (home / "codebooks" / "foreign.safetensors").write_bytes(b"not a codebook")
    (found,) = [b for b in files.codebooks() if not b.shipped]
    with pytest.raises(StoreError, match="damaged"):
        found.tensors()


def test_a_failed_write_leaves_nothing(home, monkeypatch):
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(StoreError, match="disk full"):
        files.save_codebook(info(), {"theta": torch.zeros(1)})
    assert not list((home / "codebooks").iterdir())


def test_lookup_prefers_the_same_weights(home):
    other = files.save_codebook(info(weights_hash="f" * 16), {"theta": torch.zeros(1)})
    wanted = CodebookNeed("keys", None, 1, 4, None, 1)
    assert find_codebook(wanted, "a/Model", "abcdef0123456789").info == other.info
    same = files.save_codebook(info(), {"theta": torch.ones(1)})
    assert find_codebook(wanted, "a/Model", "abcdef0123456789").info == same.info
    assert find_codebook(wanted, "b/Model", "0" * 16) is None
    assert find_codebook(CodebookNeed("keys", None, 1, 8, None, 1), "a/Model", "abcdef0123456789") is None
    assert find_codebook(CodebookNeed("keys", "other", 1, 4, None, 1), "a/Model", "abcdef0123456789") is None


def test_the_command(home, capsys):
    def told(*words: str) -> tuple[int, str, str]:
        status = main(["codebooks", *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    book = files.save_codebook(info(), {"theta": torch.zeros(1)})
    name = book.info.file_name
    status, out, _ = told("list", "--json")
    assert status == 0 and name in [found["file"] for found in json.loads(out)]
    assert "0.2000" in told("list")[1]
    status, out, _ = told("show", name, "--json")
    assert json.loads(out)["content"] == book.info.content
    for words in (
        ["show", "nothing"],
        ["delete", "nothing"],
        ["train", "--bits", "3"],
        ["train", "--text", "/none"],
        [],
    ):
        status, out, err = told(*words)
        assert status == 2 and not out and err.startswith("error: ") and err.count("\n") == 1
    status, out, err = told("train", "--name", "../x")
    assert status == 2 and "not allowed" in err
    status, out, _ = told("delete", name, "--json")
    assert status == 0 and not book.path.exists()


@pytest.mark.long("programs", sample=0)
@pytest.mark.slow
def test_an_interrupted_command_says_what_to_do(home, capsys, monkeypatch, model):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvq_core.models.load", lambda *_: model)
    monkeypatch.setattr("kvq_core.training.train.collect", stop)
    assert main(["codebooks", "train"]) == 130
    assert capsys.readouterr().err == "Interrupted; the same command goes on where this one stopped.\n"


def shipped() -> list[files.Codebook]:
    return [book for book in files.codebooks() if book.shipped]


def test_shipped_codebooks_fit_the_default_model(home):
    assert sum(book.path.stat().st_size for book in shipped()) < 30e6
    assert all(book.path.stat().st_size < 6e6 for book in shipped() if book.info.model != DEFAULT_MODEL)
    for bits in (1, 2):
        for kind in ("keys", "values"):
            book = find_codebook(CodebookNeed(kind, None, bits, 16, None, None), DEFAULT_MODEL, None)
            assert book is not None and book.shipped
            assert book.info.train_tokens >= 4096 and book.info.held_out_tokens >= 1024
            assert book.info.command.startswith("python -m kvq_core codebooks train --model " + DEFAULT_MODEL)
            means = book.tensors()["held_out_error"].mean(0).reshape(-1)  # over layers; of each stage for keys
            assert means.tolist() == pytest.approx(book.info.held_out_error, rel=1e-3)
            assert book.info.held_out_error[-1] < (0.02 if kind == "keys" else 0.25 / bits)


def test_shipped_codebooks_stay(home):
    with pytest.raises(KvqError, match="part of the project"):
        files.delete_codebook(shipped()[0].info.file_name)
