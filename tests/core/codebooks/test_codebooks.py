"""Training of codebooks, their files, and the command that makes them; tiny shapes, no network."""

import json

import pytest
import torch
from kvq_kernels import rope_codebook as rc
from torch import Tensor

from kvq_core.cli.main import main
from kvq_core.codebooks import files
from kvq_core.codebooks.encoder import from_stored, to_stored
from kvq_core.codebooks.lookup import CodebookNeed, find, stages_for
from kvq_core.errors import KvqError, SpecError, StoreError
from kvq_core.methods import Prompt, make
from kvq_core.spec import DEFAULT_MODEL
from kvq_core.training import em
from kvq_core.training.checkpoints import Checkpoints
from kvq_core.training.collect import Samples, collect
from kvq_core.training.em import EmSettings, train_stage
from kvq_core.training.keys import KeyPlan, Residual, train_keys
from kvq_core.training.texts import Texts, read_texts, sequences
from kvq_core.training.train import Request, train
from kvq_core.training.values import ValuePlan, error, start, train_layer, train_values
from tests.core.methods.test_methods_commvq import dense_t
from tests.support.tiny_models import VOCABULARY, tiny

QUIET = lambda *_: None  # noqa: E731


def samples(tokens: int, seed: int, layers: int = 2, heads: int = 2, dim: int = 16) -> Samples:
    """Keys and values around a few directions, with a mean: what a codebook can learn and a new text shares."""
    shared, g = torch.Generator().manual_seed(99), torch.Generator().manual_seed(seed)
    directions = torch.randn(layers, heads, 12, dim, generator=shared) * 2
    mean = torch.randn(layers, heads, 1, dim, generator=shared)

    def one() -> Tensor:
        kind = torch.randint(12, (layers, heads, tokens), generator=g)
        at = directions.gather(2, kind[..., None].expand(-1, -1, -1, dim))
        return (at + mean + 0.5 * torch.randn(layers, heads, tokens, dim, generator=g)).half()

    return Samples(one(), one())


class Letters:
    """A tokenizer of single characters."""

    chat_template = None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(c) % (VOCABULARY - 3) for c in text]}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def model():
    from dataclasses import replace

    return replace(tiny("llama"), tokenizer=Letters())


# --- expectation and maximisation -------------------------------------------------------------------------------------


def soft(z: Tensor, theta: Tensor, temperature: float) -> Tensor:
    """W by the book: all centres, all distances."""
    first, second = rc.code_vectors(theta)
    centres = (first[:, None] + second[None]).flatten(0, 1)
    return torch.softmax(-torch.cdist(z, centres) / temperature, -1)


