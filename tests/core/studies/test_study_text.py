"""What the command prints of a study, on the one that ships: what the page shows of it is in the text."""

import re
from dataclasses import replace

import pytest

from kvq_core.cli import study_text
from kvq_core.cli.study_text import describe_study
from kvq_core.studies.example import packaged_ids, packaged_studies
from kvq_core.studies.result import StudyResult
from kvq_core.studies.stored_plan import kept_plan
from kvq_core.studies.study import stored_study


@pytest.fixture(scope="module")
def shipped() -> StudyResult:
    store, (id,) = packaged_studies(), packaged_ids()
    return stored_study(kept_plan(id, store), store)


@pytest.mark.slow
def test_the_text_has_what_the_page_shows_of_a_lane(shipped) -> None:
    line, said = shipped.lines[0], describe_study(shipped)
    own = [row for row in said.splitlines() if re.split(r" {2,}", row)[:2] == [line["model"], line["label"]]]
    figures, further, by_confidence, by_group, by_position = own
    assert f"{line['kld_mean']:.4g}" in figures and "12 close" in further
    for name in ("tail", "tail_low", "structural_kld", "other_kld", "storage_floor", "kernel_floor"):
        assert f"{line[name]:.3g}" in further, name
    for bucket in line["confidence"]:
        assert f"{bucket['kld_mean']:.3g} ({bucket['flips']:.1%})" in by_confidence
    own_groups = [each for each in shipped.groups if (each["model"], each["label"]) == (line["model"], line["label"])]
    for group in own_groups:
        assert f"{group['group']} ({group['prompts']})" in said and f"{group['kld_mean']:.4g}" in by_group
    along = [each for each in shipped.positions if (each["model"], each["label"]) == (line["model"], line["label"])]
    assert len(along) > 2 and all(f"{each['kld_mean']:.3g}" in by_position for each in along)


@pytest.mark.slow
def test_pairs_of_several_models_are_named_with_theirs(shipped) -> None:
    pair = shipped.pairs[0]
    assert f"{pair.model}: {pair.sentence}" in describe_study(shipped).splitlines()
    one = replace(shipped, rows=[row for row in shipped.rows if row["model"] == pair.model])
    assert pair.sentence in describe_study(one).splitlines()


@pytest.mark.slow
def test_groups_that_have_no_room_are_told(shipped, monkeypatch) -> None:
    monkeypatch.setattr(study_text, "GROUPS", 2)
    groups = {line["group"] for line in shipped.groups}
    assert f"and {len(groups) - 2} more groups: --json has all." in describe_study(shipped)


@pytest.mark.slow
def test_what_full_precision_gets_right_is_told_with_its_interval_though_it_be_none(shipped, monkeypatch) -> None:
    place = {"model": "M", "label": "KIVI 2", "group": "", "asked": 8}
    some = {"reference": 0.5, "reference_low": 0.215, "reference_high": 0.785, "counted": 4}
    none = {"reference": 0.0, "reference_low": 0.0, "reference_high": 0.324, "counted": 0}
    right = (
        {"right": 0.75, "right_low": 0.3, "right_high": 0.954},
        dict.fromkeys(("right", "right_low", "right_high")),
    )
    lines = [{**place, **base, **own} for base, own in zip((some, none), right, strict=True)]
    monkeypatch.setitem(shipped.__dict__, "tasks", lines)
    rows = [re.split(r" {2,}", row.strip()) for row in describe_study(shipped).splitlines()]
    assert ["M", "KIVI 2", "75% of 4", "30% to 95%", "50% of 8 (22% to 78%)"] in rows
    assert ["M", "KIVI 2", "- of 0", "-", "0% of 8 (0% to 32%)"] in rows


@pytest.mark.slow
def test_what_is_recalled_and_where_in_the_text_is_told(shipped, monkeypatch) -> None:
    place = {"model": "M", "label": "KIVI 2", "tokens": 7624.4, "asked": 3}
    recalled = [
        {**place, "words": 6000, "depth": 0.0, "counted": 3, "right": 2 / 3},
        {**place, "words": 6000, "depth": 0.5, "counted": 0, "right": None},
        {**place, "words": 3000, "tokens": 3900.0, "depth": 0.5, "counted": 2, "right": 1.0},
    ]
    monkeypatch.setitem(shipped.__dict__, "recall", recalled)
    along = [{"model": "M", "label": "KIVI 2", "first": first, "kld_mean": first / 1e5} for first in (1024, 2048)]
    monkeypatch.setitem(shipped.__dict__, "positions", along)
    rows = [re.split(r" {2,}", row) for row in describe_study(shipped).splitlines()]
    assert ["model", "lane", "tokens", "0%", "50%"] in rows
    assert ["M", "KIVI 2", "7,624", "2 of 3", "0 of 0 (3 asked)"] in rows
    assert ["M", "KIVI 2", "3,900", "-", "2 of 2"] in rows
    assert ["model", "lane", "from 1,024", "from 2,048"] in rows and ["M", "KIVI 2", "0.0102", "0.0205"] in rows
