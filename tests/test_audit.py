"""The audit of what is installed: what counts as asked, and which versions an advisory is of."""

import json

from scripts.audit import asked, installed, matching

ADVISORIES = {
    "torch": [
        {"id": "GHSA-1", "severity": "HIGH", "advisory": "overflow", "v": ">=2.0,<2.10.0"},
        {"id": "GHSA-2", "severity": "LOW", "advisory": "older", "v": "<2.2.0"},
    ]
}


def test_a_package_the_service_did_not_answer_for_does_not_count_as_asked():
    found = {"name": "Left_Alone", "version": "1", "skip_reason": "not found on PyPI"}
    bad = {"name": "Some.Package", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": []}]}
    good = {"name": "good", "version": "2", "vulns": []}
    told = asked(json.dumps({"dependencies": [found, bad, good], "fixes": []}))
    assert told == {"some-package": ["CVE-1: 1"], "good": []}
    assert asked("") == {}


def test_an_advisory_is_told_of_the_versions_it_is_about_alone():
    said = list(matching({"numpy": "2.0", "torch": "2.9.1+cpu"}, ADVISORIES))
    assert said == ["torch 2.9.1+cpu: GHSA-1 (high) overflow"]
    assert not list(matching({"torch": "2.10.0+cpu"}, ADVISORIES))


def test_what_is_installed_is_found_under_the_names_advisories_have(tmp_path):
    for name in ("Ruamel.Yaml_Thing", "pip"):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    assert installed(tmp_path) == {"ruamel-yaml-thing": "1.0"}
