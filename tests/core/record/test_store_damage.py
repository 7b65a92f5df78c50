"""Every damaged byte of a stored run is noticed."""

import json
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import StoreError
from kvq_core.record.store import open_store
from tests.support.sample_record import make_sample
from tests.support.stored_runs import FILES, ID, one_line, same


@pytest.mark.parametrize("file", FILES)
def test_every_flipped_bit_is_noticed(tmp_path, sample_run, file):
    store = open_store(str(tmp_path))
    store.save(*sample_run())
    path = tmp_path / ID / file
    whole = path.read_bytes()
    chance = random.Random(0)
    places = {0, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(120))}
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(StoreError) as caught:
            store.load(ID)
        assert any(word in one_line(caught.value) for word in ("damaged", "another version"))
    path.write_bytes(whole)
    store.load(ID)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("keep", [0, 1, 0.5, -1])
def test_truncation_is_noticed(tmp_path, sample_run, file, keep):
    store = open_store(str(tmp_path))
    store.save(*sample_run())
    path = tmp_path / ID / file
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(StoreError, match="damaged"):
        store.load(ID)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_noticed(tmp_path, sample_run, file):
    store = open_store(str(tmp_path))
    store.save(*sample_run())
    (tmp_path / ID / file).unlink()
    with pytest.raises(StoreError, match="not in this store" if file == "manifest.json" else "missing"):
        store.load(ID)


def test_another_schema_version_says_so(tmp_path, sample_run):
    store = open_store(str(tmp_path))
    store.save(*sample_run())
    path = tmp_path / ID / "manifest.json"
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps({**manifest, "schema_version": 99}))
    with pytest.raises(StoreError) as caught:
        store.load(ID)
    assert "another version" in one_line(caught.value) and "99" in str(caught.value)


@pytest.mark.parametrize("content", [b"[]", b"null", b"{}", b'{"schema_version": 1}', b"\x00" * 50, b"[" * 100_000])
def test_manifests_that_are_none(tmp_path, sample_run, content):
    store = open_store(str(tmp_path))
    store.save(*sample_run())
    (tmp_path / ID / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        store.load(ID)


def test_a_run_under_another_id_is_noticed(tmp_path, sample_run):
    store = open_store(str(tmp_path))
    store.save(*sample_run())
    (tmp_path / ID).rename(tmp_path / ("f" * 16))
    with pytest.raises(StoreError, match="damaged"):
        store.load("f" * 16)


def test_saving_again_heals_a_damaged_run(url, sample_run):
    store = open_store(url)
    run = sample_run()
    store.save(*run)
    store.fs.pipe_file(f"{store.root}/{ID}/manifest.json", b"{}")
    with pytest.raises(StoreError):
        store.load(ID)
    store.save(*run)
    same(run, store.load(ID))


@pytest.mark.slow
@given(file=st.sampled_from(FILES), place=st.integers(0), flip=st.integers(1, 255))
def test_any_changed_byte_is_noticed(file, place, flip):
    """The same through hypothesis, in any store: of any byte of any file, to any other value."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.save(*make_sample())
    path = next(path for path in store.fs.find(store.root) if path.endswith(file))
    data = bytearray(store.fs.cat_file(path))
    data[place % len(data)] ^= flip
    store.fs.pipe_file(path, bytes(data))
    with pytest.raises(StoreError, match="damaged|another version|newer|version"):
        store.load(ID)
