"""GGUF files that are mended in place: their own bytes alone, by one at a time, and back again whatever happens."""

import hashlib
import json
import struct
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import pytest

from kvq_core.errors import StoreError
from kvq_core.machine import files
from kvq_core.mend import gguf_file
from kvq_core.models.gguf.header import read_header
from tests.support.mended_files import SAID, changed, killed_at, made


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})


@pytest.mark.slow
def test_biases_alone_change_no_other_byte_and_the_file_stays_as_long(tmp_path: Path) -> None:
    file, _ = made(tmp_path)
    header, _, tensors = changed(file, scale=False)
    assert {change.entry.name for change in tensors} == {f"blk.{layer}.attn_k.bias" for layer in (0, 1)}
    before, digest = file.read_bytes(), hashlib.sha256(file.read_bytes()).hexdigest()
    kept = gguf_file.write_in_place(header, tensors, SAID)
    after = file.read_bytes()
    spans = [range(c.entry.start, c.entry.start + c.entry.size) for c in tensors]
    apart = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert apart and all(any(at in span for span in spans) for at in apart)
    assert gguf_file.said_by(read_header(file)) == SAID
    with pytest.raises(StoreError, match="changed in place before"):
        gguf_file.write_in_place(header, tensors, SAID)
    assert gguf_file.undo(file) == digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert not kept.exists()
    with pytest.raises(StoreError, match="not changed in place"):
        gguf_file.undo(file)


@pytest.mark.slow
def test_what_is_made_of_a_private_file_is_private(tmp_path: Path) -> None:
    file, _ = made(tmp_path)
    file.chmod(0o600)
    header, _, tensors = changed(file)
    gguf_file.write_copy(header, tensors, tmp_path / "out.gguf", SAID)
    kept = gguf_file.write_in_place(header, tensors, SAID)
    assert [place.stat().st_mode & 0o777 for place in (tmp_path / "out.gguf", kept, file)] == [0o600] * 3


@pytest.mark.slow
def test_two_at_once_in_place_leave_one_mended_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = made(tmp_path)
    header, _, tensors = changed(file)
    before, both, said = file.read_bytes(), Barrier(2), []
    keep = files.keep_bytes

    def slow(*given: Any) -> bool:
        with suppress(BrokenBarrierError):
            both.wait(1)  # until the other one is here too, which it must not be
        return keep(*given)

    def work() -> None:
        try:
            gguf_file.write_in_place(header, tensors, SAID)
        except StoreError as error:
            said.append(str(error))

    monkeypatch.setattr(gguf_file.files, "keep_bytes", slow)
    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 1 and "changed in place before" in said[0]
    gguf_file.undo(file)
    assert file.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("older", [False, True])  # backups once told no size and no new bytes
def test_a_file_in_the_place_of_the_mended_one_stays_as_it_is(tmp_path: Path, older: bool) -> None:
    file, _ = made(tmp_path)
    header, _, tensors = changed(file)
    before = file.read_bytes()
    kept = gguf_file.write_in_place(header, tensors, SAID)
    if older:
        told, old = gguf_file._read_undo(kept)
        del told["size"]
        head = json.dumps({**told, "spans": [span[:2] for span in told["spans"]]}).encode()
        files.keep_bytes(kept, struct.pack("<Q", len(head)) + head + b"".join(data for _, data in old))
        assert gguf_file.said_by(read_header(file)) == SAID
    mended = file.read_bytes()
    outside = header.entries[0].start + 2
    for other in (mended[:outside] + b"other" + mended[outside + 5 :], mended + bytes(32), mended[:-4096]):
        file.write_bytes(other)
        with pytest.raises(StoreError, match="is another file.*Nothing was changed"):
            gguf_file.undo(file)
        assert file.read_bytes() == other and kept.exists()
    file.write_bytes(mended + bytes(32))
    assert older or gguf_file.said_by(read_header(file)) is None
    inside = tensors[0].entry.start
    file.write_bytes(mended[:inside] + b"other" + mended[inside + 5 :])
    assert older or gguf_file.said_by(read_header(file)) is None
    file.write_bytes(mended)
    gguf_file.undo(file)
    assert file.read_bytes() == before and not kept.exists()


def test_a_file_that_others_read_is_not_changed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = made(tmp_path)
    before = file.read_bytes()
    cached = tmp_path / "models--a--b" / "blobs" / "0123"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(before)
    (tmp_path / "cached.gguf").symlink_to(cached)
    (tmp_path / "twin.gguf").hardlink_to(file)
    monkeypatch.setattr(gguf_file.bundled, "place", lambda: tmp_path / "bundled.gguf")
    (tmp_path / "bundled.gguf").write_bytes(before)
    for name, said in (("cached", "Hugging Face's cache"), ("twin", "under 2 names"), ("bundled", "the bundled model")):
        with pytest.raises(StoreError, match=f"{said}.*give --out"):
            gguf_file.write_in_place(read_header(tmp_path / f"{name}.gguf"), [], SAID)
    assert not list(tmp_path.rglob("*.mend-undo"))


@pytest.mark.slow
def test_behind_a_link_the_file_itself_is_changed_and_its_backup_lies_beside_it(tmp_path: Path) -> None:
    file, _ = made(tmp_path)
    before = file.read_bytes()
    link = tmp_path / "links" / "other.gguf"
    link.parent.mkdir()
    link.symlink_to(file)
    _, _, tensors = changed(file)
    assert gguf_file.write_in_place(read_header(link), tensors, SAID) == tmp_path / "m.gguf.mend-undo"
    assert gguf_file.said_by(read_header(file)) == gguf_file.said_by(read_header(link)) == SAID
    gguf_file.undo(link)
    assert link.is_symlink() and file.read_bytes() == before


@pytest.mark.slow
def test_whoever_is_killed_in_place_can_undo(tmp_path: Path) -> None:
    file, _ = made(tmp_path)
    header, _, tensors = changed(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for count in range(100):
        killed = killed_at(count, lambda: gguf_file.write_in_place(header, tensors, SAID), "pwrite", "fsync", "open")
        if gguf_file.backup_of(file).exists():
            gguf_file.undo(file)
        assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
        if not killed:
            break
    assert count > 5 and not killed
