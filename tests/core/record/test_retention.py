"""Which runs make way, and the settings that say so."""

from datetime import UTC, datetime, timedelta

import pytest

from kvq_core.errors import KvqError
from kvq_core.record.retention import Quota, StoredRun, runs_to_remove
from kvq_core.record.store import open_store
from kvq_core.settings import settings

NOW = datetime(2026, 6, 1, tzinfo=UTC)


class TestMakingWay:
    @staticmethod
    def ids_of(going):
        return "".join(run.id for run in going)

    def runs(self, shared=""):
        return [
            StoredRun(id, 10, NOW - timedelta(days=days), id in shared)
            for id, days in {"c": 1, "a": 30, "b": 8}.items()
        ]

    def test_the_oldest_go_first_and_no_more_than_needed(self):
        for excess, gone in ((0, ""), (1, "a"), (10, "a"), (11, "ab"), (99, "abc")):
            assert self.ids_of(runs_to_remove(self.runs(), excess, Quota(1), NOW, lambda _: False)) == gone

    def test_shared_ones_go_last(self):
        going = runs_to_remove(self.runs(shared="a"), 25, Quota(1), NOW, lambda _: False)
        assert self.ids_of(going) == "bca"

    def test_open_ones_stay(self):
        assert self.ids_of(runs_to_remove(self.runs(), 15, Quota(1), NOW, lambda id: id == "a")) == "bc"

    def test_age(self):
        assert self.ids_of(runs_to_remove(self.runs(), 0, Quota(days=7), NOW, lambda _: False)) == "ab"
        assert self.ids_of(runs_to_remove(self.runs(shared="ab"), 0, Quota(days=7), NOW, lambda _: False)) == ""

    def test_nobody_is_asked_in_vain(self):
        asked = []
        runs_to_remove(self.runs(), 10, Quota(1), NOW, lambda id: asked.append(id) or False)
        assert asked == ["a"]


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("5", 5),
            ("2GB", 2 * 10**9),
            ("500 mb", 500 * 10**6),
            ("1.5GiB", 3 * 2**29),
            ("10k", 10_000),
            ("1TiB", 2**40),
        ],
    )
    def test_sizes(self, monkeypatch, text, size):
        monkeypatch.setenv("KVQ_STORE_LIMIT", text)
        assert settings().store_limit == size
        assert open_store().limits == Quota(size=size)

    @pytest.mark.parametrize(
        ("name", "text"),
        [("KVQ_STORE_LIMIT", t) for t in ("0", "-1", "2 XB", "GB", "1e9", "\u0661GB", "9" * 40)]
        + [("KVQ_STORE_DAYS", t) for t in ("0", "-3", "nan", "inf", "soon")]
        + [("KVQ_LOG", "loud")],
    )
    def test_what_is_none_is_said_in_one_line(self, monkeypatch, name, text):
        monkeypatch.setenv(name, text)
        with pytest.raises(KvqError, match=name) as caught:
            settings()
        assert "\n" not in str(caught.value)

    def test_days(self, monkeypatch):
        monkeypatch.setenv("KVQ_STORE_DAYS", "1.5")
        assert open_store().limits == Quota(days=1.5) and not open_store("memory://x").limits
