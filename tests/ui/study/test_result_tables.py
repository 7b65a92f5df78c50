"""Tables of a study's result on the page, of the study that ships."""

import re

import pytest

from kvq_core.studies.example import packaged_ids, packaged_studies
from kvq_core.studies.stored_plan import kept_plan
from kvq_core.studies.study import stored_study
from ui.html.numbers import percent, significant
from ui.study.results import MORE, drawing


@pytest.mark.slow
def test_a_lanes_tokens_are_told_by_confidence_and_by_structure() -> None:
    store, (id,) = packaged_studies(), packaged_ids()
    result = stored_study(kept_plan(id, store), store)
    model = result.models[-1]
    lines = [line for line in result.lines if line["model"] == model]
    html = drawing(result, model).html["study-tokens"]
    assert ["study-tokens"] in MORE
    rows = re.findall(r"<tr>.*?</tr>", html)[1:]
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows, strict=True):
        kinds = [*(bucket["kld_mean"] for bucket in line["confidence"]), line["structural_kld"], line["other_kld"]]
        assert re.findall(r"<b>(.*?)</b>", row) == [significant(kld) for kld in kinds]
        flips = [f"{percent(bucket['flips'], 1)} flips" for bucket in line["confidence"]]
        assert re.findall(r"<small>(.*?)</small>", row) == flips
