"""Answers wait for their readers, but not without end."""

import asyncio

import pytest

from ui.server import gradio_answers as mail
from ui.server.gradio_answers import KEEP_S, READING_S, UNREAD, PendingMessages


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time, to be set."""
    time = [1000.0]
    monkeypatch.setattr(mail.time, "monotonic", lambda: time[0])
    return time


def filled(now: list[float], **counts: int) -> PendingMessages:
    """A box each with so many messages, a second apart."""
    boxes = PendingMessages(10)
    for name, count in counts.items():
        now[0] += 1
        boxes[name] = asyncio.Queue()
        for message in range(count):
            boxes[name].put_nowait(message)
    return boxes


def test_what_is_fetched_in_time_stays(now):
    boxes = filled(now, a=3, b=0)
    now[0] += KEEP_S - 10
    assert boxes["a"].get_nowait() == 0
    now[0] += KEEP_S - 10
    boxes.sweep()
    assert set(boxes) == {"a", "b"} and boxes["a"].qsize() == 2


def test_what_nobody_fetches_is_dropped(now):
    boxes = filled(now, a=1, b=0)
    now[0] += KEEP_S + 10
    boxes["b"].put_nowait("just now")
    boxes.sweep()
    assert set(boxes) == {"b"}


def test_of_too_many_the_oldest_go_and_those_being_read_stay(now):
    most = UNREAD - 10
    boxes = filled(now, old=20, read=20, new=most)
    now[0] += READING_S + 1
    boxes["read"].get_nowait()
    boxes.sweep()
    assert set(boxes) == {"read", "new"}


def test_a_stream_whose_box_was_dropped_breaks_nothing(now):
    boxes = filled(now, a=1)
    del boxes["a"]
    boxes["a"].put_nowait("lost")
    del boxes["a"]
    assert "a" not in boxes and boxes.get("a") is None


def test_new_sessions_push_out_those_that_are_not_open(now):
    boxes = filled(now, **{f"s{n}": 0 for n in range(10)})
    boxes["s0"]  # an open stream asks for its box
    boxes["one more"] = asyncio.Queue()
    assert "s0" in boxes and "s1" not in boxes
