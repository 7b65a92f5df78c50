"""Words, sliders and figures agree: a tour step sets them at once, and a drawing that was overtaken is not shown."""

from types import SimpleNamespace

import gradio as gr
import pytest

from kvq_core.pipeline.examples import packaged_store
from kvq_core.record.store import open_store
from tests.support.ui_record_factory import make_run
from ui.html.escape import safe
from ui.layout import build_ui
from ui.panels.learn import place
from ui.panels.tour import tour
from ui.selection import Selection, selection_html
from ui.service.services import Services
from ui.views.selectors import create_selectors
from ui.views.tabs import OnPage, create_views, draw_ahead, draw_open, fit, fit_outputs

RECORD, ARRAYS = make_run(lanes=2)
SHOWN = {"run": RECORD.id}
SERVICES = SimpleNamespace(records=SimpleNamespace(drawn=lambda shown: (RECORD, ARRAYS)))


@pytest.fixture
def panel():
    with gr.Blocks():
        return create_views(create_selectors())


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return build_ui(Services(open_store(str(tmp_path_factory.mktemp("store"))), None, None))


def held(panel):
    """What the pickers of all views hold at first."""
    return [picker.value for picker in panel.pickers]


def sent(panel, outputs) -> dict[str, str]:
    """HTML of the views that an answer changes, by name; without the selection's words, if they are in it."""
    parts = list(outputs[-len(panel.outputs) :])
    found = {}
    for view in panel.views:
        mine, parts = parts[: len(view.outputs)], parts[len(view.outputs) :]
        if mine[0] != gr.skip():
            found[view.name] = "".join(mine)
    return found


def view_of(panel, name):
    return next(view for view in panel.views if view.name == name)


def meanwhile(view, what):
    """Let ``what()`` happen once, while the view is computed."""
    compute, todo = view.compute, [what]

    def interrupted(*args):
        if todo:
            todo.pop()()
        return compute(*args)

    view.compute = interrupted


@pytest.mark.slow
def test_a_drawing_for_the_selection_before_is_not_shown(panel):
    """The layer moves while a slow machine still draws for the one before: only the newer drawing may arrive."""
    draw, on_page, later = draw_open(panel, SERVICES), OnPage(), []
    meanwhile(view_of(panel, "damage"), lambda: later.append(draw(SHOWN, "damage", on_page, 7, 1, 5, *held(panel))))
    before = draw(SHOWN, "damage", on_page, 3, 1, 5, *held(panel))
    assert before[0] == gr.skip() and sent(panel, before) == {}
    assert later[0][0] == selection_html(RECORD, ARRAYS, Selection(7, 1, 5))
    assert "layer 7, KV head 0" in sent(panel, later[0])["damage"]
    again = draw(SHOWN, "damage", on_page, 7, 1, 5, *held(panel))
    assert sent(panel, again) == {} and again[0] == later[0][0]  # it is there already


@pytest.mark.slow
def test_a_selection_that_comes_back_is_drawn_again(panel):
    draw, on_page, later = draw_open(panel, SERVICES), OnPage(), []
    for layer in (3, 7, 3):
        later.append(sent(panel, draw(SHOWN, "damage", on_page, layer, 1, 5, *held(panel))))
    assert ["layer 3, KV head 0" in found["damage"] for found in later] == [True, False, True]


@pytest.mark.slow
def test_the_same_view_asked_for_twice_is_drawn_once(panel):
    """The tour sets the view and the selection: two events, one drawing."""
    draw, on_page, later = draw_open(panel, SERVICES), OnPage(), []
    meanwhile(view_of(panel, "damage"), lambda: later.append(draw(SHOWN, "damage", on_page, 3, 1, 5, *held(panel))))
    first = draw(SHOWN, "damage", on_page, 3, 1, 5, *held(panel))
    assert "damage" in sent(panel, first) and sent(panel, later[0]) == {} and later[0][0] == first[0]


@pytest.mark.slow
def test_a_view_that_is_pointed_at_is_drawn_ahead_for_the_selection_there_is(panel):
    """Once, and not over what was opened or moved in the meantime."""
    draw, ahead, on_page = draw_open(panel, SERVICES), draw_ahead(panel, SERVICES), OnPage()
    draw(SHOWN, "verdicts", on_page, 3, 1, 5, *held(panel))
    asked = ahead(SHOWN, "damage 1234.5", on_page, 3, 1, 5, *held(panel))
    assert list(sent(panel, asked)) == ["damage"] and "layer 3, KV head 0" in sent(panel, asked)["damage"]
    opened = draw(SHOWN, "damage", on_page, 3, 1, 5, *held(panel))
    assert sent(panel, opened) == {}, "it is there already"
    draw(SHOWN, "damage", on_page, 7, 1, 5, *held(panel))
    assert sent(panel, ahead(SHOWN, "spectra 1300.5", on_page, 3, 1, 5, *held(panel))) == {}
    assert list(sent(panel, ahead(SHOWN, "spectra 1400.5", on_page, 7, 1, 5, *held(panel)))) == ["spectra"]
    assert sent(panel, ahead({"run": None}, "damage 1500.5", OnPage(), 0, 0, 0, *held(panel))) == {}


