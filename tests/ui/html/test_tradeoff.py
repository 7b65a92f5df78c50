"""Names in the answer's plot: none covers a point or another name, and in a crowd some go without."""

import re

from kvq_core.analysis.verdict import verdict
from tests.support.ui_record_factory import make_run
from ui.html.tradeoff import HEIGHT, LINE, tradeoff


def plotted(ratios: list[float], klds: list[float], labels: tuple[str, ...] = ()) -> tuple[str, list[float]]:
    """The plot of lanes at these places, and the heights of its names in px."""
    record, arrays = make_run(lanes=len(ratios), labels=labels)
    for at, (lane, ratio, kld) in enumerate(zip(record.lanes, ratios, klds, strict=True)):
        assert lane.memory is not None
        record.lanes[at] = lane.model_copy(update={"memory": lane.memory.model_copy(update={"kv_ratio": ratio})})
        arrays[f"lane/{at}/kld"] = 0 * arrays[f"lane/{at}/kld"] + kld
    html = tradeoff(record, arrays, "")
    return html, [float(top) for top in re.findall(r'point-label [^>]*top:(\d+)px"', html)]


def test_lanes_apart_are_all_named():
    html, tops = plotted([0.1, 0.3, 0.6, 0.9], [0.5, 0.1, 0.02, 0.003])
    assert len(tops) == 4 and html.count('class="point lane-') == 4
    assert tops == sorted(tops, reverse=True), "from the least KLD, which is at the bottom, up"


def test_in_a_crowd_no_name_covers_another_and_every_point_tells_its_own():
    html, tops = plotted([0.5 + 0.004 * at for at in range(8)], [0.05 * 1.02**at for at in range(8)])
    assert 1 <= len(tops) < 8 and all(0 <= top <= HEIGHT for top in tops)
    for side in ("left", "right"):
        found = sorted(float(top) for top in re.findall(rf'point-label {side}"[^>]*top:(\d+)px', html))
        assert all(below - above >= LINE - 1 for above, below in zip(found, found[1:], strict=False))
    assert [f'title="Lane {at}: ' in html for at in range(8)] == [True] * 8


def test_no_ground_calls_a_point_another_tier_than_its_badge():
    """The axis is KLD alone, which is not the whole rule: there are no bands, and a point's title has its verdict."""
    record, arrays = make_run(lanes=1)
    arrays["lane/0/kld"] = 0 * arrays["lane/0/kld"] + 0.005
    word = verdict(record, arrays, 0).word
    assert word != "close", "by its flips"
    html = tradeoff(record, arrays, "")
    assert f'title="Lane 0: {word}"' in html and "close" not in html
