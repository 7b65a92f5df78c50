"""Runs of older versions keep opening: real ones, kept as their own version of the program wrote them."""

import hashlib
import json
from pathlib import Path

import pytest

from kvq_core.errors import StoreError
from kvq_core.record.fields import SCHEMA_VERSION, Record
from kvq_core.record.files import Manifest
from kvq_core.record.migrate import upgrade, upgrade_record
from kvq_core.record.store import read_run

DATA = Path(__file__).parents[2] / "data"
OLD = sorted(DATA.glob("schema-*"))
# Of the fields of record and manifest. Where they change: raise SCHEMA_VERSION, put what came into record/migrate.py,
# keep a run of the version before as tests/data/schema-<version>-<what>, and put the new fingerprint here.
FINGERPRINT = (8, "0635693c13531b01")


def versions(folder: Path) -> tuple[int, int]:
    return tuple(
        json.loads((folder / name).read_bytes())["schema_version"] for name in ("record.json", "manifest.json")
    )


def test_there_is_a_run_of_every_version_but_this():
    assert {version for folder in OLD for version in versions(folder)} == set(range(1, SCHEMA_VERSION))


@pytest.mark.parametrize("folder", OLD, ids=lambda f: f.name)
def test_an_old_run_opens(folder):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    record, arrays = read_run(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    stored = json.loads(before["record.json"])
    assert record.schema_version == SCHEMA_VERSION and record.id == stored["id"]
    assert record.lanes[0].metrics.kld_mean == stored["lanes"][0]["metrics"]["kld_mean"] > 0
    assert record.reference.text == stored["reference"]["text"] != ""
    assert arrays["lane/0/kld"].shape == (record.lanes[0].metrics.n_scored,)


@pytest.mark.parametrize("folder", OLD, ids=lambda f: f.name)
def test_nothing_stored_is_lost_and_every_field_is_there(folder):
    stored = json.loads((folder / "record.json").read_bytes())
    kept = json.loads(json.dumps(stored))
    current = upgrade_record(stored, "The run")
    assert stored == kept, "what was stored stays as it is"
    assert covers(current, {**stored, "schema_version": SCHEMA_VERSION})
    whole = json.loads(Record.model_validate_json(json.dumps(current)).model_dump_json())
    assert set(whole) == set(current) and set(whole["capture"]) == set(current["capture"])
    assert set(whole["lanes"][0]["metrics"]) == set(current["lanes"][0]["metrics"])


def covers(one, other) -> bool:
    """Whether all of ``other`` is in ``one``."""
    if isinstance(other, dict):
        return all(name in one and covers(one[name], value) for name, value in other.items())
    if isinstance(other, list):
        return len(one) == len(other) and all(map(covers, one, other))
    return one == other


@pytest.mark.parametrize("name", ["record.json", "arrays.safetensors", "manifest.json"])
@pytest.mark.parametrize("at", [0, 0.3, 0.7])
def test_the_checksum_of_an_old_run_is_of_its_own_bytes(tmp_path, name, at):
    for file in OLD[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = bytearray((tmp_path / name).read_bytes())
    whole[int(at * len(whole))] ^= 4
    (tmp_path / name).write_bytes(whole)
    with pytest.raises(StoreError, match="damaged|another version"):
        read_run(tmp_path)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, -1, None, "1", 1.5, True])
def test_other_versions_are_refused(version):
    with pytest.raises(StoreError, match="another version"):
        upgrade({"schema_version": version}, "The run")


@pytest.mark.parametrize("data", [{"schema_version": 1}, {"schema_version": 1, "noise_floor": 3, "lanes": []}])
def test_a_record_that_is_not_what_it_says_is_damaged(data):
    with pytest.raises(StoreError, match="damaged"):
        upgrade_record(data, "The run")


def test_a_run_of_this_version_is_read_as_it_is():
    same = {"schema_version": SCHEMA_VERSION}
    assert upgrade_record(same, "x") is same


def without_words(schema):
    """A JSON schema without its descriptions."""
    if isinstance(schema, dict):
        return {k: without_words(v) for k, v in schema.items() if k != "description" or not isinstance(v, str)}
    return list(map(without_words, schema)) if isinstance(schema, list) else schema


def test_fields_change_with_the_version_only():
    schemas = [without_words(model.model_json_schema()) for model in (Record, Manifest)]
    found = hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()[:16]
    assert (SCHEMA_VERSION, found) == FINGERPRINT, "see above FINGERPRINT"
