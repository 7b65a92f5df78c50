"""The picker of a lane's method: the often compared ones in sight, the others folded, each method once."""

import json
import re

import pytest

from kvq_core.methods import OFTEN, methods
from ui.form.editor import editor
from ui.form.lanes import add_lane
from ui.form.lanes_panel import apply_change, place_editor
from ui.form.method_picker import first_line, method_picker
from ui.form.rules import add_rule
from ui.html.escape import safe

METHOD = r'data-method="(\w+)"'
GROUP = r'<details class="method-group"><summary>(\w+) <small>(\d+)</small></summary>(.*?)</details>'


def test_the_often_compared_are_in_sight_and_the_others_folded_each_once() -> None:
    html = method_picker("kivi", "method")
    groups = re.findall(GROUP, html)
    assert re.findall(METHOD, html.partition('<details class="method-group">')[0]) == list(OFTEN)
    assert [group for group, *_ in groups] == ["Papers", "Deployed", "Baselines"]
    assert all(len(re.findall(METHOD, buttons)) == int(count) for _, count, buttons in groups)
    assert sorted(re.findall(METHOD, html)) == sorted(methods())
    assert "<details open" not in html and " open>" not in html


@pytest.mark.parametrize(
    "name, group", [("squat", "Papers"), ("bf16", "Deployed"), ("gear", "Baselines"), ("per_token", "Baselines")]
)
def test_a_method_is_in_the_group_it_comes_from(name, group) -> None:
    groups = {group: buttons for group, _, buttons in re.findall(GROUP, method_picker("kivi", "method"))}
    assert [found for found, buttons in groups.items() if f'data-method="{name}"' in buttons] == [group]


@pytest.mark.parametrize("name", ["kivi", "zipcache"])
def test_the_method_of_the_lane_is_named_and_marked(name) -> None:
    html, title = method_picker(name, "rules.1.method"), safe(methods()[name].title)
    assert f"<span>Method</span><b>{title}</b></summary>" in html
    assert f'<input type="hidden" data-place="rules.1.method" value="{name}">' in html
    assert html.count("aria-current") == 1 and f'data-method="{name}" aria-current="true"' in html


def test_every_method_says_in_one_line_what_it_does() -> None:
    html = method_picker("kivi", "method")
    for name, cls in methods().items():
        assert f"<b>{safe(cls.title)}</b> <small>{safe(first_line(cls))}</small></button>" in html, name


def test_each_rule_of_a_lane_has_its_own_and_a_choice_in_it_is_of_that_rule() -> None:
    lanes = add_lane([])
    lanes = [add_rule(lanes[0])]
    opened = place_editor(lanes[0]["uid"], 1)
    before = [rule["method"] for rule in lanes[0]["rules"]]
    assert f'data-place="rules.1.method" value="{before[1]}"' in editor(lanes, opened)
    values = {"rules.1.method": "gear"}
    told = {"uid": lanes[0]["uid"], "values": values, "do": None, "lane": None, "revision": opened["revision"]}
    changed, reopened, _, _, html, *_ = apply_change(json.dumps(told), lanes, opened)
    assert [rule["method"] for rule in changed[0]["rules"]] == [before[0], "gear"]
    assert reopened["rule"] == 1 and 'data-place="rules.1.method" value="gear"' in html
