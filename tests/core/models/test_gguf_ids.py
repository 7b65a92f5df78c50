"""By which ids models are asked for, and the one by which a local model is known wherever it lies."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import huggingface_hub
import pytest

from kvq_core.errors import ModelError
from kvq_core.models import LoadedModel, conversion_progress, load, prepare
from kvq_core.models.gguf import conversion, hub
from kvq_core.models.gguf import folder as kept
from kvq_core.models.identity import SOURCE
from kvq_core.models.source import known_as
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.estimate import loading_progress
from kvq_core.record.events import Finished, Loading
from kvq_core.record.fields import Record
from kvq_core.record.files import record_json
from kvq_core.record.store import open_store
from kvq_core.spec import DEFAULT_MODEL, parse_lane, parse_spec
from kvq_core.spec.links import decode, encode
from kvq_core.training.offer import offer
from tests.core.models.test_model_identity import WORDS, written
from tests.support.gguf_files import source, write


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    forget(monkeypatch)
    return tmp_path / "home"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvq_core.models.loader._held", {})


@pytest.fixture
def file(tmp_path) -> Path:
    return write(tmp_path / "Tiny-Q8_0.gguf", source("llama"), general__name="Tiny of somebody")


def compared(model: str, prompt: str = "def mean(values): return 12", **changes: object) -> Finished:
    lane = {"method": "kivi", "knobs": {"group_size": 16, "residual_length": 16}}
    asked = {"model": model, "prompt": prompt, "chat": False, "max_new_tokens": 3, "lanes": [lane]}
    spec = parse_spec({**asked, "capture": {"detail": "off"}, "ignore_eos": True, **changes})
    (end,) = (event for event in compare(spec, open_store()) if isinstance(event, Finished))
    return end


def told(record: Record) -> str:
    """All that a run says: its record, and the link that runs it again."""
    return record_json(record) + json.dumps(decode(encode(parse_spec(record.spec))).model_dump(mode="json"))


def test_the_same_file_at_two_places_is_the_same_run(tmp_path, file: Path, home: Path, monkeypatch) -> None:
    one = compared(str(file))
    (tmp_path / "elsewhere").mkdir()
    other = compared(str(shutil.copy(file, tmp_path / "elsewhere" / "renamed.GGUF")))
    assert not one.reused and other.reused and other.record.id == one.record.id
    environment = one.record.environment
    assert environment.model == one.record.spec["model"] == f"gguf:{environment.weights_hash}"
    assert environment.model_title == "Tiny-Q8_0" and str(tmp_path) not in told(one.record)
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "another home"))  # another machine
    forget(monkeypatch)
    assert compared(str(tmp_path / "elsewhere" / "renamed.GGUF")).record.id == one.record.id


def test_the_same_directory_at_two_places_is_the_same_run(tmp_path) -> None:
    folder, prompt = written(tmp_path / "model"), " ".join(WORDS[3:40])
    one = compared(str(folder), prompt)
    other = compared(str(shutil.copytree(folder, tmp_path / "copy")), prompt)
    assert other.reused and other.record.id == one.record.id
    environment = one.record.environment
    assert environment.model == one.record.spec["model"] == f"dir:{environment.model_hash}"
    assert environment.model_title == "model" and str(tmp_path) not in told(one.record)


@pytest.mark.parametrize("lost", ["*", "*.safetensors", "config.json", "tokenizer.json"])
def test_a_copy_that_is_removed_leaves_the_other_to_be_loaded(tmp_path, lost: str, monkeypatch) -> None:
    folder = written(tmp_path / "model")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (id,) = {load(str(place)).id for place in (folder, copy)}
    for place, outcome in (copy, nullcontext()), (folder, pytest.raises(ModelError, match="is not a|not be loaded")):
        forget(monkeypatch)
        for file in place.glob(lost):
            file.unlink()
        with outcome:
            assert load(id).id == id


def test_a_local_model_is_known_by_its_id_without_being_loaded(tmp_path, file: Path, monkeypatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a model was loaded")

    folder = written(tmp_path / "model")
    loaded = [load(str(path)).id for path in (file, folder)]
    forget(monkeypatch)
    monkeypatch.setattr("kvq_core.models.loader._load", refused)
    assert [known_as(str(path)) for path in (file, folder)] == loaded and loaded[0].startswith("gguf:")
    for id in (*loaded, f"gguf:{'0' * 16}", "some/other", DEFAULT_MODEL):
        assert known_as(id) == id
    with pytest.raises(ModelError, match="no-such"):
        known_as(str(tmp_path / "no-such"))


def test_runs_of_local_models_are_made_again_by_their_ids(tmp_path, file: Path, monkeypatch) -> None:
    for path, prompt in ((file, "def"), (written(tmp_path / "model"), "w4 w5")):
        record = compared(str(path), prompt).record
        forget(monkeypatch)
        again = compared(record.spec["model"], prompt)
        assert again.reused and again.record.id == record.id


def test_a_converted_file_outlives_its_source(file: Path, monkeypatch) -> None:
    name = load(str(file)).id
    file.unlink()
    forget(monkeypatch)
    assert load(name).id == name
    with pytest.raises(ModelError, match="not a model directory or .gguf file"):
        load(str(file))


def test_a_directory_that_changed_is_not_taken_for_the_one_a_run_was_of(tmp_path, monkeypatch) -> None:
    folder = written(tmp_path / "model")
    name = load(str(folder)).id
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    forget(monkeypatch)
    with pytest.raises(ModelError, match=f"Model '{name}' was changed where it lies"):
        load(name)


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("gguf:0123456789abcdef", "is not converted on this machine"),
        ("gguf:../../../../etc", "is followed by 16 hexadecimal digits"),
        ("gguf:", "is followed by 16 hexadecimal digits"),
        ("dir:0123456789abcdef", "was not loaded on this machine"),
        ("dir:../x", "was not loaded on this machine"),
    ],
)
def test_ids_of_models_that_are_not_here(id: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load(id)
    assert "\n" not in str(caught.value)


def test_paths_from_here_and_from_home(tmp_path, file: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    shutil.copy(file, tmp_path / "models" / "tiny.gguf")
    names = {load(id).id for id in ("models/tiny.gguf", "./models/tiny.gguf", "~/models/tiny.gguf", str(file))}
    assert len(names) == 1
    with pytest.raises(ModelError, match="revision = 'main': 'models/tiny.gguf' is on this machine"):
        load("models/tiny.gguf", "main")


def test_a_record_says_how_the_file_held_its_weights(file: Path) -> None:
    environment = compared(str(file)).record.environment
    assert environment.quantization == "F32: F32 21"
    assert environment.weights_note == "Weights are the file's (F32), dequantized: lanes compare caches of this file."


def test_others_can_see_how_far_a_conversion_is(file: Path) -> None:
    assert conversion_progress() is None and loading_progress("m") == Loading("m")
    seen = [(step, conversion_progress(), loading_progress("m")) for step in prepare(str(file))]
    assert len(seen) > 2 and all(step == told for step, told, _ in seen)
    assert all(event == Loading("m", step.done, step.total) for step, _, event in seen)
    assert conversion_progress() is None


def test_a_file_is_converted_once_and_says_how_far_it_is(file: Path, monkeypatch) -> None:
    lane = {"method": "kivi", "knobs": {"group_size": 16, "residual_length": 16}}
    spec = parse_spec({"model": str(file), "prompt": "def", "max_new_tokens": 1, "lanes": [lane]})
    steps = [event for event in compare(spec) if isinstance(event, Loading)]
    assert steps[0].total == 0 and steps[-1].done == steps[-1].total > 0
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    forget(monkeypatch)
    monkeypatch.setattr(conversion.weights, "write", lambda *_: pytest.fail("converted again"))
    assert list(prepare(str(file))) == [] and load(str(file)).shape.layers == 2


@pytest.mark.few(sample=2)
@pytest.mark.parametrize("damage", ["version", "weights", "tokenizer", "note"])
def test_what_is_damaged_or_old_is_converted_anew(file: Path, home: Path, monkeypatch, damage: str) -> None:
    loaded = load(str(file))
    (folder,) = (home / "models").iterdir()
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    if damage == "version":
        for module in (conversion, kept):
            monkeypatch.setattr(module, "VERSION", 2)
    else:
        name = {"weights": kept.WEIGHTS, "tokenizer": "tokenizer.json", "note": SOURCE}[damage]
        (folder / name).write_bytes(before[name][:-7] + b"damaged")
    forget(monkeypatch)
    again = load(str(file))
    assert (again.model_hash == loaded.model_hash) == (
        damage != "version"
    ) and again.weights_hash == loaded.weights_hash
    after = {f.name: f.read_bytes() for f in folder.iterdir()}
    assert after.keys() == before.keys() and (after == before) == (damage != "version")


def test_what_a_killed_conversion_left_is_removed(file: Path, home: Path) -> None:
    name = load(str(write(file.with_name("same.gguf"), source("llama"), general__name="Tiny of somebody"))).id
    (folder,) = (home / "models").iterdir()
    left = folder.with_name(f".{folder.name}-killed")
    folder.rename(left)
    assert load(str(file)).id == name and list((home / "models").iterdir()) == [folder]


def test_a_file_that_is_converted_needs_no_home_to_write_to(file: Path, monkeypatch) -> None:
    load(str(file))
    forget(monkeypatch)
    monkeypatch.setattr("kvq_core.machine.files.alone", lambda path: pytest.fail("written"))
    load(str(file))


FILES = [
    "README.md",
    "mmproj-model-Q8_0.gguf",
    "model-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "model.q8_0.gguf",
    "IQ4_XS/model-iq4_xs.gguf",
    "model-F16-00001-of-00002.gguf",
    "model-F16-00002-of-00002.gguf",
]


@pytest.fixture
def fake_hub(file: Path, monkeypatch) -> list[tuple[str, str | None]]:
    """Every file of the repository is the tiny one; what was downloaded."""
    asked: list[tuple[str, str | None]] = []

    def download(repo: str, name: str, revision: str | None = None) -> str:
        asked.append((f"{repo}/{name}", revision))
        if name not in FILES:
            raise FileNotFoundError(f"404: no {name}\nin {repo}")
        return str(file)

    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda repo, revision=None: FILES)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


@pytest.mark.few(sample=2)
@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("Q4_K_M", "model-Q4_K_M.gguf"),
        ("q4_k_m", "model-Q4_K_M.gguf"),
        ("Q8_0", "model.q8_0.gguf"),
        ("IQ4_XS", "IQ4_XS/model-iq4_xs.gguf"),
        ("model-Q4_K_S.gguf", "model-Q4_K_S.gguf"),
        ("IQ4_XS/model-iq4_xs.gguf", "IQ4_XS/model-iq4_xs.gguf"),
    ],
)
def test_files_of_the_hub_are_named_as_llama_cpp_names_them(fake_hub, file: Path, wanted: str, name: str) -> None:
    loaded: LoadedModel = load(f"owner/repo-GGUF:{wanted}", "abc")
    assert set(fake_hub) == {(f"owner/repo-GGUF/{name}", "abc")} and loaded.id == load(str(file)).id


def test_a_run_of_a_file_of_the_hub_is_that_of_the_file(fake_hub, file: Path) -> None:
    one = compared("owner/repo:Q8_0", revision="abc")
    assert compared(str(file)).reused and one.record.spec["revision"] is None
    assert compared(one.record.spec["model"], revision=one.record.spec["revision"]).reused


def test_codebooks_are_trained_for_the_file_wherever_it_lies(fake_hub) -> None:
    found = offer("owner/repo:Q8_0", "abc", [parse_lane({"method": "commvq"})])
    assert found is not None and found.revision is None
    assert load(found.model, found.revision).id == found.model


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("Q5_K_M", "owner/repo has no .gguf file of the quantization 'Q5_K_M'; there are: IQ4_XS/model-iq4_xs.gguf, "),
        ("Q4_K", "has no .gguf file of the quantization 'Q4_K'"),
        ("F16", "has the quantization 'F16' in 2 parts alone, and models in parts are not read"),
        ("other.gguf", "could not be had from the Hub: 404: no other.gguf in owner/repo"),
    ],
)
def test_names_the_hub_does_not_have(fake_hub, wanted: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        load(f"owner/repo:{wanted}")
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "id", ["owner/repo", "/models/a:b.gguf", "./a/b:c", "~/a:b", "gguf:0123456789abcdef", "smollm2"]
)
def test_what_is_no_file_of_the_hub(id: str) -> None:
    assert hub.parts(id) is None
