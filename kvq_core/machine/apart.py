"""Somebody else's programs and files, run and unfolded in a process of their own, which can be ended at any moment and
has so much time and memory and no more."""

import gc
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from kvq_core.machine.owner import demand_wanted

LOOK_S = 0.1  # how often its owner is asked whether it is still wanted

T = TypeVar("T")


def apart(work: Callable[[], T], seconds: float, room: int) -> T:
    """What ``work`` returns, or raises, in a fork of this process that may take ``seconds`` and ``room`` more bytes.

    A fork has all that is in memory and none of the other threads: work that needs those, or a GPU, does not belong
    here. Raises TimeoutError, MemoryError, also where the process was ended by a fault, and KvqError where nobody wants
    it any more.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(work, theirs, seconds, room), daemon=True)
    end = time.monotonic() + seconds
    with ours:
        with theirs:
            process.start()
        try:
            while not ours.poll(LOOK_S):
                demand_wanted()
                if time.monotonic() > end:
                    raise TimeoutError
            done, value = ours.recv()
        except EOFError:
            raise MemoryError from None
        finally:
            process.kill()
            process.join()
    if done:
        found: T = value
        return found
    raise value


def _serve(work: Callable[[], Any], answer: Connection, seconds: float, room: int) -> None:
    gc.disable()  # what it would look through is shared with the parent until it is written to
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:  # a fault of a library's is told there
        os.dup2(nowhere.fileno(), 2)
    _limit(seconds, room)
    try:
        answer.send((True, work()))
    except Exception as error:
        answer.send((False, error))


def _limit(seconds: float, room: int) -> None:
    """As far as the system has such limits: one whose parent was killed ends all the same."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + room, held + room))
