"""Whatever people, models and links say reaches the page as text."""

import re
from html import unescape

import pytest
import torch

from kvq_core.errors import StoreError
from kvq_core.machine.progress import Progress
from kvq_core.pipeline.estimate import Estimate, LaneEstimate
from kvq_core.pipeline.examples import example_ids, packaged_store
from kvq_core.pipeline.timings import UNKNOWN_COST
from kvq_core.record.events import LaneProgress, Step
from kvq_core.spec import parse_spec
from tests.support.ui_record_factory import make_run
from ui.export.answer import answer_html
from ui.html.cards import failed_card, lane_body, lane_head, reference_body, waiting_head
from ui.html.escape import SHADES, lane_tokens, safe, shade, strip, token
from ui.html.numbers import bits, join_words, percent, seconds, significant, size
from ui.html.pieces import spans
from ui.html.reading import reading_html
from ui.html.status import line, notice, progress_line, sentence
from ui.panels.history import history_html, remember
from ui.panels.launch import estimate_html
from ui.panels.live_cards import LiveCards
from ui.panels.scorecard import _block
from ui.service.admission import Quote
from ui.views.storage import extrapolation
from ui.words.texts import disagreement

NASTY = (
    "<img src=x onerror=alert(1)>",
    "${alert(1)}",
    "</script><script>alert(1)</script>",
    "`{{value}}`",
    "\" onload='x'",
)


def raw(html: str) -> list[str]:
    """What would be markup or a template if it were set as it is."""
    return [bad for bad in ("<img", "${", "<script", "</script", "{{", "`", '" onload') if bad in html]


@pytest.mark.parametrize("text", NASTY)
def test_text_is_escaped_wherever_it_is_shown(text):
    record, arrays = make_run(labels=(text[:60], "other"), text=text)
    record.lanes[0] = record.lanes[0].model_copy(update={"summary": text, "notes": [text], "label": text})
    spec = parse_spec({"prompt": text, "lanes": [{"label": text[:60], "method": "kivi"}]})
    board = LiveCards(spec)
    board.show(Step(2, 3, [text, text], [LaneProgress(text, [text, text], [0.5], [False], 1)]))
    shown = [
        lane_head(record, arrays, 0),
        failed_card(text, text, text),
        waiting_head(text, text),
        reference_body(record),
        lane_body(record, arrays, 0),
        line(text, detail=text),
        notice(text, text, text),
        extrapolation(record, "This model", 1000, 1),
        _block(record),
        history_html(remember([], record)),
        history_html([{"id": "a" * 16, "prompt": text, "when": text, "model": text, "lanes": text}]),
        board.html,
    ]
    for html in shown:
        assert raw(html.replace("<b>", "").replace("<i>", "")) == [], html[:300]


def test_control_and_direction_characters_are_made_visible():
    assert safe("a\x00b\u202ec\x1b[31m") == "a\ufffdb\ufffdc\ufffd[31m"
    assert safe("line\nbreak\ttab") == "line\nbreak\ttab"


def test_shades_grow_with_the_square_root_and_stop():
    assert [shade(k) for k in (None, float("nan"), 0, -1)] == [0, 0, 0, 0]
    assert shade(2.0) == shade(99.0) == SHADES and shade(0.5) == SHADES // 2 and shade(0.001) == 0


def test_tokens_that_agree_are_written_once_and_the_first_different_one_is_marked():
    html = lane_tokens(spans([" a", " b", " c"]), spans([" a", " x", " y"]), [0.5, 0.0], [False, True], 1)
    assert html == ' a<i class="s k6 f"> b</i><i class="o k6 f d"> x</i><i class="s"> c</i><i class="o"> y</i>'


def test_a_stream_only_grows_at_its_end():
    same, own, kld = list("abcdefgh"), list("abcdXYZW"), [0.1 * i for i in range(7)]
    whole = ""
    for n in range(1, 9):
        html = lane_tokens(spans(same[:n]), spans(own[:n]), kld[: n - 1], [True] * (n - 1), 4 if n > 4 else None)
        assert html.startswith(whole)
        whole = html
    assert strip(kld).startswith(strip(kld[:3]))


def test_an_answer_that_ends_early_says_so():
    ended = spans(["a", ""], "eos")
    assert "‹end›" in lane_tokens(spans(["a", "b", "c"]), ended, [0.1, 0.1], [True, True], 1)


def test_a_plain_token_is_bare_text():
    assert token("<", ()) == "&lt;"


def test_names_with_commas_are_parted_by_semicolons():
    assert join_words(["q4_0 (4.5 bits, 0.02 nats)", "nvfp4", 8]) == "q4_0 (4.5 bits, 0.02 nats), nvfp4 and 8"
    assert join_words(["gear 2, rank 1", "nvfp4", "fp8"], "or") == "gear 2, rank 1; nvfp4; or fp8"
    assert join_words(["gear 2, rank 1"]) == "gear 2, rank 1"


def test_numbers_have_a_few_digits_and_a_unit():
    assert [significant(v) for v in (0.2041, 6.1e-7, 12.34, None, float("nan"), 0)] == [
        "0.204",
        "6.1e-7",
        "12.3",
        "–",
        "–",
        "0",
    ]
    assert (bits(3.08), bits(16.0), percent(0.1134), seconds(0.184), seconds(125)) == (
        "3.08",
        "16",
        "11 %",
        "0.18 s",
        "2 min 5 s",
    )
    assert (size(812_345), size(1.1e9), size(0)) == ("812 KB", "1.10 GB", "0 B")


