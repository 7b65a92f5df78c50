"""A lane's damage part by part: what the parts leave, and what they gain twice, has a name and a bar of its own."""

import re

import pytest

from kvq_core.analysis.why import Cause, Why
from ui.html.waterfall import waterfall_html


@pytest.mark.parametrize(
    ("values", "row"), [(0.02, ("not explained", "14.0", "0.014")), (0.05, ("explained twice", "16.0", "0.016"))]
)
def test_what_parts_leave_and_what_they_gain_twice_are_told_apart(values: float, row: tuple[str, str, str]) -> None:
    gains = {"keys in fp16": 0.066, "values in fp16": values}
    causes = tuple(Cause(label, "tensors", 0.1 - gain, gain, 0.001, 1000) for label, gain in gains.items())
    html = waterfall_html(0, Why("KIVI", 0.1, 0.1, causes))
    found = re.findall(
        r'<tr class="rest"><th scope="row">([^<]*)</th>.*?left:0.0%;width:([\d.]+)%.*?<td>([^<]*)</td></tr>', html
    )
    assert found == [row]
