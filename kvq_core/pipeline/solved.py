"""Where a comparison's caches end up, which the lanes of some bundles are solved for."""

from kvq_core.models import outline, with_model
from kvq_core.pipeline.prompt import read_prompt
from kvq_core.spec import CacheAt, ComparisonSpec


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
