"""What killed writers left, and marks that are damaged: no run goes, and none is refused, because of them."""

import os
import time

import pytest

from kvq_core.errors import StoreError
from kvq_core.machine.files import LEFT_S
from kvq_core.record.layouts import OPENED
from kvq_core.record.retention import Quota
from kvq_core.record.store import OPEN_S, open_store
from tests.core.record.test_store_limits import forget_looks, ids, one, run_id, sample, url  # noqa: F401


def leave(store, run: str, size: int) -> None:
    """What a writer of that run that was killed a moment ago leaves."""
    folder = f".{run}-abcdefgh" if store.scheme == "file" else f"{run}/{'b' * 16}"
    store.fs.makedirs(f"{store.root}/{folder}", exist_ok=True)
    store.fs.pipe_file(f"{store.root}/{folder}/record.json", b"x" * size)


@pytest.mark.parametrize("run", [1, 7])
def test_leftovers_cost_no_run_and_refuse_none(url, one, run):  # noqa: F811
    store = open_store(url, Quota(size=int(2.5 * one)))
    store.save(*sample(1))
    leave(store, run_id(run), 5 * one)
    store.save(*sample(2))
    assert ids(store) == [run_id(1), run_id(2)]
    with pytest.raises(StoreError) as caught:
        store.save(*sample(3))
    open_now = 2 * one / 1e6
    assert f"{open_now:,.1f} MB of it are runs that are open now" in str(caught.value)
    forget_looks(store)
    store.save(*sample(3))
    assert ids(store) == [run_id(2), run_id(3)]


def test_leftovers_go_after_the_hour_in_which_a_refused_save_may_be_tried_again(tmp_path, one):  # noqa: F811
    store = open_store(str(tmp_path), Quota(size=int(2.5 * one)))
    leave(store, run_id(1), 1)
    (left,) = tmp_path.iterdir()
    store.prune()
    assert left.exists() and LEFT_S <= OPEN_S
    os.utime(left, (time.time() - LEFT_S - 1,) * 2)
    store.prune()
    assert not left.exists()


@pytest.mark.parametrize("text", [b"nan", b"inf", b"1e300", b"", b"yesterday", b"\xff"], ids=repr)
def test_a_look_that_says_no_time_counts_from_when_it_was_written(url, one, text):  # noqa: F811
    store = open_store(url, Quota(size=int(2.5 * one)))
    for n in (1, 2):
        store.save(*sample(n))
    forget_looks(store)
    path = f"{store.root}/{run_id(1)}/{OPENED}"
    store.fs.pipe_file(path, text)
    store.save(*sample(3))
    assert ids(store) == [run_id(1), run_id(3)]
    forget_looks(store)
    store.fs.pipe_file(path, text)
    age(store, path, OPEN_S + 1)
    store.save(*sample(4))
    assert ids(store) == [run_id(3), run_id(4)]


def age(store, path: str, seconds: float) -> None:
    if store.scheme == "file":
        os.utime(path, (time.time() - seconds,) * 2)
    else:
        store.fs.store[path].modified = store.fs.store[path].modified.__class__.fromtimestamp(
            time.time() - seconds, store.fs.store[path].modified.tzinfo
        )
