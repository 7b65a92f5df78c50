"""The lab's document: small, alone, and served. What it computes is compared in tests/browser/test_lab.py."""

import asyncio
import re

from kvq_core.presets import FOLDER
from scripts.project_site import SITE
from ui.export.lab import lab, script, told
from ui.server.embeds import Embeds

MOST_FIRST_VIEW, MOST_IN_ALL = 4_000_000, 3_000_000  # bytes: of the page, and of all files for it


def test_the_page_is_one_file_that_asks_for_nothing():
    page = lab()
    assert len(page.encode()) < MOST_FIRST_VIEW
    assert not re.search(r"(src|href)=\"", page) and "http" not in script() and "fetch(" not in script()
    assert not re.search(r"^\s*(import|export) ", script(), re.MULTILINE), "modules are joined into one"
    files = [SITE / "lab.html", *(FOLDER / "lab").iterdir()]
    assert sum(file.stat().st_size for file in files) < MOST_IN_ALL


def test_the_server_answers_with_it():
    answer = asyncio.run(Embeds(None).lab(None))
    assert answer.status_code == 200 and answer.body.decode() == lab()


def test_stories_begin_with_a_state_of_heads_that_are_there():
    models = {model["id"]: model for model in told()["models"]}
    steps = [step for story in told()["stories"] for step in story["steps"]]
    assert len(steps) == 11 and {model["kv_heads"] for model in models.values()} == {2, 3}
    for step in steps:
        state = {**told()["base"], **step["state"]}
        own = models[state["model"]]
        assert state["layer"] in own["layers"] and state["head"] < own["kv_heads"] and set(state) == set(told()["base"])
