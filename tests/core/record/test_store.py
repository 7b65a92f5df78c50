"""The store: what is saved is loaded, and ids that can never become other paths."""

import json

import pytest
import torch

from kvq_core.errors import StoreError
from kvq_core.record.store import open_store
from tests.support.sample_record import make_sample
from tests.support.stored_runs import ID, one_line, same


def test_what_is_saved_is_loaded(url, sample_run):
    store = open_store(url)
    assert not store.exists(ID)
    run = sample_run()
    store.save(*run)
    assert store.exists(ID)
    same(run, store.load(ID))
    same(run, open_store(url).load(ID))


def test_default_place_comes_from_the_environment(tmp_path, monkeypatch, sample_run):
    monkeypatch.delenv("KVQ_STORE", raising=False)
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    open_store().save(*sample_run())
    assert (tmp_path / "home" / "store" / ID / "manifest.json").is_file()
    monkeypatch.setenv("KVQ_STORE", f"file://{tmp_path}/elsewhere")
    assert not open_store().exists(ID)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "0",
        ID + "0",
        ID.upper(),
        "../../etc/passwd",
        "..",
        "%2e%2e/" + ID,
        ID[:-1] + "/",
        ID[:-1] + "\n",
        ID + "\n",
        "0123456789abcde\u0661",
        "0123456789abcde\x00",
        "*" * 16,
        "https://x/" + ID[:6],
        None,
        7,
    ],
    ids=repr,
)
def test_ids_are_checked_before_anything_is_touched(bad, sample_run):
    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError(f"the file system was asked: {name}")

    store = open_store("memory://x")
    store.fs = Untouchable()
    record, arrays = sample_run()
    for call in (store.load, store.exists, lambda i: store.save(record.model_copy(update={"id": i}), arrays)):
        with pytest.raises(StoreError) as caught:
            call(bad)
        assert "16 hexadecimal characters" in one_line(caught.value)


def test_unknown_ids_say_so(url):
    with pytest.raises(StoreError) as caught:
        open_store(url).load("f" * 16)
    assert "not in this store" in one_line(caught.value)


def test_list_is_newest_first_and_leaves_out_what_is_broken(url, sample_run):
    store = open_store(url)
    assert store.list() == []
    for n in range(5):
        store.save(*sample_run(id=f"{n:016x}", created=f"2026-01-0{n + 1}T00:00:00+00:00", prompt=f"prompt {n} " * 40))
    store.fs.pipe_file(f"{store.root}/{3:016x}/manifest.json", b"broken")
    found = store.list()
    assert [s.id for s in found] == [f"{n:016x}" for n in (4, 2, 1, 0)]
    assert [s.id for s in store.list(limit=2)] == [s.id for s in found[:2]]
    first = found[0]
    assert first.lanes == ("KIVI 2-bit", "SQuat") and first.model_title == "A model"
    assert first.prompt.startswith("prompt 4") and len(first.prompt) == 120


def test_strangers_in_the_folder_are_ignored(tmp_path, sample_run):
    store = open_store(str(tmp_path))
    store.save(*sample_run())
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ("a" * 16)).mkdir()
    (tmp_path / f".{'b' * 16}-left").mkdir()
    assert [s.id for s in store.list()] == [ID]


def test_more_than_64_mb_of_arrays_are_refused(tmp_path, sample_run):
    record, _ = sample_run()
    with pytest.raises(StoreError) as caught:
        open_store(str(tmp_path)).save(record, {"x": torch.empty(65 * 2**20, dtype=torch.int8)})
    assert "64 MB" in one_line(caught.value)
    assert not any(tmp_path.iterdir())


def test_a_record_that_could_not_be_read_back_is_not_stored(tmp_path, sample_run):
    record, arrays = sample_run()
    broken = record.model_copy(update={"timing": record.timing.model_copy(update={"total_s": float("nan")})})
    with pytest.raises(StoreError, match="total_s"):
        open_store(str(tmp_path)).save(broken, arrays)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("bad", ["nosuch://x", "s3//", "http+unix://"])
def test_impossible_stores_are_one_line(bad, sample_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError) as caught:
        (tmp_path / "s3").write_text("a file, not a folder")
        open_store(bad).save(*sample_run())
    one_line(caught.value)


def test_nothing_but_safetensors_is_written(tmp_path):
    open_store(str(tmp_path)).save(*make_sample())
    raw = (tmp_path / ID / "arrays.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert set(header) - {"__metadata__"} == set(make_sample()[1])
