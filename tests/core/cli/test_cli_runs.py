"""One comparison of the command line: its record, shown, stored, damaged, and a lane added to it."""

import json
import shutil

import pytest

from kvq_core.cli.tables import describe_record
from kvq_core.record.store import open_store, read_run, record_json
from tests.support.command_line import SPEC, cli, refused


@pytest.fixture(scope="module")
def compared(real_model, tmp_path_factory):
    """One real comparison through the command line: result, its folder, its store."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "spec.json").write_text(json.dumps(SPEC))
    store = f"file://{folder}/store"
    result = cli("compare", "--spec", folder / "spec.json", "--out", folder / "out", "--json", KVQ_STORE=store)
    return result, folder, store


@pytest.mark.long("combine", sample=0)
def test_a_lane_is_added_to_a_stored_run(compared, here, monkeypatch):
    _, folder, store = compared
    monkeypatch.setenv("KVQ_STORE", store)
    parent = read_run(folder / "out")[0]
    done = here("add", parent.id, '{"method": "per_token", "knobs": {"bits": 3}}', "--json")
    record = json.loads(done.stdout)
    assert done.returncode == 0 and record["parent"] == parent.id and record["lanes"][0]["metrics"]["kld_mean"] > 0
    assert open_store().load(record["id"])[0].model_dump(mode="json") == record
    refused(here("add", parent.id, "kivi"), "'kivi'", "JSON")
    refused(here("add", parent.id, '{"method": "kivi", "knobs": {"bits": 99}}'), "LANE", "99")
    refused(here("add", "0" * 16, '{"method": "kivi"}'), "0" * 16)
    told = here("why", parent.id, "kivi2").stdout
    assert "keys in fp16" in told and "not explained by layers" in told and "Most gained for a byte first" in told
    found = json.loads(here("why", parent.id, "kivi2", "--json").stdout)
    assert found["recorded"] == parent.lanes[0].metrics.kld_mean and len(found["causes"]) >= 5
    refused(here("why", parent.id, "none"), "'none'", "kivi2")
    seen = json.loads(here("capture", parent.id, "pt8", "--json").stdout)
    assert seen["layers"] == list(range(30)) and seen["recorded"] == parent.lanes[1].metrics.kld_mean
    assert seen["kld"] == pytest.approx(seen["recorded"], rel=1e-1)
    assert "lane/0/delta_map" in open_store().load(seen["run"])[1]


def test_compare_prints_exactly_the_record(compared):
    result, folder, store = compared
    assert result.returncode == 0 and result.stderr == ""
    record, arrays = read_run(folder / "out")
    assert result.stdout == record_json(record) + "\n"
    assert (folder / "out" / "record.json").read_text() + "\n" == result.stdout
    kept, kept_arrays = open_store(store).load(record.id)
    assert kept == record and kept_arrays.keys() == arrays.keys()
    assert [lane.label for lane in record.lanes] == ["kivi2", "pt8"]
    assert record.lanes[0].metrics.kld_mean > record.lanes[1].metrics.kld_mean > 0
    assert sorted(f.name for f in (folder / "out").iterdir()) == ["arrays.safetensors", "manifest.json", "record.json"]


def test_show_gives_the_same_record_from_id_and_folder(here, compared, monkeypatch):
    result, folder, store = compared
    monkeypatch.setenv("KVQ_STORE", store)
    for run in (json.loads(result.stdout)["id"], folder / "out"):
        shown = here("show", run, "--json")
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, result.stdout, "")


def test_show_for_people_has_a_row_a_lane(here, compared):
    text = here("show", compared[1] / "out").stdout
    for word in (
        "K bits",
        "KLD mean",
        "drafts kept",
        "score Δ",
        "key error",
        "Noise floor",
        "kivi2",
        "pt8",
        "too few for a verdict",
    ):
        assert word in text
    assert "nan" not in text.lower().split() and "-0.0000" not in text


def test_what_a_lane_notes_is_told_below_the_table(sample_run):
    record, arrays = sample_run()
    record.lanes[1].notes = ["regularization is in the range where the paper's ablation collapses; lower λ"]
    record.lanes[0].flags = ["never_engaged", "too_few_positions"]
    lines = describe_record(record, arrays).splitlines()
    assert "SQuat: regularization is in the range where the paper's ablation collapses; lower λ" in lines
    assert "KIVI 2-bit: never engaged" in lines


def test_the_same_comparison_is_not_computed_twice(here, compared, monkeypatch):
    result, folder, store = compared
    monkeypatch.setenv("KVQ_STORE", store)
    again = here("compare", "--spec", folder / "spec.json", "--json")
    assert again.stdout == result.stdout  # timings and all


def test_a_damaged_run_is_one_line(here, compared, tmp_path):
    _, folder, _ = compared
    copy = shutil.copytree(folder / "out", tmp_path / "copy")
    raw = bytearray((copy / "arrays.safetensors").read_bytes())
    raw[len(raw) // 2] ^= 1
    (copy / "arrays.safetensors").write_bytes(raw)
    refused(here("show", copy), "damaged", "arrays.safetensors")
