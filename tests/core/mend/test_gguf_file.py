"""Mended GGUF files: what the edited model computes, all else as it was, and whole or not there whatever happens."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from kvq_core.errors import KvqError, ModelError, StoreError
from kvq_core.mend import gguf_file
from kvq_core.mend.edit import Edit
from kvq_core.mend.fold import row_factors
from kvq_core.mend.tensors import changes_of
from kvq_core.models import load, wrap
from kvq_core.models.gguf.header import Header, read_header
from tests.support.gguf_files import logits
from tests.support.mended_files import SAID, changed, hashes, killed_at, made
from tests.support.mended_models import apply_to

IDS = [(7 * i * i + i) % 200 for i in range(40)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("kvq_core.models.loader._held", {})


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
