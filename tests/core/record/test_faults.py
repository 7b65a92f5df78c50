"""What a full disk, a folder in the way or a damaged file costs: never a result."""

from importlib.util import find_spec

import pytest
import torch

from kvq_core.capture.other_prompts import directions_of
from kvq_core.codebooks import files as codebook_files
from kvq_core.errors import ModelError, StoreError
from kvq_core.machine import files
from kvq_core.models import bundled
from kvq_core.pipeline.compare import compare_on
from kvq_core.pipeline.timings import TimedWork, memory_file, predict, remember
from kvq_core.record.events import Finished
from kvq_core.spec import parse_spec
from kvq_core.training.checkpoints import Checkpoints
from tests.support.codebook_samples import info
from tests.support.tiny_models import prompt_ids, tiny

DAMAGE = [b"", b"{", b"[[1]]", b"null", b"\x00" * 9]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def no_home(home):
    """A home that nobody can write to, root included."""
    home.write_text("in the way")
    return home


@pytest.fixture
def full(monkeypatch):
    def disk(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", disk)


def test_a_run_needs_no_home_that_can_be_written(no_home, smollm):
    spec = parse_spec({"prompt": "Hello. " * 30, "max_new_tokens": 3, "lanes": [{"method": "kivi"}]})
    *_, finished = compare_on(smollm, spec)
    assert isinstance(finished, Finished) and finished.record.capture.subspace_texts
    assert no_home.read_text() == "in the way"


def test_a_home_in_the_way_is_one_line(no_home):
    with pytest.raises(StoreError, match="KVQ_HOME"):
        Checkpoints(codebook_files.codebook_folder() / "x.partial")
    with pytest.raises(StoreError, match="KVQ_HOME"):
        codebook_files.save_codebook(info(), {"theta": torch.zeros(1)})


def timed(record):
    return record.model_copy(update={"timing": record.timing.model_copy(update={"steps": 20, "total_s": 1.0})})


@pytest.mark.parametrize("damage", DAMAGE, ids=repr)
def test_damaged_timings_are_none(home, sample_run, damage):
    record = timed(sample_run()[0])
    model = record.environment.model
    remember(record, 1.0)
    assert predict(model, "off", TimedWork(1, 21, 3)) is not None
    file = memory_file(model, "off")
    file.write_bytes(damage)
    assert predict(model, "off", TimedWork(1, 21, 3)) is None
    remember(record, 1.0)
    assert predict(model, "off", TimedWork(1, 21, 3)) is not None


def test_timings_that_cannot_be_kept_cost_nothing(full, home, sample_run):
    remember(timed(sample_run()[0]), 1.0)


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped"])
def test_damaged_subspaces_are_computed_again(home, damage):
    model, ids = tiny("llama"), prompt_ids(40)
    found = directions_of(model, ids)
    (file,) = (home / "subspaces").iterdir()
    whole = file.read_bytes()
    flipped = bytes([*whole[:-9], whole[-9] ^ 64, *whole[-8:]])
    file.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "flipped": flipped}[damage])
    assert torch.equal(directions_of(model, ids), found)
    assert file.read_bytes() == whole, "and kept again"


def test_a_piece_of_a_training_that_cannot_be_kept_costs_nothing(full, tmp_path):
    pieces = Checkpoints(tmp_path / "x.partial")
    pieces.save("layer000", {"theta": torch.zeros(2)})
    assert pieces.load("layer000") is None


def test_a_flipped_bit_in_a_piece_of_a_training_is_noticed(tmp_path):
    pieces = Checkpoints(tmp_path / "x.partial")
    pieces.save("layer000", {"theta": torch.zeros(2)})
    (file,) = (tmp_path / "x.partial").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"\x01")
    assert pieces.load("layer000") is None


def test_a_full_disk_is_one_line_to_who_trains(full, home):
    with pytest.raises(StoreError, match="No space left"):
        codebook_files.save_codebook(info(), {"theta": torch.zeros(1)})


def test_half_a_codebook_that_a_killed_writer_left_is_none(home):
    book = codebook_files.save_codebook(info(), {"theta": torch.zeros(1)})
    book.path.with_name(f"{files.PREFIX}x").write_bytes(book.path.read_bytes()[:-1])
    assert [found.path for found in codebook_files.codebooks() if not found.shipped] == [book.path]


@pytest.mark.long("programs", sample=0)
@pytest.mark.slow
def test_a_converted_model_that_cannot_be_written_is_one_line(home, monkeypatch):
    if find_spec(bundled.PACKAGE) is None:
        pytest.skip("the bundled model's package is not installed")

    def write(header, config, entries, stream):
        stream.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvq_core.models.gguf.weights.write", write)
    with pytest.raises(ModelError, match="No space left") as caught:
        bundled.convert_bundled(home / "models" / "x")
    assert "KVQ_HOME" in str(caught.value) and not list((home / "models").iterdir())
