"""The prompt's words and the answer's replay as pages of their own: the page's own data, for its own scripts."""

import base64
import hashlib
import html
import json
import re

import numpy as np
import pytest

from kvq_core.analysis.looks import most_steps_at
from kvq_core.errors import SpecError
from kvq_core.record.store import open_store
from kvq_core.record.subset import TOGETHER, best
from tests.support.ui_record_factory import make_run
from ui.export.__main__ import main
from ui.export.embed import MOST_BYTES, embed
from ui.export.framed import FRAMED
from ui.html.figure_menu import UNKEPT
from ui.html.reading_data import reading_data
from ui.selection import Selection
from ui.service.access import open_to_all
from ui.service.services import Services
from ui.views.attention import compute as attention


def part_of_page(page: str, name: str) -> dict:
    return json.loads(html.unescape(re.search(rf'id="{name}"[^>]*>(.*?)</div>', page, re.S)[1]))


@pytest.mark.parametrize("view", FRAMED)
def test_words_and_replay_stand_alone_with_the_data_that_the_page_draws_them_from(view):
    record, arrays = make_run(lanes=3)
    page = embed(record, arrays, view, at={"layer": 7, "head": 4, "token": 9}, lane=record.lanes[1].label)
    assert len(page.encode()) < MOST_BYTES and "plotly" not in page.lower()
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    script = re.search(r"<script>(.*)</script>", page, re.S)[1]
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in page
    drawn = most_steps_at(record, arrays, 7, 4)
    assert part_of_page(page, "reading-data") == reading_data(*drawn, 7, 4, [0, 1, 2])
    answer = part_of_page(page, "frame-data")
    for at, sent in enumerate(answer["lanes"]):
        kld = np.frombuffer(base64.b64decode(sent["kld"]["bdata"]), "<f4")
        assert (kld == np.asarray(arrays[f"lane/{at}/kld"])).all()
        assert sent["kld_mean"] == record.lanes[at].metrics.kld_mean
    assert 'data-token="9" data-lane="1"' in page and f'data-view="{view}"' in page
    with pytest.raises(SpecError, match="lane = 'none' is not allowed; the lanes of run feedfacefeedface: "):
        embed(record, arrays, view, lane="none")


def test_words_that_were_not_kept_are_refused_and_the_replay_is_drawn_without_them():
    record, arrays = make_run(lanes=2)
    asked = {"layer": 3, "head": 0, "token": 4}
    with pytest.raises(SpecError, match="nothing for the view words at layer 3, query head 0, token 4"):
        embed(record, arrays, "words", at=asked)
    assert 3 not in part_of_page(embed(record, arrays, "replay", at=asked), "reading-data")["steps"]


@pytest.mark.slow
def test_of_many_lanes_the_one_that_is_asked_for_is_among_those_shown():
    record, arrays = make_run(lanes=10)
    last = next(at for at in range(10) if at not in best(record))
    page = embed(record, arrays, "replay", lane=record.lanes[last].label)
    shown = [lane["label"] for lane in part_of_page(page, "reading-data")["lanes"]]
    assert len(shown) == TOGETHER and record.lanes[last].label in shown


def test_the_menu_of_words_from_memory_alone_has_no_code():
    record, arrays = make_run(lanes=2)
    drawn = attention(record, arrays, Selection(7, 4, 9)).html["words-read"]
    assert 'data-embed="words" data-selected data-read' in drawn and 'data-embed="replay"' in drawn
    look = record.model_copy(update={"id": ""})
    record = record.model_copy(update={"capture": record.capture.model_copy(update={"layers": [4]})})
    record._replayed = ((look, arrays),)
    drawn = attention(record, arrays, Selection(7, 4, 9)).html["words-read"]
    assert 'data-embed="words"' not in drawn and UNKEPT in drawn and 'data-embed="replay"' in drawn


@pytest.mark.slow
def test_the_command_draws_what_was_looked_at_since_as_the_server_does(tmp_path, monkeypatch, capsys):
    record, arrays = make_run(lanes=2)
    record.spec["capture"] = {"detail": "full"}
    own = record.capture.model_copy(update={"layers": [4]})
    monkeypatch.setenv("KVQ_STORE", str(tmp_path))
    store = open_store()
    store.save(record.model_copy(update={"capture": own}), arrays)
    asked = [record.id, "--view", "words", "--layer", "7", "--head", "4", "--token", "9"]
    assert main(asked) == 2 and "nothing for the view words at layer 7" in capsys.readouterr().err
    store.save(record.model_copy(update={"id": "1" * 16, "parent": record.id}), arrays)
    assert main(asked) == 0
    page = capsys.readouterr().out
    services = Services(store, None, None)
    assert page == embed(*open_to_all(services, record.id), "words", at={"layer": 7, "head": 4, "token": 9}) + "\n"
    assert 8 in part_of_page(page, "reading-data")["steps"]
