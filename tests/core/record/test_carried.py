"""A run inside a page: byte for byte what was stored, and nothing else is taken for one."""

import hashlib
import json
import lzma

import pytest

from kvq_core.cli.main import main
from kvq_core.errors import StoreError
from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.record.carried import carried, restore, sealed
from kvq_core.record.files import ARRAYS, MANIFEST, RECORD
from kvq_core.record.shipped import RUNS
from kvq_core.record.store import open_store

PAGE = "<!doctype html><title>a page &#8217; of a prompt with &lt;!--kvq-run 1</title>"


@pytest.fixture(scope="module")
def run() -> str:
    return example_ids()["keys-or-values"]


@pytest.fixture(scope="module")
def page(run) -> bytes:
    return PAGE.encode() + sealed(packaged_store().files(run))


@pytest.fixture
def nothing_ships(monkeypatch):
    monkeypatch.setattr("kvq_core.record.carried.packaged_store", lambda: open_store("memory://none-ships"))


def test_a_page_gives_the_files_back_byte_for_byte(page, run):
    found = carried(page, "run.html")
    assert found.record.id == run and "lane/0/kld" in found.arrays
    assert found.files == {name: (RUNS / run / name).read_bytes() for name in (MANIFEST, RECORD, ARRAYS)}


def test_nothing_in_a_page_ends_the_comment_early(page):
    head, _, rest = page.partition(b"<!--kvq-run 1 ")
    assert head.decode() == f"{PAGE}\n" and rest.count(b">") == 1 and rest.endswith(b"\n-->\n")


@pytest.mark.parametrize("place", ["memory://restored-runs", "folder"])
def test_a_restored_run_is_the_stored_one_to_its_checksums(page, run, tmp_path, nothing_ships, place):
    store, shipped = open_store(str(tmp_path) if place == "folder" else place), packaged_store().files(run)
    assert restore(carried(page, "run.html"), store)
    there = store.files(run)
    assert [there[name] for name in (RECORD, ARRAYS)] == [shipped[name] for name in (RECORD, ARRAYS)]
    assert store.load(run)[0] == packaged_store().load(run)[0]
    assert not restore(carried(page, "run.html"), store)
    again = carried(PAGE.encode() + sealed(there), "run.html")  # of a store whose manifests name a folder, too
    assert again.record.id == run


def test_another_run_of_its_id_stays_as_it_is(page, run, nothing_ships):
    store = open_store("memory://another-run")
    record, arrays = packaged_store().load(run)
    other = record.model_copy(update={"created": "2020-01-01T00:00:00+00:00"})
    store.save(other, arrays)
    with pytest.raises(StoreError, match="Another run .* is here already"):
        restore(carried(page, "run.html"), store)
    assert store.load(run)[0] == other


@pytest.mark.parametrize("at", [40, 5_000, -200])
def test_a_damaged_page_is_refused_in_one_line(page, at):
    start = page.index(b"kvq-run 1 ") + len("kvq-run 1 ") if at == 40 else 0
    place = start + at if at > 0 else len(page) + at
    broken = page[:place] + bytes([page[place] ^ 1 or 2]) + page[place + 1 :]
    for damaged in (broken, page[:-2_000], page[: -len(b"\n-->\n")]):
        with pytest.raises(StoreError, match=r"^run\.html (is damaged|carries no run)") as refused:
            carried(damaged, "run.html")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"<p>another page</p>", b"\x89PNG\r\n", PAGE.encode()])
def test_a_foreign_file_is_refused_in_one_line(data):
    with pytest.raises(StoreError, match="carries no run"):
        carried(data, "it")


NO_HEADER = b"[0, 0, 9]\n" + (1).to_bytes(8, "little") + b"5"


def test_what_claims_a_length_it_has_not_is_refused():
    for inside in (b"[1]\n", b"[-5, 5, 0]\n", b"no json\n", b"[0, 0, 0]\n", b"[0, 0, 99]\n" + b"\xff" * 99, NO_HEADER):
        packed = lzma.compress(inside)
        for byte, escape in ((b"=", b"=e"), (b">", b"=g")):
            packed = packed.replace(byte, escape)
        seal = hashlib.sha256(lzma.compress(inside)).hexdigest()
        with pytest.raises(StoreError, match="damaged"):
            carried(f"<!--kvq-run 1 {seal}\n".encode() + packed + b"\n-->\n", "it")


def test_the_command_open_keeps_a_run_and_refuses_the_rest(page, run, tmp_path, monkeypatch, capsys, nothing_ships):
    monkeypatch.setenv("KVQ_STORE", str(tmp_path / "store"))
    (tmp_path / "run.html").write_bytes(page)
    assert main(["open", str(tmp_path / "run.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    sums = {name: hashlib.sha256((RUNS / run / name).read_bytes()).hexdigest() for name in (RECORD, ARRAYS)}
    assert told == {"id": run, "new": True, "sha256": sums}
    assert main(["open", str(tmp_path / "run.html")]) == 0 and "already" in capsys.readouterr().out
    (tmp_path / "other.html").write_text("<p>another</p>")
    for file, said in (("other.html", "carries no run"), ("none.html", "Cannot read")):
        assert main(["open", str(tmp_path / file)]) == 2
        complaint = capsys.readouterr().err
        assert said in complaint and complaint.count("\n") == 1
