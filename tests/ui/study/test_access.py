"""A browser's list of its own studies, and the study that ships."""

import json
from types import SimpleNamespace

import pytest

from kvq_core.record.store import open_store
from kvq_core.studies.example import packaged_ids
from ui.study.access import KEPT, Results, demand_open, mine_html, mine_of, take_over
from ui.study.parts import welcome_html
from ui.study.results import answer_html


def entry(id: str, title: str = "5 prompts × 2 lanes") -> dict[str, str]:
    return {"id": id, "title": title, "first": "p0", "key": "k"}


def test_what_another_tab_began_is_taken_over_first_and_once():
    mine, other = [entry("b" * 16), entry("a" * 16)], entry("c" * 16)
    told = json.dumps({"put": [other, {"id": "../x"}, 5], "gone": []})
    assert take_over(mine, told) == take_over(take_over(mine, told), told) == [other, *mine]
    assert "?study=cccccccccccccccc" in mine_html(take_over(None, told))
    many = [entry(f"{at:016x}") for at in range(KEPT)]
    assert take_over(many, told) == [other, *many[:-1]]


def test_nonsense_changes_nothing_of_the_list():
    mine = [entry("b" * 16)]
    for raw in ("", "5", "null", "[]", "{}", '{"put": 5}', '{"put": [], "gone": 5}', '{"put": [], "gone": [{}]}'):
        assert take_over(mine, raw) == mine_of(mine)


@pytest.mark.slow
def test_the_study_that_ships_opens_for_everybody_without_its_models(monkeypatch, tmp_path):
    monkeypatch.setattr("kvq_core.studies.cells.outline", lambda *_: pytest.fail("a model is looked for"))
    monkeypatch.setattr("ui.study.access.settings", lambda: SimpleNamespace(public=True))
    services = SimpleNamespace(store=open_store(str(tmp_path / "store")))
    (id,) = packaged_ids()
    demand_open(services, id, "")
    found = Results(services).read(id)
    assert found.id == id and found.done == len(found.plan.cells) and len(found.models) == 2
    assert f"study {id} · 12 prompts · 8 lanes" in answer_html(found, found.models[0])
    assert f'href="?study={id}"' in welcome_html() and not (tmp_path / "store").exists()
