"""Which threads a decode step uses.

A step is thousands of operations of some ten microseconds. Spread over cores one by one, each pays for waking a thread
that has gone to sleep, which can cost more than the operation (measured on two virtual cores: 0.15 ms a wake, twice
the time of a whole step); threads that spin instead starve whatever else the machine does. So a step is divided twice
a layer, its attention by lanes and its MLP by channels, and every operation of a share runs on one core.

That is said to the OpenMP runtime and to MKL, which know it of each thread. torch.set_num_threads would tell the whole
process: runs in other threads, and every thread that begins later.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial

import torch

_LINKED = ctypes.PyDLL(torch._C.__file__)  # finds what torch itself is linked with; keeps the interpreter's lock


def _setting(name: str) -> Callable[[int], int]:
    """A function that sets the calling thread's number of cores; does nothing where torch is built without it: an
    operation may then use all cores, which changes no result, only the time."""
    found: Callable[[int], int] = getattr(_LINKED, name, lambda cores: 0)
    return found


_set_openmp, _set_mkl = _setting("omp_set_num_threads"), _setting("MKL_Set_Num_Threads_Local")
_MAKING = threading.Lock()

# weights of a matrix below which one product of a few rows with it gains nothing from a second core
NARROW = 2_000_000


@contextmanager
def one_thread(narrow: bool = True) -> Iterator[None]:
    """Run the operations of this thread on one core; does nothing where ``narrow`` is false."""
    if not narrow:
        yield
        return
    cores, mkl = _keep_to_one_core()
    try:
        yield
    finally:
        _set_openmp(cores)
        _set_mkl(mkl)


def _keep_to_one_core() -> tuple[int, int]:
    """Limit this thread; what OpenMP and MKL (0: whatever OpenMP says) were set to."""
    cores = torch.get_num_threads()  # asked first: torch sets a thread up when it is first used there
    _set_openmp(1)
    return cores, _set_mkl(1)


def _pool(name: str, size: int) -> ThreadPoolExecutor:
    with _MAKING:  # runs that begin at once share one
        return _made(name, size)


@cache
def _made(name: str, size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix=name, initializer=_keep_to_one_core)


def _quietly(work: Callable[[], None]) -> None:
    with torch.no_grad():  # a thread's own setting
        work()


def shares(count: int, cores: int) -> list[slice]:
    """``count`` things divided evenly among the cores, none empty."""
    parts = max(1, min(count, cores))
    edges = [count * part // parts for part in range(parts + 1)]
    return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def together(works: Sequence[Callable[[], None]]) -> None:
    """Run all at once, the last one in this thread, each on one core; returns when all are done.

    Raises what the first failing one raised.
    """
    *others, own = works
    if not others:
        return own()
    waiting = [_pool("kvq-share", len(others)).submit(_quietly, work) for work in others]
    try:
        with one_thread():
            own()
    finally:
        wait(waiting)  # none may still be writing when an error leaves this function
    for future in waiting:
        future.result()


def each(works: Sequence[Callable[[], None]], cores: int) -> None:
    """Run all, as many at once as there are cores."""
    if works:
        together([partial(_in_turn, works[part]) for part in shares(len(works), cores)])


def _in_turn(works: Sequence[Callable[[], None]]) -> None:
    for work in works:
        work()


def in_order(works: Sequence[Callable[[], None]], cores: int) -> Iterator[int]:
    """Run all, as many at once as there are cores, and yield each one's index before waiting for it.

    Those not begun are dropped when the iteration is left.
    """
    waiting = [_pool("kvq-order", cores).submit(_quietly, work) for work in works]
    try:
        for index, future in enumerate(waiting):
            yield index
            future.result()
    finally:
        wait([future for future in waiting if not future.cancel()])


def beside(work: Callable[[], None]) -> Future[None]:
    """Run in the background, in the order given; the caller must collect the result."""
    return _pool("kvq-beside", 1).submit(_quietly, work)
