"""What a free text holds: its words and numbers, JSON values, and calls of tools. Nothing in it is ever run."""

import ast
import json
import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

MINUS = str.maketrans({"\u2212": "-", "\u2012": "-", "\u2013": "-", "\u2019": "'", "\u202f": "_", "\u00a0": "_"})
# with or without groups of three digits; a minus belongs to it where no word or bracket is before it
_NUMBER = r"(?:(?<![\w)\]])-)?(?:\d{1,3}(?:[,'_]\d{3})+(?!\d)|\d+)(?:\.\d+)?"
_UNITS = re.compile(rf"{_NUMBER}|[^\W\d_]+(?:_\w+)?|\d+")
_NUMBERS = re.compile(_NUMBER)
_DEEPEST = 64  # of values within one another
_TRIES = 500  # brackets that open nothing, after which a text holds no JSON: each costs a look at all that follows

Call = tuple[str, dict[str, Any]]


def units(text: str) -> list[str]:
    """Words, without case, and numbers, written in one way: ``1,234.50`` and ``1234.5`` are the same."""
    found = _UNITS.findall(unicodedata.normalize("NFC", text.translate(MINUS)).casefold())
    return [_plain(one) if one[-1].isdecimal() and _NUMBERS.fullmatch(one) else one for one in found]


def numbers(text: str) -> list[Decimal]:
    """Numbers in the order in which they stand there."""
    found = _NUMBERS.findall(unicodedata.normalize("NFC", text.translate(MINUS)))
    return [Decimal(_plain(one)) for one in found]


def _plain(number: str) -> str:
    """Without separators, leading zeros and zeros after the point that say nothing; exact, however long it is."""
    written = f"{Decimal(re.sub('[,_' + chr(39) + ']', '', number)):f}"
    written = written.rstrip("0").rstrip(".") if "." in written else written
    return "0" if written == "-0" else written


def json_values(text: str) -> Iterator[Any]:
    """JSON objects and lists in a text, one after the other, those within others left out; no NaN, no infinity."""
    decoder, at, tries = json.JSONDecoder(parse_constant=_refused), 0, 0
    for start in (found.start() for found in re.finditer(r"[{\[]", text)):
        if start < at or tries > _TRIES:
            continue
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            tries += 1
            continue
        yield value


def _refused(name: str) -> Any:
    raise ValueError(name)


def calls(text: str) -> list[Call]:
    """Calls of tools, as models write them: JSON objects of ``name`` and ``arguments``, or ``parameters``, alone, in a
    list, or between tags, or calls as Python writes them, in a list or alone."""
    found = [call for value in json_values(text) for call in calls_of(value)]
    return found or _python_calls(text)


def calls_of(value: Any) -> list[Call]:
    """Calls in a JSON value; an object that is none is left out."""
    if isinstance(value, list):
        return [call for each in value for call in calls_of(each)]
    if not isinstance(value, dict):
        return []
    told = value["function"] if isinstance(value.get("function"), dict) else value
    arguments = told.get("arguments", told.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_refused)
        except (ValueError, RecursionError):
            return []
    name = told.get("name")
    return [(name, arguments)] if isinstance(name, str) and isinstance(arguments, dict) else []


def _python_calls(text: str) -> list[Call]:
    """Of a text that is nothing but calls, between code fences or not."""
    bare = re.sub(r"^\s*```\w*\n|```\s*$", "", text.strip()).strip()
    try:
        tree = ast.parse(bare, mode="eval").body
        called = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        return [_python_call(node) for node in called]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return []


def _python_call(node: ast.expr) -> Call:
    """Raises ValueError for anything but a call of a named function with named literals."""
    if not isinstance(node, ast.Call) or node.args or any(given.arg is None for given in node.keywords):
        raise ValueError("no call")
    return ast.unparse(node.func), {str(given.arg): ast.literal_eval(given.value) for given in node.keywords}


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are: numbers by value, texts without case and blanks around, objects in any order."""
    return _same(one, other, _DEEPEST)


def _same(one: Any, other: Any, left: int) -> bool:
    if not left or isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, str) and isinstance(other, str):
        return " ".join(one.split()).casefold() == " ".join(other.split()).casefold()
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b, left - 1) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key], left - 1) for key in one)
    return bool(one == other)
