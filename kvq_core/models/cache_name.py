"""What transformers calls the cache that a model is given and gives back: ``cache`` since 5.24, before that
``past_key_values``, which 5.24 renames with a warning at every call (utils/deprecation.py, deprecate_kwarg)."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

NAMES = ("cache", "past_key_values")


@cache
def cache_name() -> str:
    """Its name in the installed version, as outputs have it. Models and ``generate`` take it by the same."""
    from transformers.modeling_outputs import BaseModelOutputWithPast

    named = {field.name for field in fields(BaseModelOutputWithPast)}
    return next(name for name in NAMES if name in named)


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """The cache among the arguments of a decoding loop, whichever version calls it; None where there is none."""
    return next((arguments[name] for name in NAMES if arguments.get(name) is not None), None)
