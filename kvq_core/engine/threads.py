"""Which threads a decode step uses.

A step is thousands of operations of some ten microseconds. Spread over cores one by one, each pays for waking a thread
that has gone to sleep, which can cost more than the operation (measured on two virtual cores: 0.15 ms a wake, twice
the time of a whole step); threads that spin instead starve whatever else the machine does. So a step is divided once a
layer, by lanes, and every operation of a share runs on one core.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import torch

# weights of a matrix below which multiplying a few rows by it gains nothing from a second core
NARROW = 2_000_000


@contextmanager
def one_thread(narrow: bool = True) -> Iterator[None]:
    """Run the operations of this thread on one core; does nothing where ``narrow`` is false."""
    threads = torch.get_num_threads()
    if narrow:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@cache
def _pool(name: str, size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix=name, initializer=lambda: torch.set_num_threads(1))


def _inferring(work: Callable[[], None]) -> None:
    with torch.inference_mode():  # a thread's own setting
        work()


def shares(count: int, threads: int) -> list[slice]:
    """``count`` things divided evenly among the threads, none empty."""
    parts = max(1, min(count, threads))
    edges = [count * part // parts for part in range(parts + 1)]
    return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def together(works: list[Callable[[], None]]) -> None:
    """Run all, the last one in this thread; returns when all are done. Raises what the first failing one raised."""
    *others, own = works
    waiting = [_pool("kvq-share", len(others)).submit(_inferring, work) for work in others]
    try:
        with one_thread():
            own()
    finally:
        for future in waiting:
            future.exception()  # none may still be writing when an error leaves this function
    for future in waiting:
        future.result()


def beside(work: Callable[[], None]) -> Future[None]:
    """Run in the background, in the order given; the caller must collect the result."""
    return _pool("kvq-beside", 1).submit(_inferring, work)
