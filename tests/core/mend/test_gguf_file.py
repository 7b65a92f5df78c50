"""Mended GGUF files: what the edited model computes, all else as it was, and whole or not there whatever happens."""

import hashlib
import json
import os
import re
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from kvq_core.errors import KvqError, ModelError, StoreError
from kvq_core.machine import files
from kvq_core.mend import gguf_file
from kvq_core.mend.edit import Edit
from kvq_core.mend.fold import apply_to, row_factors
from kvq_core.mend.tensors import changes_of
from kvq_core.models import load, wrap
from kvq_core.models.gguf.header import Header, read_header
from kvq_core.models.pairs import Pairs
from tests.support.gguf_files import logits, source, write

IDS = [(7 * i * i + i) % 200 for i in range(40)]
SAID = {"version": 1, "source": "0" * 64, "format": "q4_0/q4_0", "context": 512, "biases": [], "folded": [], "kld": {}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})


def made(tmp_path: Path, architecture: str = "qwen2", kind: Kind = Kind.Q8_0, **changes: Any) -> tuple[Path, Any]:
    model = source(architecture, **changes)
    return write(tmp_path / "m.gguf", model, kind), model


def changed(file: Path, scale: bool = True) -> tuple[Any, Edit, list]:
    """The header, an edit of random scales and of half the pairs' biases, and the changed tensors."""
    model = load(str(file))
    shape, rope = model.shape, model.rope(2)
    edit = Edit.none(shape.layers, shape.kv_heads, shape.head_dim)
    torch.manual_seed(5)
    for layer in shape.alike:
        pairs = Pairs.of_rope(rope, layer)
        drawn = torch.randn(shape.kv_heads, len(pairs.theta))
        if scale:
            edit = edit.with_scales(layer, pairs.spread(drawn).exp())
        edit = edit.with_keep(layer, pairs.spread((drawn > 0).float()))
    header = read_header(file)
    return header, edit, changes_of(header, {name: x.float().numpy() for name, x in row_factors(model, edit).items()})


def hashes(file: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.data.tobytes()).hexdigest() for each in gguf.GGUFReader(file).tensors}


@pytest.mark.few(sample=2)
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [("qwen2", {}), ("llama", {}), ("qwen3", {}), ("phi3", {}), ("gemma3_text", {}), ("stablelm", {})],
)
def test_a_mended_file_computes_what_the_edited_model_does(tmp_path: Path, architecture: str, changes: dict) -> None:
    file, model = made(tmp_path, architecture, Kind.F32, **changes)
    header, edit, tensors = changed(file)
    if any(own.endswith("norm.weight") for own in (change.entry.name for change in tensors)):
        edit = Edit(edit.keep, edit.scale[:, :1].expand_as(edit.scale).clone())  # gains that all heads share
        tensors = changes_of(header, _factors(file, edit))
    gguf_file.write_copy(header, tensors, tmp_path / "out.gguf", SAID)
    apply_to(wrap(model, None, id="x"), edit)
    model.set_attn_implementation("eager")
    found = load(str(tmp_path / "out.gguf")).model
    found.set_attn_implementation("eager")
    assert torch.allclose(logits(found, IDS), logits(model, IDS), rtol=1e-4, atol=1e-4)


def _factors(file: Path, edit: Edit) -> dict[str, np.ndarray]:
    return {name: x.float().numpy() for name, x in row_factors(load(str(file)), edit).items()}


@pytest.mark.few(sample=2)
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q5_1, Kind.Q8_0, Kind.BF16, Kind.F16], ids=lambda kind: kind.name)
def test_only_what_is_changed_changes(tmp_path: Path, kind: Kind) -> None:
    file, _ = made(tmp_path, kind=kind)
    header, _, tensors = changed(file)
    gguf_file.write_copy(header, tensors, tmp_path / "out.gguf", SAID)
    before, after = hashes(file), hashes(tmp_path / "out.gguf")
    apart = {name for name in before if before[name] != after[name]}
    assert apart == {f"blk.{layer}.attn_{x}.{end}" for layer in (0, 1) for x in "qk" for end in ("weight", "bias")}
    new = read_header(tmp_path / "out.gguf")
    assert {key: value for key, value in new.values.items() if not key.startswith("kvq.")} == header.values
    assert new.mix == f"{header.mix}; mended for q4_0/q4_0, 512 tokens"
    assert gguf_file.said_by(new) == SAID and gguf_file.said_by(header) is None
    with pytest.raises(ModelError, match="mended already, for q4_0/q4_0 and a context of 512"):
        gguf_file.check_plain(new)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"format": "q4_0/q4_0"}, "for q4_0/q4_0, nothing tokens"),
        ({"context": 7}, "for nothing, 7 tokens"),
        ({"biases": "{"}, "for nothing, nothing tokens"),
        ({"format": "x\n" * 900, "context": "many", "kld": 3}, "for 'x.*, 'many' tokens"),
    ],
)
def test_what_a_file_says_of_its_mending_may_be_anything(tmp_path: Path, told: dict, said: str) -> None:
    header = Header(tmp_path / "m.gguf", {f"kvq.mend.{name}": value for name, value in told.items()}, ())
    assert re.fullmatch(f"mended {said}", str(header.mended)) and len(str(header.mended)) < 200
    assert gguf_file.said_by(header) == told
    with pytest.raises(ModelError, match="is mended already"):
        gguf_file.check_plain(header)


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


