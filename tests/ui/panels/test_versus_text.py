"""Two runs beside each other, in words."""

import re

from kvq_core.analysis.two_runs import versus
from tests.support.ui_record_factory import make_run
from ui.panels.versus import SHOWN, versus_html


def shown(changed: dict) -> tuple[str, str]:
    """What differs, before and within its fold."""
    record, arrays = make_run(2)
    other = record.model_copy(update={"id": "f" * 16, "spec": {**record.spec, **changed}})
    html = versus_html(record, other, versus(record, other), (arrays, arrays), "https://x.example/?run=1&vs=2", "")
    first, _, folded = html.partition("What differs")[2].partition("<details>")
    return first, folded


def test_of_many_fields_that_differ_some_are_folded():
    fields = {f"field {at}": at for at in range(SHOWN + 3)}
    first, folded = shown(fields)
    rows = [re.findall(r'<th scope="row">(.*?)</th>', part) for part in (first, folded)]
    assert [len(each) for each in rows] == [SHOWN, 3] and set(rows[0] + rows[1]) == set(fields)
    assert "<summary>3 more fields</summary>" in folded


def test_of_few_none_is():
    first, folded = shown({"seed": 7})
    assert "seed" in first and folded == ""
