"""What fits of a model that is on this machine, or whose configuration is; nothing is loaded for it."""

from pathlib import Path

from kvq_core.analysis.choice import PLANNED_BATCH, PLANNED_TOKENS
from kvq_core.errors import ModelError
from kvq_core.models import LoadedModel, configuration_of
from kvq_core.models.parameters import parameters_of
from kvq_core.presets.formats import formats
from kvq_core.sizing.fit import Fit, FitRequest, fit
from kvq_core.sizing.layers import read_config, shape_of
from kvq_core.sizing.weights import weights_in_memory, weights_of

PLANNED = FitRequest(context=PLANNED_TOKENS, batch=PLANNED_BATCH)


def fit_here(id: str, revision: str | None = None, asked: FitRequest = PLANNED) -> Fit | None:
    """None of a model whose configuration is not here, or does not say what its cache takes."""
    found = configuration_of(id, revision)
    if found is None:
        return None
    try:
        shape = shape_of(found.config)
        weights = weights_of(found.folder, found.config, shape, parameters_of, found.weights_bytes)
        return fit(id, shape, weights, asked, formats())
    except ModelError:
        return None


def fit_of_folder(folder: Path, asked: FitRequest) -> Fit:
    """What fits, from a folder's configuration. Raises ModelError where that does not say what the cache takes."""
    config = read_config(folder)
    shape = shape_of(config)
    weights = weights_of(folder, config, shape, parameters_of)
    return fit(folder.resolve().name, shape, weights, asked, formats())


def fit_of_loaded(model: LoadedModel, asked: FitRequest) -> Fit:
    """Of a model in memory, beside its weights as its files hold them, or in 16 bits."""
    weights = weights_in_memory(model.weights_bytes, sum(weight.numel() for weight in model.model.parameters()))
    return fit(model.title, shape_of(model.model.config.to_dict()), weights, asked, formats())
