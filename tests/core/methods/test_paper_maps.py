"""The maps from a paper to the code, at the head of each method that has a folder: what they name is there."""

import importlib
import re
from pkgutil import resolve_name

import pytest

from tests.support.imports import ROOT

MAPPED = ("commvq", "qaq", "svdq")
_MODULE = re.compile(r"``(\w+)``(?: \(([^)]*)\))?")


def items(name: str) -> list[str]:
    said = importlib.import_module(f"kvq_core.methods.{name}").__doc__ or ""
    return [" ".join(item.split()) for item in said.split("\n- ")[1:]]


def missing(name: str) -> set[str]:
    """What the map of a method names and the code does not have."""
    room, lost = f"kvq_core.methods.{name}", set()
    sources = "".join(file.read_text() for file in (ROOT / room.replace(".", "/")).glob("[!_]*.py"))
    for item in items(name):
        named = re.findall(r"kvq_core(?:\.\w+)+", item)
        named += [f"kvq_kernels.{each}" for each in re.findall(r"kvq_kernels' (\w+)", item)]
        for module, within in _MODULE.findall(item):
            named.append(f"{room}.{module}")
            symbols = re.findall(r"(?:^|, )([\w.]+)(?=,|$)", within)
            lost |= {each for each in symbols if not has(f"{room}.{module}", each)}
        lost |= {each for each in named if not there(each)}
        codes = [word for words in re.findall(r"; ([\w, ]+)\)", item) for word in re.findall(r"\w+", words)]
        lost |= {word for word in codes if not re.search(rf"\b{word}\b", sources)}
    return lost


def there(name: str) -> bool:
    try:
        return resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


def has(module: str, symbol: str) -> bool:
    """Whether the module has it, or a class there does."""
    classes = [each for each in vars(importlib.import_module(module)).values() if isinstance(each, type)]
    return there(f"{module}:{symbol}") or any(hasattr(each, symbol) for each in classes if each.__module__ == module)


@pytest.mark.parametrize("name", MAPPED)
def test_what_a_map_names_is_there(name: str) -> None:
    assert len(items(name)) > 6 and not missing(name)


def test_a_name_that_is_not_there_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    method = importlib.import_module("kvq_core.methods.svdq")
    said = "x\n\n- Eq. 1, a basis (V; nothing_such): ``latent`` (LatentCodec.encode, no_such), kvq_core.methods.none"
    monkeypatch.setattr(method, "__doc__", said)
    assert missing("svdq") == {"nothing_such", "no_such", "kvq_core.methods.none"}
