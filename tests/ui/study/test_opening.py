"""A browser's list of its own studies."""

import json

from ui.study.opening import KEPT, mine_html, mine_of, taken_over


def entry(id: str, title: str = "5 prompts × 2 lanes") -> dict[str, str]:
    return {"id": id, "title": title, "first": "p0", "key": "k"}


def test_what_another_tab_began_is_taken_over_first_and_once():
    mine, other = [entry("b" * 16), entry("a" * 16)], entry("c" * 16)
    told = json.dumps({"put": [other, {"id": "../x"}, 5], "gone": []})
    assert taken_over(mine, told) == taken_over(taken_over(mine, told), told) == [other, *mine]
    assert "?study=cccccccccccccccc" in mine_html(taken_over(None, told))
    many = [entry(f"{at:016x}") for at in range(KEPT)]
    assert taken_over(many, told) == [other, *many[:-1]]


def test_nonsense_changes_nothing_of_the_list():
    mine = [entry("b" * 16)]
    for raw in ("", "5", "null", "[]", "{}", '{"put": 5}', '{"put": [], "gone": 5}', '{"put": [], "gone": [{}]}'):
        assert taken_over(mine, raw) == mine_of(mine)
