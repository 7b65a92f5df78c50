"""Arguments of handlers, checked before they are called: values of an older run are fitted, impossible ones refused."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from kvq_core.machine.owner import owned
from ui.service.jobs import PATIENCE_S
from ui.service.one_line import one_line

NOT_TAKEN = (
    "These are not the values that are taken here: their number or kind is another one. /gradio_api/info lists what "
    "each endpoint takes."
)
_EVENT_ID = 4  # its place among the arguments of ``call_function``


class Blocks(gr.Blocks):
    """Gradio's, which would print a trace and answer null. Anybody can call any handler, in any order."""

    async def preprocess_data(self, block_fn: Any, inputs: Any, state: Any, *more: Any, **named: Any) -> Any:
        held = [state[part._id] if state is not None and part._id in state else part for part in block_fn.inputs]
        try:
            return await super().preprocess_data(block_fn, fit_values(held, inputs), state, *more, **named)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception:
            raise gr.Error(NOT_TAKEN, print_exception=False) from None

    async def call_function(self, *arguments: Any, **more: Any) -> Any:
        event_id = more.get("event_id", next(iter(arguments[_EVENT_ID:]), None))
        with one_line(), owned(self._waited_for(event_id)):
            return await super().call_function(*arguments, **more)

    def _waited_for(self, event_id: str | None) -> Callable[[], bool]:
        """Whether the client of an event is still there, and has not waited for more than a minute."""
        event: Any = self._queue.event_ids_to_events.get(event_id or "")
        end = time.monotonic() + PATIENCE_S
        return lambda: time.monotonic() < end and (event is None or event.alive)


def fit_values(parts: Sequence[Any], values: Any) -> Any:
    """The values of parts whose choices or range follow the run, fitted to what they are now.

    A page may tell what they held of the run before: Gradio would refuse the whole event, and with it the new run.
    """
    if not isinstance(values, list) or len(values) != len(parts):
        return values  # for Gradio to refuse
    return [_fitted(part, value) for part, value in zip(parts, values, strict=True)]


def _fitted(part: Any, value: Any) -> Any:
    if isinstance(part, gr.Dropdown) and not part.allow_custom_value and not part.multiselect:
        return value if value in [known for _, known in part.choices] else None
    if isinstance(part, gr.Slider) and isinstance(value, int | float):
        return min(max(value, part.minimum), part.maximum)
    return value
