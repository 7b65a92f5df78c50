"""What fits of a model that is on this machine, at the size that memory is planned for; nothing is loaded for it."""

from kvq_core.analysis.choice import PLANNED_BATCH, PLANNED_TOKENS
from kvq_core.errors import ModelError
from kvq_core.models import configuration_of
from kvq_core.sizing.fit import Fit, FitRequest, fit
from kvq_core.sizing.layers import shape_of
from kvq_core.sizing.weights import weights_of

PLANNED = FitRequest(context=PLANNED_TOKENS, batch=PLANNED_BATCH)


def fit_here(id: str, revision: str | None = None, asked: FitRequest = PLANNED) -> Fit | None:
    """None of a model whose configuration is not here, or does not say what its cache takes."""
    found = configuration_of(id, revision)
    if found is None:
        return None
    try:
        shape = shape_of(found.config)
        return fit(id, shape, weights_of(found.folder, found.config, shape, found.weights_bytes), asked)
    except ModelError:
        return None
