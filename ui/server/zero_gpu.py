"""ZeroGPU: a Space that borrows a GPU for one call at a time, in a process forked for the call.

``spaces``, a package that is there on ZeroGPU and nowhere needed else, forks the server, gives the child a GPU, and
sends what a decorated generator yields back through a pipe. So a comparison is one such call, and only plain data
crosses: events whose tensors are arrays of NumPy, and errors as values, since of one that is raised ``spaces`` would
tell only the type. https://huggingface.co/docs/hub/spaces-zerogpu
"""

import importlib.util
import re
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import Any

import gradio as gr
import torch

from kvq_core.errors import KvqError, LimitError
from kvq_core.models import available_models, load
from kvq_core.packed.lanes import MeasureRequest, measure_spec
from kvq_core.pipeline.compare import compare
from kvq_core.pipeline.estimate import estimate
from kvq_core.record.events import Event, Finished
from kvq_core.spec import ComparisonSpec

SHORTEST_S, USUAL_S, LONGEST_S = 15, 60, 120  # 120 s is what a visitor without an account has in a day
STARTING_S = 10  # fork, and the model's weights onto the GPU


def seconds(spec: ComparisonSpec, *others: Any) -> int:
    """How long to ask for the GPU: twice the estimate, for a run that takes longer is cut off; as long as possible for
    a search of the most that fits into memory."""
    if any(isinstance(other, MeasureRequest) and other.limits for other in others):
        return LONGEST_S
    expected = estimate(spec).cost.seconds
    if expected is None:
        return USUAL_S
    return round(min(LONGEST_S, max(SHORTEST_S, STARTING_S + 2 * expected)))


def borrowing(work: Callable[..., Generator[Any]]) -> Callable[..., Generator[Any]]:
    """``work`` as one call that has the GPU; its first argument is the comparison.

    The result raises KvqError as ``work`` does, and LimitError where no GPU is to be had.
    """
    import spaces

    @spaces.GPU(duration=seconds)
    def lent(*arguments: Any) -> Generator[Any]:
        try:
            with closing(work(*arguments)) as events:
                for event in events:
                    yield _packed(event)
        except KvqError as error:
            yield error

    def borrowed(*arguments: Any) -> Generator[Any]:
        try:
            with closing(lent(*arguments)) as events:
                for event in events:
                    if isinstance(event, KvqError):
                        raise event
                    yield _unpacked(event)
        except gr.Error as error:  # no quota, no GPU free, the call took too long
            raise LimitError(f"{error.title or 'ZeroGPU'}: {_text(error.message)}") from None

    return borrowed


def prepare() -> dict[str, Callable[..., Any]]:
    """Put the model on the GPU that the forked processes will find, and what of the services uses it.

    To be called in the main thread, before the page is launched: elsewhere ``spaces`` does not see it.
    """
    if importlib.util.find_spec("spaces") is None:
        raise KvqError(
            "SPACES_ZERO_GPU is set, but the package 'spaces' is missing: it is there on ZeroGPU Spaces only."
        )
    load(available_models()[0].id)
    return {"compare": borrowing(compare), "measure": borrowing(measure_spec)}


def _packed(event: Event) -> Event:
    if not isinstance(event, Finished):
        return event
    arrays: Any = {name: tensor.cpu().numpy() for name, tensor in event.arrays.items()}  # on their way only
    return replace(event, arrays=arrays)


def _unpacked(event: Event) -> Event:
    if not isinstance(event, Finished):
        return event
    return replace(event, arrays={name: torch.from_numpy(array) for name, array in event.arrays.items()})


def _text(message: str) -> str:
    """What ``spaces`` says, without the links it puts in as markup."""
    return re.sub(r"<[^>]*>", "", str(message))