def killed_at(count: int, work: Any, *names: str) -> bool:
    """Run ``work`` in a fork that is killed at its ``count``-th call of these functions of os; whether it was."""
    child = os.fork()
    if child == 0:
        left = [count]

        def dying(real: Any, *args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), 9)
            return real(*args, **more)

        for name in names:
            setattr(os, name, partial(dying, getattr(os, name)))
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -9)
    return status == -9


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


@pytest.mark.slow
def test_whoever_is_killed_while_a_copy_is_written_leaves_no_file(tmp_path: Path) -> None:
    file, _ = made(tmp_path)
    header, _, tensors = changed(file)
    out = tmp_path / "out.gguf"
    for count in range(20):
        killed = killed_at(count, lambda: gguf_file.write_copy(header, tensors, out, SAID), "fsync", "chmod", "replace")
        if not killed:
            break
        assert not out.exists() or gguf_file.said_by(read_header(out)) == SAID
        out.unlink(missing_ok=True)
    assert count > 1 and hashes(out).keys() == hashes(file).keys()


@pytest.mark.slow
def test_what_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = made(tmp_path)
    header, _, tensors = changed(file)
    with pytest.raises(StoreError, match="exists; give another name"):
        gguf_file.write_copy(header, tensors, file, SAID)
    with pytest.raises(StoreError, match="is no folder"):
        gguf_file.write_copy(header, tensors, tmp_path / "none" / "out.gguf", SAID)
    gguf_file.write_in_place(header, tensors, SAID)
    gguf_file.backup_of(file).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="is damaged"):
        gguf_file.undo(file)
    monkeypatch.setattr(gguf_file.shutil, "disk_usage", lambda place: type("Room", (), {"free": 10}))
    with pytest.raises(KvqError, match="make room"):
        gguf_file.write_copy(header, tensors, tmp_path / "out.gguf", SAID)
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.F16, Kind.F32], ids=lambda kind: kind.name)
def test_rows_without_numbers_are_refused_wherever_they_stand(tmp_path: Path, kind: Kind) -> None:
    file, _ = made(tmp_path, kind=kind)
    header = read_header(file)
    [entry] = [entry for entry in header.entries if entry.name == "blk.0.attn_k.weight"]
    data = bytearray(file.read_bytes())
    row = entry.start + 3 * entry.size // 32
    data[row : row + 4] = np.array([np.nan], np.float32).tobytes() if kind == Kind.F32 else b"\x00\x7e\x00\x7e"
    file.write_bytes(data)
    factors = np.ones(32, np.float32)
    factors[2:5] = 0.5
    with pytest.raises(ModelError, match="'blk.0.attn_k.weight' holds no numbers"):
        changes_of(header, {"model.layers.0.self_attn.k_proj.weight": factors})


@pytest.mark.slow
def test_a_tensor_whose_type_cannot_hold_its_scales_becomes_f16(tmp_path: Path) -> None:
    file, _ = made(tmp_path)
    header = read_header(file)
    name = "model.layers.0.self_attn.k_proj.weight"
    [change] = changes_of(header, {name: np.full(32, 1e-5, np.float32)})  # fp16 scales vanish
    assert change.retyped and change.kind == Kind.F16
    gguf_file.write_copy(header, [change], tmp_path / "out.gguf", SAID)
    new = {entry.name: entry.kind for entry in read_header(tmp_path / "out.gguf").entries}
    assert new.pop("blk.0.attn_k.weight") == Kind.F16
    assert new.items() <= {entry.name: entry.kind for entry in header.entries}.items()
    before, after = hashes(file), hashes(tmp_path / "out.gguf")
    assert {n for n in before if before[n] != after[n]} == {"blk.0.attn_k.weight"}
    with pytest.raises(StoreError, match="give --out"):
        gguf_file.write_in_place(header, [change], SAID)
