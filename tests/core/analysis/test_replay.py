"""How caches stood at every step, and the prompt's tokens as text."""

import numpy as np
import pytest

from kvq_core.analysis.prompt_text import prompt_texts
from kvq_core.analysis.replay import movement
from kvq_core.pipeline.examples import example_ids, packaged_store
from tests.support.ui_record_factory import make_run

RECORD, ARRAYS = packaged_store().load(example_ids()["five-ideas"])  # windows of several methods, 485 tokens and 64
LANES = {lane.label: at for at, lane in enumerate(RECORD.lanes)}


@pytest.mark.parametrize(
    ("lane", "kind", "sink", "first", "last"),
    [
        ("KIVI 2-bit", "key", 0, 480, 544),  # a group of 32 leaves at once
        ("KIVI 2-bit", "value", 0, 453, 515),  # always the newest 32
        ("SVDq 2", "key", 0, 485, 485),  # of the prompt alone
        ("SVDq 2", "value", 0, 0, 0),  # kept as they are
        ("InnerQ hybrid", "key", 32, 357, 419),
        ("CommVQ 2-bit", "value", 0, 384, 512),
    ],
)
def test_windows_move_as_the_methods_say_and_end_as_they_were_measured(lane, kind, sink, first, last):
    found = movement(RECORD, ARRAYS, LANES[lane], kind)
    assert found.sink == sink and not found.rewritten
    assert (found.packed[0], found.packed[-1]) == (first, last) and np.all(np.diff(found.packed) >= 0)
    prompt = len(RECORD.reference.prompt_token_ids)
    for step in (0, 20, len(found.packed) - 1):
        now = found.at(step)
        assert len(now) == prompt + step + 1, "the step's own token is there, and nothing that comes"
        assert np.all(now[:sink] == 16) and np.all(now[sink + found.packed[step] :] == 16)
        assert np.allclose(now[sink : sink + found.packed[step]], found.bits[sink : sink + found.packed[step]])


def test_what_is_stored_anew_says_so():
    assert movement(RECORD, ARRAYS, LANES["QAQ 3-bit"], "key").rewritten


def test_a_window_that_is_not_as_measured_is_not_moved():
    record, arrays = make_run(1)  # KIVI's keys: the newest 32 have just filled a group, and yet are at 16 bits
    found = movement(record, arrays, 0, "key")
    assert found.packed is None and np.array_equal(found.at(0), found.bits)
    arrays["lane/0/key_bits"][:] = 3.0
    assert movement(record, arrays, 0, "key").packed[-1] == 448, "the step that fills a group still reads it"
    assert movement(record, {}, 0, "key") is None


@pytest.mark.parametrize(
    ("tokens", "texts"),
    [
        (
            ["<|im_start|>", "user", "\u010a", "A", "\u0120mill", "\u00c3", "\u00a9", "<\uff5cend\uff5c>"],
            "<|im_start|>user\nA millé<\uff5cend\uff5c>",
        ),
        (["<s>", "\u2581A", "\u2581mill", "<0x0A>", "<0xC3>", "<0xA9>", "Ġ"[:0]], "<s> A mill\né"),
    ],
)
def test_prompts_of_both_spellings_are_text(tokens, texts):
    record, _ = make_run(1)
    record.reference.prompt_tokens = tokens
    assert prompt_texts(record, [0, len(tokens)]) == [texts]
    assert "".join(prompt_texts(record, range(len(tokens) + 1))).replace("\ufffd\ufffd", "é") == texts
