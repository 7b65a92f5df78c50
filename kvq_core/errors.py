"""Every error this project raises on purpose.

    KvqError
    ├── SpecError       the comparison asked for is not possible as written (form, file, link, API)
    ├── ModelError      the model cannot be found, loaded or run by this engine
    ├── MethodError     a method cannot run on these tensors; fails its lane, never the run
    ├── StoreError      a stored run is unknown, damaged or of another version
    └── LimitError      this instance does not take or finish the run: too large, too long, too many

A message is one line and says what was given (``excerpt`` bounds it), what is allowed and what to do. Front ends show
``str(error)`` as it is: nothing else about the failure reaches a person.
"""

from collections.abc import Iterable

from rapidfuzz import process

PATH = 200  # characters of a path that messages show
MESSAGE = 2000  # of a message, whatever it quotes


class KvqError(Exception):
    """Root of the tree; ``str(error)`` is a single line meant for people."""

    def __init__(self, message: str):
        super().__init__(abbreviate(" ".join(message.split()), MESSAGE))


class SpecError(KvqError):
    pass


class ModelError(KvqError):
    pass


class MethodError(KvqError):
    pass


class StoreError(KvqError):
    pass


class LimitError(KvqError):
    pass


def excerpt(given: object) -> str:
    """A value as an error message quotes it."""
    try:
        return "nothing" if given is None else abbreviate(repr(given))
    except ValueError:  # Python writes no whole number of thousands of digits
        return "a number of thousands of digits"
    except RecursionError:
        return "something nested very deeply"


def abbreviate(text: str, most: int = 80) -> str:
    """What somebody gave, in a message: whole if it is short, else its beginning and its end."""
    return text if len(text) <= most else f"{text[: most - 23]}...{text[-20:]}"


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The question after an unknown name, with a space before it; empty where no name is near."""
    near = process.extractOne(given, list(known), score_cutoff=60) if isinstance(given, str) else None
    return f" Did you mean {near[0]!r}?" if near else ""
