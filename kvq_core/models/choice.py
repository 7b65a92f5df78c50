"""Which models an instance offers, and the one it takes where a comparison names none."""

from typing import NamedTuple

from kvq_core.errors import ModelError, excerpt
from kvq_core.models import second
from kvq_core.models.bundled import MADE_FROM
from kvq_core.models.gguf.published import SECOND_MODEL, TITLE
from kvq_core.settings import settings
from kvq_core.spec import DEFAULT_MODEL, ComparisonSpec


class ModelChoice(NamedTuple):
    id: str
    title: str


KNOWN = (
    ModelChoice(DEFAULT_MODEL, "SmolLM2-135M-Instruct (bundled)"),
    ModelChoice(SECOND_MODEL, TITLE),
    ModelChoice(MADE_FROM, "SmolLM2-135M-Instruct"),
    ModelChoice("HuggingFaceTB/SmolLM2-360M-Instruct", "SmolLM2-360M-Instruct"),
    ModelChoice("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
    ModelChoice("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
    ModelChoice("meta-llama/Llama-3.2-1B-Instruct", "Llama-3.2-1B-Instruct"),
)


def available_models() -> list[ModelChoice]:
    """Models a front end offers, the default first; others are named by their Hub id.

    An allow-list (KVQ_MODELS) replaces the list. The second model is in it only where it is.
    ZeroGPU wants its model on the device before the first call, so there the first one is the only one.
    """
    found, titles = settings(), dict(KNOWN)
    offered = [ModelChoice(name, titles.get(name, name)) for name in found.models]
    offered = offered or [choice for choice in KNOWN if choice.id != SECOND_MODEL or second.is_converted()]
    return offered[:1] if found.zero_gpu else offered


def check_offered(id: str) -> None:
    """Raises ModelError where strangers reach this instance and the model is none that it offers."""
    if not settings().public:
        return
    offered = [choice.id for choice in available_models()]
    if id not in offered:
        raise ModelError(f"Model {excerpt(id)} is not offered on this instance; available: {', '.join(offered)}.")


def is_offered(id: str) -> bool:
    """Whether this instance runs the model, as far as its settings say."""
    try:
        check_offered(id)
    except ModelError:
        return False
    return True


def with_model(spec: ComparisonSpec) -> ComparisonSpec:
    """The spec with a model: one that names none gets this instance's default, so that ids and links always name it."""
    if "model" in spec.model_fields_set:
        return spec
    return spec.model_copy(update={"model": available_models()[0].id})
