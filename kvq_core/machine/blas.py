"""Which of two ways to multiply a few rows by a matrix this processor's BLAS is faster at."""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from kvq_core.machine.threads import one_thread

ROWS, INPUTS, OUTPUTS, TRIES = 3, 576, 1536, 9
GAIN = 0.8  # of the time: where both are about equal, the choice does not hang on what else the machine does


@cache
def weights_first() -> bool:
    """Whether weights times rows take clearly less time than rows times weights; measured once, in 10 ms. On some
    processors BLAS takes two or three rows one by one, and a single row as two: 24 ms instead of 66 on one core for
    SmolLM2's matrices. On others it does not, and the other order costs 85 ms instead of 39."""
    drawn = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(n, INPUTS, generator=drawn) for n in (ROWS, OUTPUTS))
    with one_thread(), torch.no_grad():
        return _least(lambda: weight @ rows.T) < GAIN * _least(lambda: rows @ weight.T)


def _least(product: Callable[[], Tensor]) -> float:
    """Seconds of the fastest of TRIES."""
    taken = []
    for _ in range(TRIES):
        began = time.perf_counter()
        product()
        taken.append(time.perf_counter() - began)
    return min(taken)
