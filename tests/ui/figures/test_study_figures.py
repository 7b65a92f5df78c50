"""A study's figures with few and with many lanes: what carries a name can be read, the rest is told by a hover."""

import math
from itertools import combinations
from types import SimpleNamespace

import pandas as pd
import pytest

from ui.figures.forest import forest
from ui.figures.pareto import HEIGHT, LINE, MARGIN, pareto
from ui.figures.prompt_map import SLANTED, prompt_map
from ui.figures.recall import NAME, kld_by_position
from ui.study.results import LONG, ROWS, TALL, rows_for

LANES = (3, 64)


def line(at: int) -> dict:
    """A lane of a study: of every sixteen the last stands apart, the others in a cloud."""
    kld = 0.5 * 0.2 ** (at // 16) if at % 16 == 15 else 0.7 + 0.005 * at
    ends = {"kld_low": kld / 1.3, "kld_high": kld * 1.3, "kld_p95": kld * 1.2, "worst_kld": kld * 1.4}
    floors = {"storage_floor": 4e-7, "kernel_floor": None}
    named = {
        "model": "m",
        "label": f"a lane numbered {at}",
        "worst_prompt": "p",
        "prompts": 12,
    }
    return {
        "tier": "close",
        "tier_reason": "KLD",
        **named,
        **ends,
        **floors,
        "kld_mean": kld,
        "kv_ratio": 0.15 + 0.012 * at,
    }


def study(count: int):
    lines = [line(at) for at in range(count)]
    cells = [(f"p{row}", held["label"], held["kld_mean"] * (1 + row)) for held in lines for row in range(3)]
    table = pd.DataFrame(cells, columns=["prompt", "lane", "kld_mean"]).assign(model="m")
    positions = [{**held, "first": first} for held in lines for first in (1, 2, 4)]
    prompts = [SimpleNamespace(id=f"p{row}", prompt="x") for row in range(3)]
    plan = SimpleNamespace(prompts=prompts)
    return SimpleNamespace(lines=lines, table=table, positions=positions, plan=plan, one_reference=False)


def test_the_forest_of_many_stands_alone():
    assert rows_for(TALL) is ROWS and rows_for(TALL + 1) is LONG
    few, many = (forest(study(count), "m").layout.height for count in (TALL, TALL + 1))
    assert many < few, "its rows are lower"


@pytest.mark.parametrize("count", LANES)
def test_names_beside_points_are_apart_from_each_other_and_within(count):
    figure = pareto(study(count), "m")
    names = [note for note in figure.layout.annotations if note.xanchor in ("left", "right")]
    assert names and (count > 10 or len(names) == count)
    low, high = figure.layout.yaxis.range
    px = (HEIGHT - MARGIN["t"] - MARGIN["b"]) / (high - low)
    boxes = [(note.x, note.xanchor, (high - note.y) * px - note.yshift) for note in names]
    for (_, side, top), (_, other_side, other) in combinations(boxes, 2):
        assert side != other_side or abs(top - other) >= LINE - 0.01
    for note in names:
        assert note.xanchor == "left" or note.x >= 0.3 * figure.layout.xaxis.range[1], "no name over the axis"


def test_files_scored_against_one_reference_stand_together_by_weights_and_cache():
    found = study(3)
    sizes = {"Model Q4_K_M": 100_000_000, "Model Q8_0": 160_000_000}
    found.lines = [
        {**held, "model": model, "kld_mean": held["kld_mean"] * share, "total_bytes": weights + 10**6 * at}
        for share, (model, weights) in zip((1, 0.3), sizes.items(), strict=True)
        for at, held in enumerate(found.lines)
    ]
    found.models, found.one_reference = list(sizes), True
    figure = pareto(found, "Model Q8_0")
    points = [trace for trace in figure.data if trace.mode == "markers" and not trace.showlegend]
    assert [trace.x[0] for trace in points] == pytest.approx([0.1, 0.101, 0.102, 0.16, 0.161, 0.162])
    marks = {trace.name: trace.marker.symbol for trace in figure.data if trace.showlegend}
    assert [trace.marker.symbol for trace in points] == [marks[model] for model in sizes for _ in range(3)]
    assert len(set(marks.values())) == 2 and figure.layout.xaxis.title.text == "weights and cache, GB"
    (front,) = (trace for trace in figure.data if trace.mode == "lines")
    assert list(front.x) == pytest.approx([0.1, 0.16])


@pytest.mark.parametrize("count", LANES)
def test_columns_have_names_while_there_is_room(count):
    figure = prompt_map(study(count), "m")
    assert figure.layout.xaxis.showticklabels is (count <= SLANTED)
    assert "a lane numbered 2" in figure.data[0].customdata[0][2], "a hover names the lane"


@pytest.mark.parametrize("count", LANES)
def test_names_at_the_ends_of_curves_are_a_line_apart(count):
    figure = kld_by_position(study(count), "m")
    low, high = figure.layout.yaxis.range
    px = (figure.layout.height - 58) / (high - low)
    tops = [(high - math.log10(trace.y[-1])) * px for trace in figure.data if trace.text[-1]]
    assert tops and all(abs(one - other) >= NAME - 0.01 for one, other in combinations(tops, 2))
    closest = min(study(count).lines, key=lambda held: held["kld_mean"])["label"]
    assert all(trace.text[-1] for trace in figure.data if closest in trace.hovertemplate), "the closest has its name"
