"""Kills processes that save and remove runs: ``python -m tests.support.kill_points FOLDER ROUNDS`` prints their ends.

Each is a fork with a place of its own, FOLDER/<layout>/<name>. ``save-N`` is killed at the N-th operation on a file
while it saves a run (the audit event comes before the operation itself), ``remove-N`` while it removes one, ``torn-N``
halfway through the N-th file's bytes, ``secret-N`` and ``torn_secret-N`` likewise while it makes the store's secret,
``round-N`` at some moment while it saves one run after the other. The first of a series that has no N-th operation
survives and ends it.
"""

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from kvq_core.record.sharing import key_of
from kvq_core.record.store import Store, open_store
from tests.support.sample_record import make_sample


def store_at(layout: str, folder: Path) -> Store:
    """A store in a folder: ``folders``, or as an object store keeps it, in files."""
    if layout == "folders":
        return open_store(str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    return Store(DirFileSystem(path=str(folder), fs=LocalFileSystem()), "runs")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_operation(n: int, folder: Path) -> None:
    """Arrange for death at the n-th operation on a path in the folder, or by its name alone."""
    left = [n]

    def hook(event: str, given: tuple) -> None:
        if event.startswith(("os.", "open", "shutil.", "tempfile.")) and str(folder) in str(given):
            if left[0] == 0:
                die()
            left[0] -= 1

    sys.addaudithook(hook)


def in_file(n: int) -> None:
    """Arrange for death halfway through the n-th file's bytes."""
    left = [n]

    whole, put = Path.write_bytes, DirFileSystem.pipe_file

    def write_bytes(path: Path, data: bytes) -> int:
        if left[0] == 0:
            whole(path, data[: len(data) // 2])
            die()
        left[0] -= 1
        return whole(path, data)

    def pipe_file(fs: DirFileSystem, path: str, data: bytes, **how: str) -> None:
        if left[0] == 0:
            put(fs, path, data[: len(data) // 2], **how)
            die()
        left[0] -= 1
        put(fs, path, data, **how)

    Path.write_bytes, DirFileSystem.pipe_file = write_bytes, pipe_file


def fork(work: Callable[[int], None], saves: int = 0, patience: float = 0.0) -> str:
    """Run ``work`` in a child, which is given a pipe to write to after every save; "killed", or "done" and its status.

    With ``saves`` it is killed so many seconds after so many of them.
    """
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        work(tell)
        os._exit(0)
    os.close(tell)
    if saves:
        with os.fdopen(told, "rb") as stream:
            stream.read(saves)
        time.sleep(patience)
        os.kill(child, signal.SIGKILL)
    else:
        os.close(told)
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else f"done {status}"


def kill(layout: str, folder: Path, rounds: int) -> None:
    run, chance = make_sample(), random.Random(1)

    def save(place: Path, n: int, _: int) -> None:
        store = store_at(layout, place)
        at_operation(n, place)
        store.save(*run)

    def remove(place: Path, n: int, _: int) -> None:
        store = store_at(layout, place)
        store.save(*run)
        at_operation(n, place)
        store.layout.remove(run[0].id)

    def torn(place: Path, n: int, _: int) -> None:
        store = store_at(layout, place)
        in_file(n)
        store.save(*run)

    def secret(place: Path, n: int, _: int) -> None:
        store = store_at(layout, place)
        at_operation(n, place)
        key_of(store, run[0].id)

    def torn_secret(place: Path, n: int, _: int) -> None:
        store = store_at(layout, place)
        in_file(n)
        key_of(store, run[0].id)

    def many(place: Path, tell: int) -> None:
        store = store_at(layout, place)
        for n in range(10_000):
            record, arrays = make_sample(id=f"{n:016x}")
            store.save(record, {**arrays, "big": torch.zeros(300_000)})
            os.write(tell, b".")

    for work in (save, remove, torn, secret, torn_secret):
        for n in itertools.count():
            place = folder / f"{work.__name__}-{n}"
            ended = fork(partial(work, place, n))
            print(layout, place.name, ended, flush=True)
            if ended != "killed":
                break
    for n in range(rounds):
        place = folder / f"round-{n}"
        print(layout, place.name, fork(partial(many, place), 1, 0.03 * chance.random()), flush=True)


if __name__ == "__main__":
    for layout in ("folders", "objects"):
        kill(layout, Path(sys.argv[1]) / layout, int(sys.argv[2]))
