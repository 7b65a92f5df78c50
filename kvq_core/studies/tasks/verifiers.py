"""Who judges an answer: verifiers by name, each of a free text against what a right answer is."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from kvq_core.errors import SpecError, did_you_mean, excerpt
from kvq_core.studies.tasks.readings import calls, calls_of, json_values, numbers, same, units

One = StrictStr | StrictInt | StrictFloat
Several = Annotated[list[One], Field(min_length=1)]
Allowed = Annotated[list[dict[str, dict[str, list[JsonValue]]]], Field(min_length=1)]
Objects = Annotated[list[dict[str, JsonValue]], Field(min_length=1)]


class ChoiceAnswer(BaseModel):
    """Answers of which all and none are to be there."""

    model_config = ConfigDict(extra="forbid")

    right: Several
    wrong: list[One]


ONE, SEVERAL, CHOICE = (TypeAdapter[Any](kind) for kind in (One, Several, ChoiceAnswer))
OBJECTS, ALLOWED = (TypeAdapter[Any](kind) for kind in (Objects, Allowed))
JSON = TypeAdapter[Any](dict[str, JsonValue] | list[JsonValue])


@dataclass(frozen=True)
class Verifier:
    """``help`` is when it holds, ``wants`` what its answers look like, in words and as a type; ``usable``: whether one
    of that type says anything."""

    help: str
    wants: str
    form: TypeAdapter[Any]
    holds: Callable[[Any, str], bool]
    usable: Callable[[Any], bool] = lambda answer: True

    def check(self, name: str, answer: JsonValue) -> None:
        """Raises SpecError for an answer that it cannot judge by."""
        try:
            self.form.validate_python(answer)
            fits = self.usable(answer)
        except ValidationError:
            fits = False
        if not fits:
            raise SpecError(f"verifier {name}: answer = {excerpt(answer)} is not allowed; give {self.wants}.")


def judge(verifier: str, answer: JsonValue, text: str) -> bool:
    """Whether a text is right. Raises SpecError for an unknown verifier, or an answer of which it makes nothing."""
    if verifier not in VERIFIERS:
        hint = did_you_mean(verifier, VERIFIERS)
        raise SpecError(f"Unknown verifier {excerpt(verifier)}.{hint} Available: {', '.join(VERIFIERS)}.")
    VERIFIERS[verifier].check(verifier, answer)
    return VERIFIERS[verifier].holds(answer, text)


def _has_units(answer: One) -> bool:
    """Whether there is a word or a number in it, which is all that texts are compared by."""
    return bool(units(str(answer)))


def _exact(answer: One, text: str) -> bool:
    return units(text) == units(str(answer))


def _contains(answer: One, text: str) -> bool:
    there, wanted = units(text), units(str(answer))
    return bool(wanted) and any(there[i : i + len(wanted)] == wanted for i in range(len(there) - len(wanted) + 1))


def _all_of(answer: list[One], text: str) -> bool:
    return all(_contains(one, text) for one in answer)


def _choice(answer: dict[str, list[One]], text: str) -> bool:
    return _all_of(answer["right"], text) and not any(_contains(one, text) for one in answer["wrong"])


def _number(answer: One, text: str) -> bool:
    written = numbers(text)
    return bool(written) and written[-1] == numbers(str(answer))[-1]


def _json(answer: dict[str, Any] | list[Any], text: str) -> bool:
    first = next((value for value in json_values(text) if isinstance(value, type(answer))), None)
    return first is not None and same(first, answer)


def _tool_calls(answer: list[dict[str, Any]], text: str) -> bool:
    wanted, given = calls_of(answer), calls(text)
    return len(wanted) == len(answer) and _paired(wanted, given, lambda a, b: a[0] == b[0] and same(a[1], b[1]))


def _bfcl(answer: list[dict[str, Any]], text: str) -> bool:
    wanted = [(name, allowed) for call in answer for name, allowed in call.items()]
    return _paired(wanted, calls(text), lambda a, b: a[0] == b[0] and _fits(b[1], a[1]))


def _fits(value: Any, allowed: Any) -> bool:
    """Whether a value is one that BFCL allows: of an object each field has a list of values, with "" where it may be
    left out, or within another object a value as it is."""
    if isinstance(value, dict) and isinstance(allowed, dict):
        each = {key: held if isinstance(held, list) else [held] for key, held in allowed.items()}
        return value.keys() <= each.keys() and all(
            any(_fits(value[key], one) for one in each[key]) if key in value else "" in each[key] for key in each
        )
    if isinstance(value, list) and isinstance(allowed, list):
        return len(value) == len(allowed) and all(_fits(a, b) for a, b in zip(value, allowed, strict=True))
    if isinstance(value, str) and isinstance(allowed, str):
        return _standard(value) == _standard(allowed)
    return same(value, allowed)


def _standard(text: str) -> str:
    """As BFCL compares texts: without case and these signs."""
    return re.sub(r"[ ,./\-_*^'\"]", "", text).lower()


def _paired(wanted: Sequence[Any], given: Sequence[Any], fits: Callable[[Any, Any], bool]) -> bool:
    """Whether each of ``wanted`` can have one of ``given`` for itself that fits, and none is left over."""
    if len(wanted) != len(given):
        return False
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    pairs = csr_array(np.array([[fits(a, b) for b in given] for a in wanted], dtype=np.int8).reshape(len(wanted), -1))
    return bool((maximum_bipartite_matching(pairs, perm_type="column") >= 0).all())


VERIFIERS: dict[str, Verifier] = {
    "exact": Verifier(
        "The whole text is the answer, but for case, punctuation and how numbers are written.",
        "a number, or a text with words or numbers in it",
        ONE,
        _exact,
        _has_units,
    ),
    "contains": Verifier(
        "The text holds the answer, as whole words or a whole number.",
        "a number, or a text with words or numbers in it",
        ONE,
        _contains,
        _has_units,
    ),
    "all_of": Verifier(
        "The text holds every one of the answers.",
        "a list of texts or numbers",
        SEVERAL,
        _all_of,
        lambda answer: all(map(_has_units, answer)),
    ),
    "choice": Verifier(
        "The text holds every right answer, and none of the wrong ones.",
        'an object of lists of texts or numbers, {"right": [...], "wrong": [...]}',
        CHOICE,
        _choice,
        lambda answer: all(map(_has_units, [*answer["right"], *answer["wrong"]])),
    ),
    "number": Verifier(
        "The last number of the text is the answer.",
        "a number, or a text with one",
        ONE,
        _number,
        lambda answer: bool(numbers(str(answer))),
    ),
    "json": Verifier(
        "The first JSON object (or list) of the text equals the answer.",
        "an object or a list",
        JSON,
        _json,
    ),
    "tool_calls": Verifier(
        "The text calls these tools with these arguments, in any order, and no others.",
        'a list of {"name": ..., "arguments": {...}}',
        OBJECTS,
        _tool_calls,
        lambda answer: len(calls_of(answer)) == len(answer),
    ),
    "bfcl": Verifier(
        "The text calls these functions, each argument one of the values that are allowed for it.",
        "a list of {function: {argument: [values]}}, as BFCL's possible_answer has it",
        ALLOWED,
        _bfcl,
    ),
}
