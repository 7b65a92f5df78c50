"""Tokens that wait in the working copies until a window lets some leave, and what a codec is asked later."""

import pytest
import torch

from kvq_core.codecs.doubts import doubting, refusal, refuse_unless
from kvq_core.codecs.stream import Stream
from kvq_core.errors import MethodError
from kvq_core.spec import Lane
from tests.support.engine_runs import run_engine
from tests.support.tiny_models import prompt_ids, tiny


def test_a_windows_tokens_enter_the_store_together(monkeypatch):
    entered = []
    append = Stream.append

    def noted(stream, x):
        entered.append((stream.window, x.shape[-2]))
        append(stream, x)

    monkeypatch.setattr(Stream, "append", noted)
    lane = Lane(label="a", method="per_channel", knobs={"group_size": 8, "residual_length": 8})
    outcome = run_engine(tiny("llama"), prompt_ids(40), [lane], 24, audit=True, ignore_eos=True)
    (state,) = outcome.decode.states_running
    assert all(part.waiting == 0 and part.stream.tokens == 40 + 23 for part in state.cache.parts)
    assert any(tokens > 1 for _, tokens in entered)


def test_what_a_codec_doubts_is_asked_later_where_it_would_be_waited_for():
    doubts = []
    with doubting(doubts):
        refuse_unless(torch.ones((), dtype=torch.bool), "never")
        with pytest.raises(MethodError, match="at once"):
            refuse_unless(torch.zeros((), dtype=torch.bool), "at once")
        refuse_unless(torch.zeros((), dtype=torch.bool, device="meta"), "later")
    assert [reason for _, reason in doubts] == ["later"]
    asked = [(torch.tensor(sound), reason) for sound, reason in ((True, "a"), (False, "b"), (False, "c"))]
    assert refusal(asked) == "b" and refusal(asked[:1]) is None and refusal([]) is None
