"""Where a comparison's caches end up, which the lanes of some bundles are solved for."""

from typing import Any

from kvq_core.models import outline, with_model
from kvq_core.pipeline.prompt import read_prompt
from kvq_core.presets import parse_placed
from kvq_core.sizing.count import CacheAt
from kvq_core.spec import ComparisonSpec


def parse_spec(data: Any) -> ComparisonSpec:
    """A spec from plain data (parsed JSON or TOML); ``bundle`` stands in place of ``lanes``, which are solved for the
    spec's own prompt and model where they depend on the length.

    Raises SpecError with one line: the place, what was given, what is allowed; KvqError as ``cache_at`` does.
    """
    return parse_placed(data, cache_at)


def cache_at(spec: ComparisonSpec) -> CacheAt:
    """The model's shape, the prompt's tokens as the model reads it, and those in the cache once the answer's last token
    is known, which itself enters no cache. Weights are not loaded.

    Raises KvqError where the model cannot be had, or the prompt has no tokens or too many.
    """
    spec = with_model(spec)
    model = outline(spec.model, spec.revision)
    prompt = len(read_prompt(model, spec).ids)
    new = len(model.encode(spec.continuation)) if spec.continuation is not None else spec.max_new_tokens
    return CacheAt(model.shape, prompt, prompt + max(new, 1) - 1)
