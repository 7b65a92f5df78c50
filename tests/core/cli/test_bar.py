"""The bar of long commands, where nobody watches a terminal."""

import pytest

from kvq_core.cli import bar
from kvq_core.machine.progress import Progress


def test_a_timed_bar_says_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(bar, "EVERY_S", 0.0)
    with bar.Bar(timed=True) as told:
        told(Progress("Computing", 2, 9))
        told(Progress("Computing", 4, 9))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "Computing: 2 of 9" and second.startswith("Computing: 4 of 9, about 0:00:0")


def test_other_bars_say_nothing_there(monkeypatch, capsys):
    monkeypatch.setattr(bar, "EVERY_S", 0.0)
    with bar.Bar() as told:
        told(Progress("Encoding", 1, 3))
    assert capsys.readouterr().err == ""


def test_an_interrupt_says_what_is_kept_and_events_end_with_what_was_found():
    with pytest.raises(KeyboardInterrupt, match="3 cells are kept"), bar.Bar() as told:
        told.went_on = lambda: "3 cells are kept"
        raise KeyboardInterrupt
    with bar.Bar() as told:
        assert told.last(iter([Progress("Scoring", 1, 2), Progress("Scoring", 2, 2), "scores"])) == "scores"