@pytest.mark.parametrize("kept", [None, "x", {"id": 1}, [1, None, {"id": "../../etc"}, {"id": "<b>"}]])
def test_a_history_from_the_browser_is_not_trusted(kept):
    assert "<a" not in history_html(kept)


def test_history_keeps_the_newest_first_and_once():
    record, _ = make_run(lanes=1)
    once = remember([], record)
    other = {**once[0], "id": "b" * 16}
    assert [entry["id"] for entry in remember([other, *once], record)] == [record.id, "b" * 16]


def test_estimate_says_what_would_not_be_quantized():
    lane = LaneEstimate("KIVI", 0, 0, 20, "KIVI would quantize nothing: all 20 tokens fit.")
    html = estimate_html(Quote(Estimate(20, 8192, UNKNOWN_COST, 900_000_000, [lane]), "Too large here.", None))
    assert (
        "20 prompt tokens" in html
        and "not measured yet" in html
        and "would quantize nothing" in html
        and "900 MB" in html
        and "Too large here." in html
    )


def test_formats_that_would_quantize_nothing_are_one_warning_with_a_way_out():
    short = [LaneEstimate(f"q4 {n}", 0, 0, 100, f"q4 {n} would quantize nothing.", 133 + n % 2) for n in range(8)]
    quote = Quote(
        Estimate(36, 8192, UNKNOWN_COST, 900_000_000, [LaneEstimate("KIVI", 64, 64, 100, None), *short]), None, None
    )
    html = estimate_html(quote, 64)
    assert html.count('class="warning"') == 1 and "8 formats would quantize nothing" in html and "It takes 134." in html
    assert 'data-new-tokens="98"' in html and "Generate 98 tokens" in html
    assert "data-new-tokens" not in estimate_html(quote), "a continuation is as long as it is"
    assert "data-new-tokens" not in estimate_html(quote, 2040), "no more than may be asked for"


@pytest.mark.parametrize("id", ["nope", "../../etc/passwd", "\x00\xff", "é" * 5000, "a" * 16])
def test_a_link_that_opens_nothing_is_a_card(id, tmp_path):
    from types import SimpleNamespace

    from kvq_core.record.store import open_store
    from ui.form.filling import open_page
    from ui.service.services import Services

    services = Services(open_store(str(tmp_path)), None, None)
    shown, message, form = open_page(SimpleNamespace(query_params={"run": id}), services)
    assert shown is None and "This link opens no run" in message and len(message) < 1500 and len(form) > 10
    with pytest.raises(StoreError):
        services.records.get(id)
    _, message, _ = open_page(SimpleNamespace(query_params={"preset": id}), services)
    assert "Unknown preset" in message


def test_a_lane_that_wrote_no_text_of_its_own_is_not_said_to_have_written_one():
    record, arrays = make_run(1)
    record.spec["free_text"] = False
    at = record.lanes[0].metrics.first_divergence
    assert disagreement(record, arrays, 0) == (
        f"It wrote no text of its own; at token {at} it would have left the reference's."
    )
    assert f"wrote no text of its own; its own choice is another at token {at}" in unescape(
        lane_head(record, arrays, 0)
    )
    record.lanes[0].metrics.first_divergence = None
    assert "would have chosen the reference's throughout" in disagreement(record, arrays, 0)
    assert "it would have chosen the same throughout" in unescape(lane_head(record, arrays, 0))


def test_why_the_texts_disagree():
    record, arrays = make_run(1)
    at = record.lanes[0].metrics.first_divergence
    step = at - 1  # scored position s is about token s + 1
    arrays["reference/margin"][step] = 2.5
    arrays["reference/topk_probs"][step, :2] = torch.tensor([0.5, 0.25])
    told = disagreement(record, arrays, 0)
    assert f"parts at token {at}" in told and "led its second by 2.5 logits (50 % against 25 %)" in told
    assert "near-tie" not in told and f"the {64 - at} forced tokens after it" in told
    arrays["reference/margin"][step] = 0.0
    assert "a near-tie" in disagreement(record, arrays, 0)
    record.spec["temperature"] = 0.7  # drawn tokens need not be the two the margin is between
    assert "same random number" in (told := disagreement(record, arrays, 0)) and "logits" not in told
    record.lanes[0].metrics.first_divergence = None
    assert "token for token" in disagreement(record, arrays, 0)


def test_the_answers_percent_sign_is_on_the_line_of_its_number():
    head = re.search(r"<h1.*</h1>", answer_html(*packaged_store().load(example_ids()["five-ideas"])))[0]
    assert "\xa0%" in head and " %" not in head


def test_the_caches_picture_is_told_for_both_grounds():
    said = reading_html(*make_run(lanes=2), 0, 0)
    assert "stand out" in said and "darker" not in said


def test_a_job_has_one_line_with_numbers_where_they_have_a_unit():
    words = progress_line(Progress("Measuring <i>kivi", 1, 4, "lanes", left=120.0))
    assert "Measuring &lt;i&gt;kivi: 1 of 4 lanes" in words and "width:25%" in words and "about 2 min left" in words
    words = progress_line(Progress("Weighing", 1, 4, share=0.5))
    assert "<b>Weighing</b>" in words and "width:50%" in words and "left" not in words
    assert sentence(Progress("Downloading", 120_000_000, 630_000_000, "bytes")) == "Downloading: 120 of 630 MB"
