"""While the server fills a form nobody can write in it: what one typed meanwhile would be written over."""

from collections.abc import Callable, Sequence
from typing import Any

from ui.service.services import LANES, SWIFT


def fills(event: Callable[..., Any], fill: Callable[..., Any], inputs: Any, outputs: Sequence[Any]) -> None:
    """What fills the form of Compare when ``event`` happens; a picker, the first of the ``inputs``, in which nothing is
    picked fills nothing: one that is left tells of what stands in it."""
    js = '(...given) => { if (given[0] !== null) window.kvqVisit?.fill("left", true); return given; }'
    mark_filled(event(fill, inputs, outputs, js=js, **LANES), "left")


def mark_filled(done: Any, form: str) -> None:
    """A form, by the name of its column, is filled once an event is ``done``, however that ended."""
    for over in (done.then, done.failure):
        over(None, None, None, js=f'() => {{ window.kvqVisit?.fill("{form}", false); }}', **SWIFT)
