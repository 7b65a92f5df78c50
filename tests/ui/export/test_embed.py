"""One figure as a page of its own: small, sealed, saying what its marks hold, and open where its run is."""

import asyncio
import base64
import hashlib
import html
import json
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.requests import Request

from kvq_core.cli.embed import NAMES
from kvq_core.cli.embed import READ as TO_READ
from kvq_core.cli.embed import SELECTED as IN_DEPTH
from kvq_core.cli.main import main as cli
from kvq_core.errors import SpecError
from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.record.store import open_store
from scripts.project_site import PAGES, SITE, site
from tests.support.ui_record_factory import make_run
from ui.export.__main__ import main
from ui.export.card import answer_line, card
from ui.export.embed import MOST_BYTES, embed
from ui.export.framed import FRAMED
from ui.export.hover import marks, strongest
from ui.export.picture import png_card
from ui.export.selected import SELECTED
from ui.export.svg import svg
from ui.export.views import VIEWS
from ui.html.figure_menu import EMBEDDED, PICKED, READ, UNKEPT
from ui.html.figure_menu import SELECTED as OFFERED
from ui.selection import Selection
from ui.server.embeds import Embeds
from ui.service.services import Services
from ui.views.damage import compute as where
from ui.views.view import Slot

SHIPPED = list(dict.fromkeys([example_ids()["five-ideas"], *(run.id for run in packaged_store().list())]))


@pytest.mark.slow
@pytest.mark.parametrize("run", SHIPPED)
def test_every_view_of_a_shipped_run_is_small_and_fetches_nothing(run):
    stored = packaged_store().load(run)
    for view in VIEWS:
        page = embed(*stored, view)
        assert len(page.encode()) < MOST_BYTES and "plotly" not in page.lower()
        script = re.search(r"<script>(.*)</script>", page, re.S)[1]
        seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{seal}'" in page
        assert not re.search(r"(src|href)=\"(?!data:)", page)
        assert json.loads(re.search(r'id="marks">(.*?)</script>', page, re.S)[1])


@pytest.mark.slow
def test_what_a_mark_says_is_what_is_drawn_there():
    record, arrays = make_run(lanes=3)
    figure = VIEWS["rate"].draw(record, arrays)
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg(figure))
    found = marks(figure)
    assert circles and {(float(x), float(y)) for x, y in circles} <= {(x, y) for x, y, _ in found}
    cells = marks(VIEWS["keys"].draw(record, arrays))
    heat = arrays["lane/0/key_error"]
    assert len(cells) == 3 * np.asarray(heat).size
    for x, y, said in cells[:3]:
        layer, head, value = re.search(r"layer (\d+), .*?(\d+): ‖ΔK‖/‖K‖ (.*) %", said).groups()
        assert float(value) == pytest.approx(100 * float(heat[int(layer), int(head)]), rel=1e-2), (x, y, said)


@pytest.mark.parametrize("view", ["rate", "kld"])
def test_a_mark_is_a_lanes_own_and_names_quantity_and_unit(view):
    record, arrays = make_run(lanes=3)
    none = record.lanes[0].metrics.model_copy(update={"kld_mean": 0.0})
    exact = record.lanes[0].model_copy(update={"metrics": none})
    figure = VIEWS[view].draw(record.model_copy(update={"lanes": [exact, *record.lanes[1:]]}), arrays)
    found = [said for *_, said in marks(figure)]
    assert not any(said.startswith("Pareto front") for said in found), "its corners lie on the lanes' points"
    flips = [said for said in found if ", flip" in said]
    assert all(re.search(r": (mean )?KLD [\d.e-]+ nats$", said) for said in found if said not in flips)
    assert not any("nats" in said for said in flips), "how high they stand is no value"
    assert bool(flips) == (view == "kld") and (view == "kld" or found[0].endswith(": mean KLD 0 nats"))


def test_every_picture_is_offered_by_the_menu_of_its_figure_and_named_by_the_command():
    assert sorted(EMBEDDED.values()) == sorted(VIEWS) == sorted(re.split(", | or ", NAMES))
    assert sorted(OFFERED.values()) == sorted(SELECTED) == sorted(re.split(", | or ", IN_DEPTH))
    assert sorted(READ) == sorted(FRAMED) == sorted(re.split(", | or ", TO_READ))


