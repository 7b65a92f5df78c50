"""The store: whole runs or none, every damaged byte noticed, ids that can never become other paths."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvq_core.errors import StoreError
from kvq_core.store.store import open_store, read_run, write_run
from tests.support.sample_record import make_sample

ID = "0123456789abcdef"
FILES = ["record.json", "arrays.safetensors", "manifest.json"]


@pytest.fixture(params=["path", "file://", "memory://"])
def url(request, tmp_path):
    return {
        "path": str(tmp_path / "s"),
        "file://": f"file://{tmp_path}/s",
        "memory://": f"memory://{uuid.uuid4().hex}/s",
    }[request.param]


def same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, tensor in one[1].items():
        assert other[1][name].dtype == tensor.dtype and torch.equal(other[1][name], tensor)


def one_line(error) -> str:
    assert "\n" not in str(error) and len(str(error)) < 300
    return str(error)


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


def test_the_first_writer_of_an_id_wins(url, sample_run):
    store = open_store(url)
    first, second = sample_run(text="first"), sample_run(text="second")
    store.save(*first)
    store.save(*second)
    same(first, store.load(ID))


def test_many_writers_at_once_leave_one_whole_run(url, sample_run):
    runs = {f"writer {i}": sample_run(text=f"writer {i}") for i in range(8)}
    start = threading.Barrier(len(runs))
    failures = []

    def write(run):
        start.wait()
        try:
            open_store(url).save(*run)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=write, args=(run,)) for run in runs.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    loaded = open_store(url).load(ID)
    same(runs[loaded[0].reference.text], loaded)
    assert len(open_store(url).list()) == 1


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


WRITER = """
import sys
from kvq_core.store.store import write_run
from pathlib import Path
from tests.support.sample_record import make_sample
import torch
for n in range(100000):
    record, arrays = make_sample(id=f"{n:016x}")
    arrays["big"] = torch.zeros(1_000_000)
    write_run(Path(sys.argv[1]) / str(n), record, arrays)
    print(n, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_folders_or_none(tmp_path):
    """SIGKILL while --out is written; the store's own kills are in test_store_kill.py."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": "."},
    )
    for _ in range(3):
        assert writer.stdout.readline().strip().isdigit()
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    folders = [f for f in tmp_path.glob("*") if not f.name.startswith(".")]
    assert len(folders) >= 3
    for folder in folders:
        read_run(folder)


def test_a_writer_that_is_overtaken_leaves_the_first_run(sample_run, monkeypatch):
    """Another commits while the arrays are written: what was promised to its maker stays."""
    url = f"memory://{uuid.uuid4().hex}"
    store, other = open_store(url), open_store(url)
    pipe = store.fs.pipe_file

    def overtaken(path, *arguments, **how):
        pipe(path, *arguments, **how)
        if path.endswith("arrays.safetensors"):
            monkeypatch.setattr(store.fs, "pipe_file", pipe)  # one file system for both: the other is not overtaken
            other.save(*sample_run(text="first"))

    monkeypatch.setattr(store.fs, "pipe_file", overtaken)
    store.save(*sample_run(text="second"))
    id = sample_run()[0].id
    assert store.load(id)[0].reference.text == other.load(id)[0].reference.text == "first"
    assert len(store.fs.find(store.root)) == 3, "the second took its attempt away"


OTHER = """
import sys
from kvq_core.store.store import open_store
from tests.support.sample_record import make_sample
run = make_sample(text="one")
print("ready", flush=True)
sys.stdin.readline()
store = open_store(sys.argv[1])
store.save(*run)
print(store.load(run[0].id)[0].reference.text)
"""


@pytest.mark.slow
def test_two_processes_that_write_one_id_agree(tmp_path):
    """This one and another."""
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    store = open_store(str(tmp_path))
    store.save(*make_sample(text="two"))
    read = store.load(ID)[0].reference.text
    assert other.communicate()[0].strip() == read == open_store(str(tmp_path)).load(ID)[0].reference.text
    assert read in ("one", "two")
    assert [f.name for f in tmp_path.iterdir()] == [ID]


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


@pytest.mark.slow
def test_another_process_sees_the_run_and_computes_the_same_bytes(tmp_path, sample_run):
    run = sample_run()
    open_store(str(tmp_path)).save(*run)
    read = f"r, a = open_store({str(tmp_path)!r}).load({ID!r}); print(r.id, len(a))"
    code = f"from kvq_core.store.store import open_store; {read}"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == [ID, str(len(run[1]))]


def test_old_leftovers_of_killed_writers_are_swept(tmp_path, sample_run):
    old, fresh, stranger = (tmp_path / n for n in (f".{'a' * 16}-old", f".{'a' * 16}-new", ".config-of-someone"))
    for folder in (old, fresh, stranger):
        folder.mkdir()
    for folder in (old, stranger):
        os.utime(folder, (0, 0))
    open_store(str(tmp_path)).save(*sample_run())
    assert not old.exists() and fresh.exists() and stranger.exists()


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


class TestFolders:
    """``--out``: the same three files in a folder of one's own."""

    def test_round_trip_into_a_new_folder(self, tmp_path, sample_run):
        run = sample_run()
        write_run(tmp_path / "a" / "b", *run)
        same(run, read_run(tmp_path / "a" / "b"))
        assert sorted(f.name for f in (tmp_path / "a" / "b").iterdir()) == sorted(FILES)
        assert [f.name for f in (tmp_path / "a").iterdir()] == ["b"]

    def test_a_folder_in_use_keeps_its_other_files(self, tmp_path, sample_run):
        (tmp_path / "mine.txt").write_text("mine")
        write_run(tmp_path, *sample_run(text="old"))
        new = sample_run(id="f" * 16, text="new")
        write_run(tmp_path, *new)
        same(new, read_run(tmp_path))
        assert sorted(f.name for f in tmp_path.iterdir()) == sorted([*FILES, "mine.txt"])

    def test_a_file_in_the_way_is_one_line(self, tmp_path, sample_run):
        (tmp_path / "f").write_text("x")
        for target in (tmp_path / "f", tmp_path / "f" / "g"):
            with pytest.raises(StoreError) as caught:
                write_run(target, *sample_run())
            assert "not a folder" in one_line(caught.value)

    def test_failure_leaves_nothing(self, tmp_path, sample_run, monkeypatch):
        def full(self, data):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(StoreError, match="No space left"):
            write_run(tmp_path / "out", *sample_run())
        with pytest.raises(StoreError, match="No space left"):
            open_store(str(tmp_path / "store")).save(*sample_run())
        assert not (tmp_path / "out").exists() and not any((tmp_path / "store").iterdir())

    def test_a_folder_without_a_run_is_one_line(self, tmp_path):
        with pytest.raises(StoreError) as caught:
            read_run(tmp_path)
        assert "manifest.json" in one_line(caught.value)

    def test_files_of_two_runs_do_not_mix(self, tmp_path, sample_run):
        write_run(tmp_path / "a", *sample_run(text="a"))
        write_run(tmp_path / "b", *sample_run(text="b"))
        (tmp_path / "a" / "record.json").replace(tmp_path / "b" / "record.json")
        with pytest.raises(StoreError, match="damaged"):
            read_run(tmp_path / "b")


def test_nothing_but_safetensors_is_written(tmp_path):
    open_store(str(tmp_path)).save(*make_sample())
    raw = (tmp_path / ID / "arrays.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert set(header) - {"__metadata__"} == set(make_sample()[1])
