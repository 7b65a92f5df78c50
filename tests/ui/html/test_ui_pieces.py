"""A character that several tokens spell is shown whole, wherever tokens are shown; with the bundled model's tokens."""

import re

import pytest

from kvq_core.models.text import Pieces, lone_token_text
from kvq_core.record.events import LaneProgress, Step
from kvq_core.spec import parse_spec
from tests.support.ui_record_factory import make_run
from ui.html.cards import lane_body, reference_body
from ui.html.diff import diff, text_of, top_lists
from ui.html.pieces import BROKEN, Span, span_at, spans, spans_of, spell_bytes
from ui.panels.live_cards import LiveCards
from ui.selection import Selection, selection_html
from ui.words.texts import disagreement

TEXTS = {
    "Arabic": "أهلاً وسهلاً بكم في المكتبة",
    "Hebrew": "שלום עולם, מה שלומך?",
    "emoji": "Yes 🙂 👩‍👩‍👧 🦜!",
    "CJK": "你好，世界。日本語テキスト",
    "Latin": "plain words — naïve ones",
}


def words(html: str) -> str:
    return re.sub("<[^>]*>", "", html)


def answer(smollm, text: str, finish: str = "length"):
    """A run whose reference and only lane write ``text``."""
    record, arrays = make_run(1, scored=63)
    ids = smollm.encode(text)
    pieces = Pieces(smollm.tokenizer).extend(ids)
    for row in (record.reference, record.lanes[0]):
        row.token_ids, row.tokens, row.text, row.finish = ids, list(pieces), "".join(pieces), finish
    record.lanes[0].metrics.first_divergence = None
    record.vocabulary.update({id: lone_token_text(smollm.tokenizer, id) for id in ids})
    return record, arrays


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_way_to_show_an_answer_shows_its_characters(smollm, text):
    record, arrays = answer(smollm, text)
    found = spans_of(record, record.reference)
    assert "".join(span.text for span in found) == text
    assert [i for span in found for i in span.tokens] == list(range(len(record.reference.tokens)))
    for html in (reference_body(record), lane_body(record, arrays, 0)):
        assert words(html) == text
        numbered = [int(n) for group in re.findall('data-t="(.*?)"', html) for n in group.split()]
        assert numbered == list(range(len(record.reference.tokens)))
    assert words(diff(text_of(record, -1), text_of(record, 0))).endswith(text)
    for at in range(len(record.reference.tokens)):
        said = selection_html(record, arrays, Selection(0, 0, at))
        assert BROKEN not in said and "‹end›" not in said and "“␣”" not in said
        assert span_at(found, at).text.strip() in said


@pytest.mark.parametrize("name", ["Arabic", "Hebrew", "emoji", "CJK"])
def test_a_stream_waits_for_the_whole_character(smollm, name):
    text = TEXTS[name]
    spec = parse_spec({"prompt": "-", "lanes": [{"label": "one", "method": "kivi"}]})
    board, ids = LiveCards(spec), smollm.encode(text)
    pieces, own = Pieces(smollm.tokenizer), Pieces(smollm.tokenizer)
    whole = ""
    for n in range(1, len(ids) + 1):
        at = 2  # both write the same, but are said to part here
        lane = LaneProgress("one", list(own.extend(ids[:n])), [0.1] * (n - 1), [True] * (n - 1), at if n > at else None)
        board.show(Step(n, len(ids), list(pieces.extend(ids[:n])), [lane]))
        html = board.html.split('id="card-1"')[1].split('<div class="prose tokens" tabindex="0">')[1].split("</div>")[0]
        assert html.startswith(whole) and BROKEN not in html and "‹end›" not in html
        whole = html
    same = words(re.sub('<i class="o[^>]*>.*?</i>', "", whole))
    assert same == text == words(re.sub('<i class="s[^>]*>.*?</i>', "", whole))


def test_characters_that_share_tokens_differ_as_a_whole(smollm):
    """Two tokens of one character each, of which one is the same: the texts differ in the whole character."""
    record, arrays = answer(smollm, "你好")
    assert [len(span.tokens) for span in spans_of(record, record.reference)] == [2, 2]
    other = answer(smollm, "佡好")[0].lanes[0]
    lane = record.lanes[0]
    lane.token_ids, lane.tokens, lane.metrics.first_divergence = other.token_ids, other.tokens, 1
    assert lane.token_ids[0] == record.reference.token_ids[0] and lane.token_ids[1] != record.reference.token_ids[1]
    html = diff(text_of(record, -1), text_of(record, 0))
    assert "<del>你</del><ins>佡</ins>好" in html and "2 of 4 tokens in common" in words(html)
    assert 'd" ' in lane_body(record, arrays, 0) and "writing “佡” for “你”" in disagreement(record, arrays, 0)
    swapped = "<del>佡</del><ins>你</ins>好"
    assert swapped in diff(text_of(record, 0), text_of(record, -1))
    same_end = ("a", ["你"], [(1, 9)]), ("b", ["佡"], [(2, 9)])
    assert "<del>你</del><ins>佡</ins>" in diff(*same_end)