@pytest.mark.slow
def test_a_menu_offers_no_frame_of_what_a_picker_shows_in_its_figures_place():
    at, slot = Selection(0, 0, 1), Slot("grid-key", "Keys")
    record, arrays = make_run(lanes=2)
    assert "data-embed" in slot.html(where(record, arrays, at, "relative", False))
    menu = slot.html(where(record, arrays, at, "score", False))
    assert "data-take" in menu and "data-embed" not in menu and PICKED in menu, "and says why"
    scores = Slot("score-map", "Scores")
    assert 'data-embed="scores" data-selected' in scores.html(where(record, arrays, at, "relative", False))
    arrays["lane/0/delta_offset"] = np.zeros((30, 9, 30), np.float32)
    assert PICKED in scores.html(where(record, arrays, at, "relative", True))


@pytest.mark.slow
def test_a_menu_offers_no_frame_of_what_is_in_memory_alone():
    record, arrays = make_run(lanes=2)
    look = record.model_copy(update={"id": ""})
    record = record.model_copy(update={"capture": record.capture.model_copy(update={"layers": [4]})})
    record._replayed = ((look, arrays),)
    menus = [
        Slot(name, "Of a layer").html(where(record, arrays, Selection(layer, 0, 9), "relative", False))
        for layer in (4, 5)
        for name in ("score-map", "attention-rows")
    ]
    assert [UNKEPT in menu for menu in menus] == [False, False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("view", [view for view in SELECTED if "spread" not in view])
def test_what_is_selected_is_drawn_where_it_is_asked_for(view):
    record, arrays = make_run(lanes=3)
    page = embed(record, arrays, view, at={"layer": 7, "head": 4, "token": 9})
    assert len(page.encode()) < MOST_BYTES and json.loads(re.search(r'id="marks">(.*?)</script>', page, re.S)[1])
    where = {
        "scores": "(layer 7, query head 4)",
        "attention": "(layer 7, head 4, step 8)",
        "key-channels": "(layer 7, KV head 1)",
        "value-channels": "(layer 7, KV head 1)",
        "spectra": "(layer 7, KV head 1",
        "pairs": "(layer 7, KV head 1)",
    }
    assert where.get(view, "<svg") in page


def test_a_place_that_is_none_or_was_not_kept_is_refused_in_a_line():
    record, arrays = make_run(lanes=2)
    with pytest.raises(SpecError, match="layer = 30 is not allowed; run feedfacefeedface has layers 0 to 29"):
        embed(record, arrays, "scores", at={"layer": 30})
    kept = record.model_copy(update={"capture": record.capture.model_copy(update={"distribution_layers": [0, 5]})})
    with pytest.raises(SpecError, match=r"layer = 3 is not allowed .*; run \w+ has layers 0, 5\."):
        embed(kept, arrays, "key-spread", at={"layer": 3})
    with pytest.raises(SpecError, match="nothing for the view attention at layer 3, query head 0, token 4"):
        embed(record, arrays, "attention", at={"layer": 3, "head": 0, "token": 4})


def test_of_many_cells_the_strongest_of_each_patch_are_said():
    values = np.arange(100.0).reshape(10, 10)
    values[0, 0], values[9, 9] = -500, np.nan
    found = list(strongest(values, 25))
    assert len(found) == 25 and found[0] == (0, 0) and found[-1] == (9, 8)
    assert len(list(strongest(values, 100))) == 99


@pytest.mark.parametrize("view", ["confidence", "rate-output"])
def test_a_picture_names_its_lanes(view):
    record, arrays = make_run(lanes=3)
    text = svg(VIEWS[view].draw(record, arrays))
    assert all(lane.label in text for lane in record.lanes)


def test_a_label_is_no_markup_and_no_end_of_the_script():
    record, arrays = make_run(lanes=2)
    evil = record.lanes[0].model_copy(update={"label": "</script><b>"})
    page = embed(record.model_copy(update={"lanes": [evil, *record.lanes[1:]]}), arrays, "rate")
    assert "</script><b>" not in page and html.escape("<b>") in page
    said = json.loads(re.search(r'id="marks">(.*?)</script>', page, re.S)[1])
    assert any("</script><b>" in text for *_, text in said), "as text the script writes it"


def test_what_cannot_be_drawn_is_refused_in_a_line():
    record, arrays = make_run(lanes=2)
    with pytest.raises(SpecError, match="view = 'none' is not allowed; give one of kld, rate"):
        embed(record, arrays, "none")
    with pytest.raises(SpecError, match="has nothing for the view keys"):
        embed(record, {name: x for name, x in arrays.items() if "key_error" not in name}, "keys")


def answered(services: Services, query: str):
    scope = {"type": "http", "method": "GET", "path": "/embed", "query_string": query.encode(), "headers": []}
    scope |= {"server": ("here", 80), "scheme": "http", "root_path": ""}
    return asyncio.run(Embeds(services).answer(Request(scope)))


@pytest.mark.slow
def test_the_address_draws_what_may_be_opened(tmp_path, sample_run, monkeypatch):
    services = Services(open_store(str(tmp_path)), None, None)
    assert answered(services, f"run={SHIPPED[0]}&view=bytes").body.decode().count("<svg") == 1
    assert f'href="http://here/?run={SHIPPED[0]}"' in answered(services, f"run={SHIPPED[0]}").body.decode()
    for query, said in (
        (f"run={SHIPPED[0]}&view=%3Cb%3E", "&lt;b&gt;"),
        ("run=%3Cb%3E", "not valid"),
        ("", "not valid"),
    ):
        refused = answered(services, query)
        assert refused.status_code == 404 and said in refused.body.decode()
    place = f"run={SHIPPED[0]}&view=spectra&at="
    assert "(layer 3, KV head 1" in answered(services, f"{place}3.4.5").body.decode()
    assert "give layer, query head and token, as 12.6.25" in answered(services, f"{place}3.4").body.decode()
    services.store.save(*sample_run(id="1" * 16))
    monkeypatch.setenv("KVQ_MODELS", "smollm2-135m-instruct-q4_1")  # a public instance
    assert answered(services, f"run={'1' * 16}").status_code == 404
    services.store.share("1" * 16)
    assert answered(services, f"run={'1' * 16}&view=bytes").status_code == 200


def test_the_command_writes_the_page_or_one_line(capsys):
    assert main([SHIPPED[0], "--view", "bytes"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert main(["0" * 16]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and len(err.splitlines()) == 1
    with pytest.raises(SystemExit):
        main([SHIPPED[0], "--view", "none"])
    assert capsys.readouterr().err.startswith("usage: python -m kvq_core embed "), "the command that was typed"


@pytest.mark.long("page", sample=0)
@pytest.mark.slow
def test_the_command_embed_hands_over_to_the_pages_program(capfd):
    assert cli(["embed", SHIPPED[0], "--view", "rate", "--link", "https://example.org"]) == 0
    page = capfd.readouterr().out
    assert page == embed(*packaged_store().load(SHIPPED[0]), "rate", "https://example.org") + "\n"
    assert cli(["embed", SHIPPED[0], "--view", "spectra", "--layer", "3", "--head", "0"]) == 0
    assert "(layer 3, KV head 0" in capfd.readouterr().out
    assert cli(["embed", SHIPPED[0], "--view", "none"]) == 2 and "choose from" in capfd.readouterr().err


@pytest.mark.slow
def test_the_card_as_png_has_every_shape_of_the_card():
    record, arrays = make_run(lanes=8)
    image = Image.open(BytesIO(png_card(record, arrays, "https://example.org")))
    assert image.size == (1200, 630) and len(image.getcolors(1 << 20)) > 20
    assert answer_line(record, arrays) in card(record, arrays, "").replace("&#x27;", "'")


@pytest.mark.slow
def test_the_projects_site_shows_four_runs_that_ship_and_fetches_nothing():
    index = (SITE / "index.html").read_text(encoding="utf-8")
    for run in (example_ids()[example] for example in PAGES):
        page = (SITE / f"{run}.html").read_text(encoding="utf-8")
        assert run in SHIPPED and f'href="{run}.html"' in index and f"Run {run}" in page
        assert len(page.encode()) < 600_000 and not re.search(r"(src|href)=\"(?!data:)", page)
    for name, data in site().items():
        assert (SITE / name).read_bytes() == data, f"{name}: make site writes it again"
    assert {file.name for file in SITE.iterdir()} == set(site())
    first = Path("README.md").read_text(encoding="utf-8").split("## ")[0]
    assert len(PAGES) == 4 and "/index.html)" in first and f"/{example_ids()['five-ideas']}.html)" in first
