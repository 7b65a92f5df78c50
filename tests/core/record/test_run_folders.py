"""Runs in folders of one's own."""

from pathlib import Path

import pytest

from kvq_core.errors import StoreError
from kvq_core.record.store import open_store, read_run, write_run
from tests.support.stored_runs import FILES, one_line, same


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