def test_expectation_equals_the_dense_one():
    z, theta = torch.randn(1, 300, 6), torch.randn(1, 4, 3, 2)
    found = em.assign(z, torch.ones(1, 300), rc.code_vectors(theta), torch.tensor([0.7]))
    w = soft(z[0], theta[0], 0.7).unflatten(-1, (4, 4))
    torch.testing.assert_close(found.counts[0], w.sum(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.first[0], w.sum(2).T @ z[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.second[0], w.sum(1).T @ z[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        found.error, rc.nearest_codes(z, rc.code_vectors(theta))[1].sum(-1), rtol=1e-3, atol=1e-3
    )


def test_maximisation_equals_the_papers_dense_solve():
    """phi = (T^T S T)^-1 T^T S m with S the mass of each centre and m its mean, for every pair."""
    levels, pairs = 4, 3
    z, theta = torch.randn(1, 300, 2 * pairs), torch.randn(1, levels, pairs, 2)
    found = em.assign(z, torch.ones(1, 300), rc.code_vectors(theta), torch.tensor([0.5]))
    w = soft(z[0], theta[0], 0.5).double()
    mass, t = w.sum(0), dense_t(levels).double()
    mean = (w.T @ z[0].double()) / mass[:, None]  # (centres, 2 * pairs)
    s = mass.repeat_interleave(2)[:, None]
    m = torch.stack([mean[:, :pairs], mean[:, pairs:]], 1).flatten(0, 1)
    phi = torch.linalg.solve(t.T @ (s * t), t.T @ (s * m))  # (2 * levels, pairs)
    expected = phi.unflatten(0, (levels, 2)).transpose(1, 2)
    torch.testing.assert_close(em.solve(found, ridge=0.0)[0], expected, rtol=1e-3, atol=1e-4)


def hard_case() -> tuple[Tensor, em.Assignments]:
    """Every token sits in centre (0, 0): levels 1 to 3 are dead and the system is singular without a ridge."""
    z = torch.ones(1, 50, 4)
    counts = torch.zeros(1, 4, 4)
    counts[0, 0, 0] = 50
    parts = torch.zeros(1, 4, 4)
    parts[0, 0] = z[0].sum(0)
    return z, em.Assignments(counts, parts, parts, torch.arange(50.0)[None], torch.zeros(1))


def test_dead_levels_stay_finite_and_come_back():
    z, found = hard_case()
    theta = em.solve(found)
    assert theta.isfinite().all()
    centre = rc.code_vectors(theta)[0, :, 0].sum(0)  # of (0, 0): the only one that counts
    torch.testing.assert_close(centre, torch.ones(4, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    z[0, 49] = torch.tensor([5.0, -3.0, 2.0, 7.0])
    found.distance[0, :49] = 0  # all the error is that token's
    revived = em.revive(theta, found, z, torch.Generator().manual_seed(0))
    _, squared = rc.nearest_codes(z.double(), rc.code_vectors(revived))
    assert squared[0, 49] < 1e-9


def test_training_beats_its_start_and_generalizes():
    train_data, fresh = samples(1500, 1, layers=1), samples(500, 2, layers=1)
    train_z, check = (Residual.of(s.keys[0].float(), 8) for s in (train_data, fresh))
    theta = train_stage(train_z.z, train_z.weight, 8, EmSettings(), seed=0)
    first = em.first_levels(train_z.z, 8, torch.Generator().manual_seed(0))
    scattered = train_z.z[:, :8].unflatten(-1, (2, 8)).transpose(-1, -2)  # eight tokens as levels
    trained = Residual.of(train_data.keys[0].float(), 8).subtract(theta)
    assert trained < 0.7 * Residual.of(train_data.keys[0].float(), 8).subtract(first)
    held_out = check.subtract(theta)
    assert held_out < 0.7 * Residual.of(fresh.keys[0].float(), 8).subtract(scattered)
    assert held_out < 1.3 * trained


def test_errors_fall_from_stage_to_stage_and_short_codebooks_begin_long_ones(tmp_path):
    data, fresh = samples(800, 1), samples(300, 2)
    make_plan = lambda stages: KeyPlan(4, 4, stages, EmSettings(steps=8), seed=3)  # noqa: E731
    long = train_keys(data, fresh, make_plan(3), Checkpoints(tmp_path / "long"), QUIET)
    short = train_keys(data, fresh, make_plan(2), Checkpoints(tmp_path / "short"), QUIET)
    assert long["theta"].shape == (2, 2, 2, 3, 4, 4, 2) and long["theta"].dtype == torch.float16
    assert torch.equal(long["theta"][:, :, :, :2], short["theta"])
    assert (long["held_out_error"].diff(dim=1) < 0).all() and (long["train_error"].diff(dim=1) < 0).all()


def test_reported_key_error_is_the_codecs(tmp_path):
    from kvq_core.methods.commvq.method import KeyCodec

    fresh = samples(300, 2)
    made = train_keys(samples(800, 1), fresh, KeyPlan(8, 8, 3, EmSettings(steps=8), 0), Checkpoints(tmp_path), QUIET)
    codec, keys = KeyCodec(made["theta"]), fresh.keys.float()
    delta = codec.decode(codec.encode(keys, 0)) - keys
    actual = delta.square().sum((1, 2, 3)) / keys.square().sum((1, 2, 3))
    torch.testing.assert_close(made["held_out_error"][:, -1], actual, rtol=5e-3, atol=0)


def test_an_interrupted_training_goes_on_where_it_was(tmp_path, monkeypatch):
    data, fresh = samples(400, 1), samples(200, 2)
    plan = KeyPlan(4, 8, 3, EmSettings(steps=6), seed=0)
    whole = train_keys(data, fresh, plan, Checkpoints(tmp_path / "a"), QUIET)

    def stop(doing: str, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_keys(data, fresh, plan, Checkpoints(tmp_path / "b"), stop)
    (tmp_path / "b" / "layer000-stage01.piece").write_bytes(b"half a file")
    calls = []
    monkeypatch.setattr("kvq_core.training.keys.train_stage", lambda *a: calls.append(1) or train_stage(*a))
    resumed = train_keys(data, fresh, plan, Checkpoints(tmp_path / "b"), QUIET)
    assert len(calls) == 3  # of six: the damaged one and the two that were missing
    for name in ("theta", "train_error", "held_out_error"):
        assert torch.equal(whole[name], resumed[name])
    saved = Checkpoints(tmp_path / "b").load("layer000-stage00")  # what it took before the interruption counts
    assert resumed["seconds"].shape == (2, 3) and resumed["seconds"][0, 0] == saved["seconds"] > 0


def test_a_stop_is_noticed_within_a_stage():
    z, asked = torch.randn(1, 300, 4), []

    def tick() -> None:
        asked.append(1)
        if len(asked) in (3, 6):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_stage(z, torch.ones(1, 300), 4, EmSettings(steps=20), 0, tick)
    with pytest.raises(KeyboardInterrupt):
        train_layer(torch.randn(1, 50, 8), ValuePlan(1, steps=20, seed=0), 0, tick)
    assert len(asked) == 6


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2])
def test_value_training_improves_on_its_start(bits):
    v, fresh = (samples(n, s).values[0].float().transpose(0, 1).flatten(1)[None] for n, s in ((1500, 1), (500, 2)))
    before = error(start(v, bits, torch.Generator().manual_seed(0)), fresh)
    encoder = train_layer(v, ValuePlan(bits, steps=150, seed=0), seed=0)
    after = error(encoder, fresh)
    assert after < 0.8 * before and after < 0.5
    kept = from_stored(to_stored(encoder))
    assert error(kept, fresh) < 1.1 * after  # int8 weights
    assert to_stored(encoder)["codebook"].dtype == torch.float16
    again = train_layer(v, ValuePlan(bits, steps=150, seed=0), seed=0)
    assert torch.equal(encoder.codebook, again.codebook)


@pytest.mark.parametrize("steps", [1, 2, 10, 11])
def test_the_fewest_steps_train_too(steps):
    v = samples(100, 1).values[0].float().transpose(0, 1).flatten(1)[None]
    assert error(train_layer(v, ValuePlan(1, steps=steps, seed=0), seed=0), v).isfinite()


def test_value_training_resumes_and_reports_the_codecs_error(tmp_path, monkeypatch):
    from kvq_core.methods.commvq.method import ValueCodec

    data, fresh, plan = samples(400, 1), samples(200, 2), ValuePlan(1, steps=30, seed=0)

    def stop(doing: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_values(data, fresh, plan, Checkpoints(tmp_path / "b"), stop)
    resumed = train_values(data, fresh, plan, Checkpoints(tmp_path / "b"), QUIET)
    whole = train_values(data, fresh, plan, Checkpoints(tmp_path / "a"), QUIET)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole if name != "seconds")
    codec, values = ValueCodec(from_stored(whole), heads=2), fresh.values.float()
    delta = codec.decode(codec.encode(values, 0)) - values
    actual = delta.square().sum((1, 2, 3)) / values.square().sum((1, 2, 3))
    torch.testing.assert_close(whole["held_out_error"], actual, rtol=1e-3, atol=0)


# --- text and collection ----------------------------------------------------------------------------------------------


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


# --- files, lookup and a lane -----------------------------------------------------------------------------------------

SMALL = Request(train_tokens=4096, held_out_tokens=1024, levels=4, pairs=8, em=EmSettings(steps=4), value_steps=4)


@pytest.mark.slow
def test_a_trained_model_runs_a_lane(home, model):
    """From text to a run: training, files, lookup, what memory counts, and the run's id."""
    from dataclasses import replace

    from kvq_core.engine.cache import LaneCache
    from kvq_core.engine.prefill import Prefill
    from kvq_core.metrics.stored_bytes import measure
    from kvq_core.pipeline.assemble import run_id
    from kvq_core.spec import ComparisonSpec, Lane

    knobs = {"levels": 4, "pairs_per_group": 8, "window": 32}
    spec = ComparisonSpec(prompt="x", lanes=(Lane(method="commvq", knobs=knobs),))
    before = run_id(model, spec, [1])
    seen = []
    books = train(model, SMALL, lambda *step: seen.append(step))
    assert {doing for doing, *_ in seen} == {"Reading text", "Training keys", "Training values"}
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
    prefill = Prefill(model, model.encode("The quick brown fox " * 10))
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
    found = find(wanted, model.id, model.weights_hash)
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


def info(**changes: object) -> files.CodebookInfo:
    given = {
        "kind": "keys",
        "model": "a/Model",
        "weights_hash": "abcdef0123456789",
        "layers": 1,
        "kv_heads": 1,
        "head_dim": 4,
        "bits": 1.0,
        "levels": 4,
        "pairs_per_group": 2,
        "stages": 1,
        "settings": {"seed": 0},
        "digest": "d",
        "source": "t",
        "train_tokens": 5000,
        "held_out_tokens": 1024,
        "train_error": [0.1],
        "held_out_error": [0.2],
        "seconds": 1.0,
        "created": "2026-01-01",
        "command": "c",
    }
    return files.CodebookInfo(**{**given, **changes})


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
    assert find(wanted, "a/Model", "abcdef0123456789").info == other.info
    same = files.save_codebook(info(), {"theta": torch.ones(1)})
    assert find(wanted, "a/Model", "abcdef0123456789").info == same.info
    assert find(wanted, "b/Model", "0" * 16) is None
    assert find(CodebookNeed("keys", None, 1, 8, None, 1), "a/Model", "abcdef0123456789") is None
    assert find(CodebookNeed("keys", "other", 1, 4, None, 1), "a/Model", "abcdef0123456789") is None


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


@pytest.mark.slow
def test_an_interrupted_command_says_what_to_do(home, capsys, monkeypatch, model):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvq_core.models.load", lambda *_: model)
    monkeypatch.setattr("kvq_core.training.train.collect", stop)
    assert main(["codebooks", "train"]) == 130
    assert capsys.readouterr().err == "Interrupted; the same command goes on where this one stopped.\n"


# --- what ships -------------------------------------------------------------------------------------------------------


def shipped() -> list[files.Codebook]:
    return [book for book in files.codebooks() if book.shipped]


def test_shipped_codebooks_fit_the_default_model(home):
    assert sum(book.path.stat().st_size for book in shipped()) < 30e6
    assert all(book.path.stat().st_size < 6e6 for book in shipped() if book.info.model != DEFAULT_MODEL)
    for bits in (1, 2):
        for kind in ("keys", "values"):
            book = find(CodebookNeed(kind, None, bits, 16, None, None), DEFAULT_MODEL, None)
            assert book is not None and book.shipped
            assert book.info.train_tokens >= 4096 and book.info.held_out_tokens >= 1024
            assert book.info.command.startswith("python -m kvq_core codebooks train --model " + DEFAULT_MODEL)
            means = book.tensors()["held_out_error"].mean(0).reshape(-1)  # over layers; of each stage for keys
            assert means.tolist() == pytest.approx(book.info.held_out_error, rel=1e-3)
            assert book.info.held_out_error[-1] < (0.02 if kind == "keys" else 0.25 / bits)


def test_shipped_codebooks_stay(home):
    with pytest.raises(KvqError, match="part of the project"):
        files.delete_codebook(shipped()[0].info.file_name)