def test_the_most_probable_tokens_are_named_by_the_character_they_make(smollm):
    record, arrays = answer(smollm, "你好")
    first, second = record.reference.token_ids[:2]
    rival = smollm.encode("佡")[1]
    record.vocabulary[rival] = lone_token_text(smollm.tokenizer, rival)
    for name in ("reference", "lane/0"):
        arrays[f"{name}/topk_ids"][:] = first
        arrays[f"{name}/topk_ids"][0, :2] = arrays["reference/topk_ids"].new_tensor([second, rival])
    shown = words(top_lists(record, arrays, 0, 1))
    assert "Followed: “你”, of tokens 0 to 1" in shown and "佡" in shown and BROKEN not in shown
    title = re.findall('title="([^"]*)"', lane_body(record, arrays, 0))[0]
    assert "“你”" in title and "“佡”" in title and BROKEN not in title


def test_bytes_that_are_no_character_are_told_in_short(smollm):
    first = smollm.encode("你")[0]
    assert lone_token_text(smollm.tokenizer, first) == "<0xE4><0xBD>" and spell_bytes("<0xE4><0xBD>") == "‹E4 BD›"
    assert lone_token_text(smollm.tokenizer, smollm.encode(" ע")[0]) == " <0xD7>"
    assert spell_bytes("<0xE4><0xBD><0xA0>") == "你" and spell_bytes("x < 0") == "x < 0"
    assert lone_token_text(smollm.tokenizer, smollm.tokenizer.eos_token_id) == "<|im_end|>"


@pytest.mark.parametrize(
    "pieces, finish, special, found",
    [
        (["a", "", "b"], "length", (), [Span("a", 0, 0), Span("b", 1, 2)]),
        (["a", ""], "eos", (), [Span("a", 0, 0), Span("", 1, 1)]),
        (["a", ""], "length", (), [Span("a", 0, 0), Span(BROKEN, 1, 1)]),
        (["a", ""], None, (), [Span("a", 0, 0)]),
        (["", "", ""], "eos", (), [Span(BROKEN, 0, 1), Span("", 2, 2)]),
        (["a", "", "b"], "length", (1,), [Span("a", 0, 0), Span("", 1, 1), Span("b", 2, 2)]),
        ([], "eos", (), []),
    ],
)
def test_spans(pieces, finish, special, found):
    assert spans(pieces, finish, special) == found


def test_an_end_that_was_passed_over_is_no_part_of_a_character(smollm):
    """With ignore_eos an answer goes on after its end; the run's vocabulary tells that token from a byte."""
    record, arrays = answer(smollm, "你好")
    row, end = record.lanes[0], smollm.tokenizer.eos_token_id
    row.token_ids = [*row.token_ids[:2], end, *row.token_ids[2:]]
    row.tokens = [*row.tokens[:2], "", *row.tokens[2:]]
    row.metrics.first_divergence = 2
    record.vocabulary[end] = lone_token_text(smollm.tokenizer, end)
    assert [span.text for span in spans_of(record, row)] == ["你", "", "好"]
    assert "‹end›" in lane_body(record, arrays, 0) and "writing “‹end›”" in disagreement(record, arrays, 0)


def test_a_stored_run_names_what_is_no_text(smollm):
    """What a run keeps of its answers is enough to tell bytes from special tokens."""
    from kvq_core.pipeline.compare import run

    spec = {"prompt": "x " * 8, "chat": False, "continuation": "你好 🙂", "capture": {"detail": "off"}}
    record = run(parse_spec({**spec, "lanes": [{"method": "kivi"}]}))
    empty = {id for id, piece in zip(record.reference.token_ids, record.reference.tokens, strict=True) if not piece}
    assert empty and all("<0x" in record.vocabulary[id] for id in empty)
    assert not any(BROKEN in word for word in record.vocabulary.values())
    assert all(span.text for span in spans_of(record, record.reference))
