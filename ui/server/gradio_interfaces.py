"""Importing Gradio without its interface files: of each component it parses its own source and writes anew what editors
read beside it, which is a third of its import (.8 of 2.6 CPU seconds). Those files are in its package anyway."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WRITER = "create_or_modify_pyi"  # of gradio.component_meta; it passes over components whose file is not to be had


@contextmanager
def no_interfaces() -> Iterator[None]:
    """While Gradio is imported: its writer, and nobody else, is told that components lie in no file."""
    getfile = inspect.getfile

    def told(of: Any) -> str:
        if sys._getframe(1).f_code.co_name == WRITER:
            raise OSError("no interface is written")
        return getfile(of)

    inspect.getfile = told  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getfile = getfile
