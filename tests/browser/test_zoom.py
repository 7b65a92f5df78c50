"""Axes of figures over tokens when some of them are brushed."""

import pytest

from ui.html.scripts import part

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

AXES = f"""(spans) => {{ {part("numbers")} {part("interval")} {part("span")} {part("along")}
    read = {{ prompt: 485 }};
    return spans.map((brushed) => {{
        span = brushed;
        const {{ yaxis, annotations }} = zoomed({{ yaxis: {{ autorange: "reversed" }} }}, {{ axis: "y", of: "step" }});
        return [yaxis.range, yaxis.tickvals ?? null, (annotations ?? []).map(({{ text }}) => text)];
    }});
}}"""


def test_a_few_tokens_have_a_tick_each_and_the_first_one_was_read_by_no_step(browser):
    page = browser.new_page()
    few, one, none, many = page.evaluate(AXES, [[10, 12], [63, 63], [0, 0], [0, 40]])
    page.close()
    assert few == [[11.5, 8.5], [9, 10, 11], []] and one == [[62.5, 61.5], [62], []]
    assert none == [[-0.5, -1.5], [], ["Not looked at in these tokens"]]
    assert many == [[39.5, -0.5], None, []]
