"""What differs between form and run, in the words of the form."""

from kvq_core.analysis.two_specs import Change
from kvq_core.models import with_model
from kvq_core.spec import parse_spec
from ui.form.values import FIELDS, from_comparison
from ui.panels.differs import change_in_words, differs_html, form_changes

NAMED = {"prompt": "Prompt", "capture.detail": "Arrays kept", "no_system": "No system prompt at all"}


def test_changes_are_told_in_the_words_of_the_form() -> None:
    assert change_in_words(Change("capture.detail", "normal", "deep"), NAMED) == ("Arrays kept", "normal", "deep")
    assert change_in_words(Change("knobs.bits", 2, 4, "KIVI"), NAMED) == ("KIVI: Bits", "2", "4")
    assert change_in_words(Change("label", "A", "B", "A"), NAMED) == ("A: Label", "A", "B")
    assert change_in_words(Change("layers", "all", [0, 1], "KIVI"), NAMED) == ("KIVI: Layers", "all", "0, 1")
    assert change_in_words(Change("sink_tokens", None, 4, "KIVI"), NAMED) == ("KIVI: First tokens kept", "–", "4")
    assert change_in_words(Change("", "KIVI 2-bit", None, "KIVI"), NAMED) == ("Lane", "KIVI", "not in the form")
    assert change_in_words(Change("ignore_eos", False, True), NAMED) == ("ignore_eos", "off", "on")


def test_long_texts_are_told_from_where_they_part() -> None:
    same = "word " * 40
    _, one, other = change_in_words(Change("prompt", f"{same}ends here", f"{same}goes on there"), NAMED)
    assert one.endswith("ends here") and other.endswith("goes on there") and one.startswith("…")
    assert max(len(one), len(other)) <= 60


def test_text_of_a_link_is_escaped() -> None:
    html = differs_html([("<i>", '"one"', "<script>")], "", "1.abc")
    assert "<script>" not in html and "<i>" not in html and 'data-draft="1.abc"' in html
    assert "in 1 place<" in html and "data-form-run" in html
    assert "data-form-run" not in differs_html([], "It cannot run.", ""), "what cannot run is not offered to be run"


def test_a_form_that_has_not_been_filled_differs_from_no_run() -> None:
    run = with_model(parse_spec({"prompt": "Say hi.", "lanes": [{"method": "kivi"}]}))
    values, lanes, rest = from_comparison(run)
    form = dict(zip(FIELDS, values, strict=True))
    assert "differs-box" not in form_changes(run, form, lanes, rest, NAMED)
    assert form_changes(run, {**form, "prompt": "", "conversation": ""}, [], rest, NAMED) == ""
    assert "and cannot run" in form_changes(run, {**form, "prompt": ""}, lanes, rest, NAMED)
