"""Which model a run is of: all that decides its answers has a part in its id, and a checkpoint is whole or refused."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from kvq_core.codebooks.files import SHIPPED, codebooks
from kvq_core.errors import ModelError
from kvq_core.models import bundled, load, wrap
from kvq_core.models.gguf.published import SHA256
from kvq_core.models.identity import weights_of, whole_of
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.record.events import Finished
from kvq_core.record.store import open_store
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec, Lane

WORDS = [f"w{i}" for i in range(96)]
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys.modules["kvq_core.models.loader"], "_held", {})
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A checkpoint with tokenizer and chat template, as save_pretrained writes it."""
    return written(tmp_path / "model")


def written(place: Path, seed: int = 7, **changes: object) -> Path:
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(LlamaConfig(**{**SMALL, **changes})).save_pretrained(place)
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", chat_template=TEMPLATE)
    tokenizer.save_pretrained(place)
    return place


def changed(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}, indent=2))


def compared(folder: Path) -> Finished:
    prompt = " ".join(WORDS[(7 * i * i + i) % 90 + 3] for i in range(120))
    lane = Lane(label="K2", method="kivi", knobs={"group_size": 16, "residual_length": 16})
    spec = ComparisonSpec(
        model=str(folder),
        prompt=prompt,
        chat=False,
        max_new_tokens=12,
        lanes=(lane,),
        ignore_eos=True,
        capture={"detail": "off"},
    )
    (end,) = (event for event in compare(spec, open_store()) if isinstance(event, Finished))
    return end


@pytest.mark.slow
def test_another_configuration_is_another_model(folder: Path, tmp_path) -> None:
    before = compared(folder)
    original = (folder / "config.json").read_text()
    changed(folder / "config.json", rope_parameters={"rope_type": "linear", "factor": 16.0, "rope_theta": 10000.0})
    after = compared(folder)
    assert not after.reused and after.record.id != before.record.id
    one, other = (end.record.lanes[0].metrics.kld_mean for end in (before, after))
    afresh = compared(Path(shutil.copytree(folder, tmp_path / "copy")))
    assert one != other == afresh.record.lanes[0].metrics.kld_mean
    environments = [end.record.environment for end in (before, after, afresh)]
    assert len({found.weights_hash for found in environments}) == 1
    assert environments[0].model_hash != environments[1].model_hash == environments[2].model_hash
    (folder / "config.json").write_text(original)
    assert compared(folder).record.id == before.record.id and compared(folder).reused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"rms_norm_eps": 1e-3}),
        ("generation_config.json", {"eos_token_id": 5}),
        ("tokenizer_config.json", {"unk_token": "w5"}),
        ("tokenizer.json", {"truncation": None, "added_tokens": []}),
    ],
)
def test_every_file_that_decides_is_in_the_hash(folder: Path, file: str, values: dict[str, object]) -> None:
    before = load(str(folder))
    changed(folder / file, **values)
    after = load(str(folder))
    assert after.model_hash != before.model_hash and after.weights_hash == before.weights_hash


@pytest.mark.slow
def test_the_chat_template_is_in_the_hash_and_who_wrote_the_files_is_not(folder: Path) -> None:
    before = load(str(folder)).model_hash
    changed(folder / "config.json", transformers_version="5.0.0")
    (folder / "README.md").write_text("A model.")
    assert load(str(folder)).model_hash == before
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert load(str(folder)).model_hash != before
    assert load(str(folder)).render("w4", None, True) == [4]


def test_a_model_in_memory_is_known_by_its_configuration_too(folder: Path) -> None:
    def held(**changes: object):
        torch.manual_seed(7)
        return AutoModelForCausalLM.from_config(LlamaConfig(**{**SMALL, **changes}))

    one, same, other = (wrap(held(**c), None, id="x") for c in ({}, {}, {"rope_parameters": {"rope_theta": 5e5}}))
    assert one.model_hash == same.model_hash != other.model_hash and one.weights_hash == other.weights_hash
    assert wrap(held(), load(str(folder)).tokenizer, id="x").model_hash != one.model_hash