def test_a_new_run_overtakes_what_is_drawn_of_the_one_before(panel):
    draw, on_page = draw_open(panel, SERVICES), OnPage()
    meanwhile(view_of(panel, "texts"), lambda: fit(panel, RECORD, ARRAYS, {"at": {"layer": 9}}, on_page, "", []))
    before = draw(SHOWN, "texts", on_page, 3, 1, 5, *held(panel))
    assert before[0] == gr.skip()  # the words of the new one stay


def handlers(page, name):
    return [fn for fn in page.fns.values() if getattr(fn.fn, "__qualname__", "") == name]


@pytest.mark.slow
def test_no_drawing_is_left_out_while_another_is_at_work(page):
    """One line, in the order asked for, and the last one asked for always runs."""
    drawings = handlers(page, "draw_open.<locals>.draw")
    assert len(drawings) == 3  # a run is shown; something is moved or opened; something is clicked
    assert {(fn.trigger_mode, fn.concurrency_id) for fn in drawings} == {("always_last", "drawing")}
    assert [fn.trigger_mode for fn in handlers(page, "draw_ahead.<locals>.draw")] == ["always_last"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(tour())))
def test_a_step_sets_its_words_and_the_selection_at_once(page, number):
    """In one answer; before it nothing of the step is on the page."""
    [show] = handlers(page, "_wire_shown.<locals>.show")
    shown, on_page = place(number), OnPage(step=number)
    request = SimpleNamespace(headers={}, url="http://x.example/", request=None, session_hash="")
    answer = show.fn(request, shown, "verdicts", on_page, *[part.value for part in show.inputs[3:]])
    said = dict(zip([getattr(o, "elem_id", None) or i for i, o in enumerate(show.outputs)], answer, strict=True))
    words = [value for value in said.values() if isinstance(value, str) and f"step {number + 1} of" in value]
    assert len(words) == 1 and safe(tour()[number].title) in words[0]
    at = Selection(*(said[f"pick-{name}"]["value"] for name in ("layer", "head", "token")))
    record, arrays = packaged_store().load(shown["run"])
    assert said["selected"] == selection_html(record, arrays, at) and on_page.at == (record.id, at)
    assert said["open-view"] == tour()[number].view
    assert all(getattr(at, name) == value for name, value in tour()[number].selection.items())


@pytest.mark.slow
def test_next_says_nothing_before_its_run_is_shown(page):
    _, forth = handlers(page, "wire_learn.<locals>.go.<locals>.going")
    answer = forth.fn({"step": 3}, OnPage(), SimpleNamespace(session_hash=""))
    assert answer[0] == {"step": 4} and answer[-1]["step"] == 4 and all(part == gr.skip() for part in answer[1:-1])


@pytest.mark.slow
def test_a_run_comes_with_the_open_view_drawn_unless_its_pickers_follow_the_run(panel):
    for view in panel.views:
        answer = fit(panel, RECORD, ARRAYS, {}, OnPage(), view.name, held(panel))
        assert len(answer) == len(fit_outputs(panel))
        came = sent(panel, answer)
        assert list(came) == ([] if view.fit else [view.name])


@pytest.mark.slow
def test_what_one_visitor_saw_is_not_computed_for_the_next(panel):
    computed = []
    view = view_of(panel, "damage")
    view.compute = lambda *args, compute=view.compute: computed.append(args[2].layer) or compute(*args)
    draw = draw_open(panel, SERVICES)
    first, second = (
        [sent(panel, draw(SHOWN, "damage", on_page, layer, 1, 5, *held(panel))) for layer in (3, 7)]
        for on_page in (OnPage(), OnPage())
    )
    assert computed == [3, 7] and first == second and first[0] != first[1]
    again, arrays = make_run(lanes=2)  # the same id, computed anew
    view.draw(again, arrays, Selection(3, 1, 5), [picker.value for picker in view.pickers])
    assert computed == [3, 7, 3]
    for layer in range(10, 19):  # a few are kept, not all
        draw(SHOWN, "damage", OnPage(), layer, 1, 5, *held(panel))
    draw(SHOWN, "damage", OnPage(), 7, 1, 5, *held(panel))
    assert computed[3:] == [*range(10, 19), 7]
