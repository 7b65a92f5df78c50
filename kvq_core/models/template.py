"""A model's chat template is a program that came with the model: it is run apart, for so long and to so much text."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from kvq_core.errors import SpecError
from kvq_core.machine.apart import apart
from kvq_core.models.gguf.published import SECOND_MODEL
from kvq_core.spec import DEFAULT_MODEL

SECONDS = 2.0
MESSAGES = 8  # of a conversation that has so long; each is looked at by itself, so that more take longer
MOST = 4_000_000  # characters, before they are tokenized
ROOM = 512 * 1024**2  # bytes that a template may take beside what is in memory
KNOWN = (DEFAULT_MODEL, SECOND_MODEL)  # known by their bytes, templates included

T = TypeVar("T")


def run_template(work: Callable[[], T], model: str, messages: int = 1) -> T:
    """``work``, which has a model's chat template write text. Raises SpecError where that takes too much."""
    if model in KNOWN:
        return work()
    seconds = SECONDS * max(1, messages / MESSAGES)
    try:
        return apart(work, seconds, ROOM)
    except TimeoutError:
        said = f"took more than {seconds:g} s"
    except MemoryError:
        said = f"took more than {ROOM / 1024**2:.0f} MiB of memory, or {seconds:g} s"
    except OSError as error:
        said = f"could not be run apart: {error.strerror}"
    raise SpecError(f"The chat template of {model} {said}; set chat = false, or take another model.")


def check_size(texts: Iterable[str], model: str) -> None:
    """Raises SpecError for more text than is tokenized."""
    if (size := sum(map(len, texts))) > MOST:
        raise SpecError(
            f"The chat template of {model} makes {size:,} characters of this prompt; at most {MOST:,} are read. "
            "Shorten the prompt, or set chat = false."
        )