def test_changed_weights_are_noticed_whatever_their_time_says(folder: Path) -> None:
    file, before = folder / "model.safetensors", weights_of(folder)
    times, data = file.stat(), bytearray(file.read_bytes())
    data[-2] ^= 64
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_mtime_ns == times.st_mtime_ns and file.stat().st_size == times.st_size
    assert weights_of(folder) != before


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"sha256": "0", "value": {"weights": "f"}}'])
def test_a_damaged_memo_is_not_believed(folder: Path, home: Path, damage: str) -> None:
    before = weights_of(folder)
    (memo,) = (home / "hashes").iterdir()
    memo.write_text(damage)
    assert weights_of(folder) == before


def test_a_memo_spares_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weights_of(folder)
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("read again"))
    assert weights_of(folder) == before


def test_models_of_the_hub_are_told_apart_by_their_commits(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the Hub's cache, without a connection: a branch that moved is another model."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for seed, (name, commit) in enumerate([("one", "1" * 40), ("other", "2" * 40), ("other", "3" * 40)]):
        cache = tmp_path / "hub" / f"models--someone--{name}"
        (cache / "refs").mkdir(parents=True, exist_ok=True)
        (cache / "refs" / "main").write_text(commit)
        written(cache / "snapshots" / commit, seed)
    one, other, older = load("someone/one"), load("someone/other"), load("someone/other", "2" * 40)
    assert [model.revision for model in (one, other, older)] == ["1" * 40, "3" * 40, "2" * 40]
    assert [model.weights_hash for model in (one, other, older)] == ["1" * 16, "3" * 16, "2" * 16]
    assert len({model.model_hash for model in (one, other, older)}) == 3


@pytest.mark.long("programs", sample=0)
@pytest.mark.slow
def test_the_bundled_model_is_converted_into_what_the_shipped_runs_are_of(tmp_path, real_model) -> None:
    """Its ids stand in records and codebooks: another converter must not make another model of it."""
    folder = bundled.convert_bundled(tmp_path / "model")
    weights = weights_of(folder)
    runs = packaged_store()
    shipped = [runs.load(id)[0].environment for id in example_ids().values()]
    own = {env.model_hash for env in shipped if env.model == DEFAULT_MODEL}
    assert own == {whole_of(weights, folder)[:16]}


def test_the_shipped_codebooks_are_those_of_the_two_models(smollm) -> None:
    shipped = [book.info.weights_hash for book in codebooks() if book.path.parent == SHIPPED]
    assert set(shipped) == {smollm.weights_hash, SHA256[:16]}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("missing", r"it lacks model\.layers\.1\.mlp\.up_proj\.weight"),
        ("unexpected", r"holds other tensors than its configuration asks for: model\.layers\.2\.extra\.weight"),
        ("shape", r"holds in another shape than its configuration asks for: model\.norm\.weight"),
        ("many", r"it lacks .* and 14 more"),
    ],
)
def test_a_checkpoint_that_is_not_the_models_is_refused(folder: Path, damage: str, said: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    if damage == "missing":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    elif damage == "unexpected":
        tensors["model.layers.2.extra.weight"] = torch.ones(3)
    elif damage == "shape":
        tensors["model.norm.weight"] = torch.ones(3)
    else:
        tensors = {name: tensor for name, tensor in tensors.items() if "layers" not in name}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"could not be loaded: .*{said}") as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)


def test_a_damaged_tokenizer_is_one_line(folder: Path) -> None:
    changed(folder / "tokenizer.json", version="9.9")
    with pytest.raises(ModelError, match="could not be loaded: .*tokenizer version") as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)


def test_tied_weights_are_not_missing(tmp_path) -> None:
    place = written(tmp_path / "tied", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(place / "model.safetensors")
    assert load(str(place)).shape.layers == 2


def test_nan_weights_are_refused_before_anything_is_measured(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.k_proj.weight"][3, 4] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="answers NaN or infinity instead of numbers"):
        compared(folder)
